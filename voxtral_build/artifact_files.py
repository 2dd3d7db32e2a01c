"""What the files of an artifact's folder are called."""

MODEL = "model.pte"
# What the model keeps outside of itself; most have none.
DATA = "model.ptd"
PREPROCESSOR = "preprocessor.pte"
MANIFEST = "manifest.json"
REPORT = "report.json"
FAILED_REPORT = "report.failed.json"
CARD = "README.md"
