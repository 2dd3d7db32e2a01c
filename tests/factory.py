"""Artifacts built through the steps, as the workflow does, each thing once."""

from __future__ import annotations

from pathlib import Path

from tests.models import ONE_LAYER, SETTINGS, checkpoint
from voxtral_build.checkpoint import WEIGHTS
from voxtral_build.gates import Gate
from voxtral_build.matrix import Matrix, graph_for
from voxtral_build.quant import Scheme
from voxtral_build.steps import (
    export,
    link,
    lower,
    meta_load,
    preprocessor,
    quantize,
    reference,
    validate,
)
from voxtral_build.tensor_file import read_header
from voxtral_build.variants import Variant
from voxtral_build.weights import checkpoint_key

SPEECH = Path(__file__).parent / "data" / "jfk_5s.wav"
_MATRIX = Matrix.load(Path(__file__).parent.parent / "config" / "matrix.yaml")
# Of the gates, those that hold for any checkpoint. What quantization costs a random one says
# nothing of one that was trained, and bytes of a layer as small as a test's are mostly overhead.
_LOOSE = {"audio_cosine": (0.8, None), "top1_agreement": (0.5, None), "divergence": (None, 10)}
_LOOSE |= {"word_error_increase": (None, 1), "size_ratio": (0.8, 2.5)}
SCHEMES = {
    "none": Scheme(encoder="none", decoder="none", embedding="none"),
    "8da4w": Scheme(encoder="8da4w", decoder="8da4w", embedding="8w"),
    "8w": Scheme(encoder="8w", decoder="8w", embedding="8w"),
    "8da8w": Scheme(encoder="8da8w", decoder="8da8w", embedding="8w"),
    "4w": Scheme(
        encoder={"type": "4w", "group_size": 0},
        decoder={"type": "4w", "group_size": 0},
        embedding="4w",
    ),
    # ExecuTorch's own choice for this model.
    "8w_8da4w": Scheme(encoder="8w", decoder="8da4w", embedding="8w"),
    # Everything that a component can have of its own, and most layers left as they are.
    "mixed": Scheme(
        encoder={"type": "8da4w", "group_size": 0},
        decoder={
            "type": "8da4w",
            "group_size": 64,
            "algorithm": "hqq",
            "skip_incompatible_shapes": True,
        },
        embedding={"type": "4w", "group_size": 0, "algorithm": "hqq"},
    ),
    "embedding_4w": Scheme(encoder="none", decoder="none", embedding="4w"),
}


def gates(variant: Variant) -> list[Gate]:
    """Bounds for a variant of a random checkpoint."""
    loose = [
        Gate(figure=figure, min=low, max=high, reason="Anything but nonsense.")
        for figure, (low, high) in _LOOSE.items()
    ]
    # Schemes of other names are bounded as those without a name.
    return loose + [gate for gate in _MATRIX.gates_of(variant) if gate.figure not in _LOOSE]


class Factory:
    """Builds each thing once, as Snakemake would, and remembers where it lies."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoint = checkpoint(ONE_LAYER)

    @property
    def inventory(self):
        path = self.folder / "inventory.json"
        if not path.exists():
            meta_load.run(checkpoint=self.checkpoint, output=path)
        return path

    def shape(self, name):
        """Of a parameter, by the model's name."""
        file = read_header(self.checkpoint / WEIGHTS)
        return file.tensors[checkpoint_key(name)].shape

    def weights(self, unit):
        key = unit.weights
        if key is None:
            return None
        path = self.folder / f"{key.slug}.safetensors"
        if not path.exists():
            quantize.run(
                checkpoint=self.checkpoint,
                component=key.component,
                quant=key.quant,
                dtype=key.dtype,
                threads=1,
                output=path,
            )
        return path

    def variant_weights(self, variant):
        units = variant.units(SCHEMES[variant.scheme])
        return {unit.component: self.weights(unit) for unit in units if unit.weights}

    def graph(self, unit):
        path = self.folder / f"{graph_for(unit).slug}.pt2"
        if not path.exists():
            export.run(
                params=self.checkpoint / "params.json",
                graph=graph_for(unit),
                settings=SETTINGS,
                output=path,
            )
        return path

    def unit(self, unit):
        path = self.folder / f"{unit.slug}.pte"
        if not path.exists():
            self.lower(unit, path)
        return path

    def lower(self, unit, path, **changes):
        arguments = {
            "checkpoint": self.checkpoint,
            "graph": self.graph(unit),
            "unit": unit,
            "weights": self.weights(unit),
            "settings": SETTINGS,
            "output": path,
        }
        lower.run(**(arguments | changes))

    def preprocessor(self, mode):
        path = self.folder / f"preprocessor-{mode}.pte"
        if not path.exists():
            preprocessor.run(
                params=self.checkpoint / "params.json", mode=mode, settings=SETTINGS, output=path
            )
        return path

    def artifact(self, variant):
        path = self.folder / variant.slug
        if not path.exists():
            self.link(variant, path)
        return path

    def link(self, variant, output, units=None, preprocessor=None):
        """With other units or another preprocessor than the variant's own."""
        scheme = SCHEMES[variant.scheme]
        units = units or [self.unit(unit) for unit in variant.units(scheme)]
        link.run(
            checkpoint=self.checkpoint,
            inventory=self.inventory,
            variant=variant,
            scheme=scheme,
            weights=self.variant_weights(variant),
            settings=SETTINGS,
            units=units,
            data_files=[path for unit in units if (path := unit.with_suffix(".ptd")).is_file()],
            preprocessor=preprocessor or self.preprocessor(variant.mode),
            output=output,
        )

    @property
    def reference(self):
        path = self.folder / "reference.safetensors"
        if not path.exists():
            reference.run(
                checkpoint=self.checkpoint,
                delay_tokens=SETTINGS.delay_tokens,
                audio=[SPEECH],
                clips=None,
                output=path,
            )
        return path

    def validate(self, variant, output, **changes):
        arguments = {
            "artifact": self.artifact(variant),
            "checkpoint": self.checkpoint,
            "variant": variant,
            "scheme": SCHEMES[variant.scheme],
            "weights": self.variant_weights(variant),
            "settings": SETTINGS,
            "gates": gates(variant),
            "audio": [SPEECH],
            "reference": self.reference,
            "clips": None,
            "output": output,
        }
        validate.run(**(arguments | changes))
