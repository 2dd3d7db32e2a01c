"""What the files of an artifact's folder are called."""

MODEL = "model.pte"
PREPROCESSOR = "preprocessor.pte"
MANIFEST = "manifest.json"
REPORT = "report.json"
FAILED_REPORT = "report.failed.json"
