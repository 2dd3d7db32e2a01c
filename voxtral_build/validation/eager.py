"""The artifact's model in eager PyTorch: the same weights, nothing else of it.

It shares neither kernels nor caches with the artifact. It has no cache at all: whole sequences
go through one layer after the other, under the windows of the artifact's mode. So a streaming
artifact, chunk by chunk on rings that wrap, is held against an offline computation; and of a
model of gigabytes one layer at a time is in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from voxtral_build.axes import Component
from voxtral_build.checkpoint import PARAMS
from voxtral_build.methods import MethodBuilder
from voxtral_build.model.attention import STANDARD
from voxtral_build.model.config import ModelConfig, RuntimeConfig
from voxtral_build.quant import Scheme
from voxtral_build.quantization import dequantize
from voxtral_build.quantized_file import ComponentFile
from voxtral_build.runtime.layerwise import LayerwiseModel
from voxtral_build.settings import Settings
from voxtral_build.variants import Variant
from voxtral_build.weights import TORCH_DTYPES, component_of, read_tensors


@dataclass(frozen=True)
class EagerSource:
    """Where an artifact's model comes from.

    Attributes:
        weights: quantized weights, of the components that have some.
    """

    checkpoint: Path
    variant: Variant
    scheme: Scheme
    weights: Mapping[Component, Path]
    settings: Settings

    @property
    def dtype(self) -> torch.dtype:
        """Of activations."""
        return TORCH_DTYPES[self.variant.dtype]

    def config(self) -> ModelConfig:
        """The model's dimensions."""
        return ModelConfig.load(self.checkpoint / PARAMS)

    def runtime(self) -> RuntimeConfig:
        """What the build decides."""
        return RuntimeConfig.resolve(self.config(), self.settings, self.variant.mode)

    def model(self, *, unrounded: bool = False) -> LayerwiseModel:
        """The model.

        Args:
            unrounded: the same weights, with all activations in float32.
        """
        config, runtime = self.config(), self.runtime()
        meta = MethodBuilder(config, runtime, STANDARD).meta_model()
        files = {
            component: ComponentFile(path, meta, component, self.scheme.of(component), self.dtype)
            for component, path in self.weights.items()
        }

        def read(names: Sequence[str]) -> Mapping[str, Tensor]:
            file = files.get(component_of(names[0]))
            if file is None:
                tensors = read_tensors(self.checkpoint, names, self.dtype)
            else:
                tensors = file.read(names)
            if not unrounded:
                return tensors
            return {name: tensor.float() for name, tensor in dequantize(tensors).items()}

        return LayerwiseModel(config, runtime, read, torch.float32 if unrounded else self.dtype)
