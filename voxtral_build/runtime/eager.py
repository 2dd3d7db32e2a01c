"""A checkpoint as an artifact that was never lowered: the model in eager PyTorch, float32.

Sessions run it as they run a `.pte`: what they make of it is the accuracy that an artifact
is held against.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from voxtral_build.audio import log_mel
from voxtral_build.axes import COMPONENT_OF, METHODS_OF, Mode
from voxtral_build.checkpoint import PARAMS, TOKENIZER, read_json
from voxtral_build.metadata import constant_methods
from voxtral_build.methods import MethodBuilder
from voxtral_build.model.attention import STANDARD
from voxtral_build.model.config import ModelConfig, RuntimeConfig
from voxtral_build.runtime.artifact import Artifact
from voxtral_build.runtime.greedy import Methods
from voxtral_build.settings import Settings
from voxtral_build.text import Vocabulary
from voxtral_build.tokenizer import StreamingTokens
from voxtral_build.weights import parameter_names, read_tensors


def eager_artifact(checkpoint: Path, mode: Mode, settings: Settings) -> Artifact:
    """Load a checkpoint's weights, all of them at once.

    Args:
        checkpoint: a folder with Mistral's three files.
        settings: as a build would have them.

    Raises:
        CheckpointError: not such a folder.
    """
    config = ModelConfig.load(checkpoint / PARAMS)
    runtime = RuntimeConfig.resolve(config, settings, mode)
    builder = MethodBuilder(config, runtime, STANDARD)
    methods = METHODS_OF[mode]
    model = builder.meta_model()
    tensors: dict[str, Tensor] = {}
    for component in {COMPONENT_OF[method] for method in methods}:
        names = parameter_names(model, component)
        tensors |= read_tensors(checkpoint, names, torch.float32)
    encode, decode, embed = map(_no_grad, builder.build(methods, tensors, torch.float32))
    constants = constant_methods(config, runtime)
    tekken = read_json(checkpoint / TOKENIZER)
    return Artifact(
        name=str(checkpoint),
        mode=mode,
        sample_rate=config.audio.sampling_rate,
        step=config.samples_per_token,
        delay_tokens=runtime.delay_tokens,
        max_seq_len=runtime.max_seq_len,
        constants=constants,
        preprocess=lambda samples: log_mel(samples, config.audio),
        methods=Methods(encode, embed, decode, runtime.decode_bound),
        tokens=StreamingTokens.parse(tekken, checkpoint / TOKENIZER),
        vocabulary=Vocabulary(tekken, checkpoint / TOKENIZER),
    )


def _no_grad(module: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(*inputs: Tensor) -> Tensor:
        with torch.no_grad():
            return module(*inputs)

    return call
