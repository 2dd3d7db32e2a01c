"""The preprocessor against the log-mel that the model was trained on."""

from __future__ import annotations

import torch
from torch import Tensor

from voxtral_build.errors import PteError
from voxtral_build.model.config import ModelConfig
from voxtral_build.runtime.artifact import Artifact


def preprocessor_difference(
    artifact: Artifact, config: ModelConfig, samples: Tensor, mel: Tensor
) -> float:
    """Largest difference of the preprocessor's log-mel.

    Args:
        samples: (N,) float32, N a whole number of tokens.
        mel: (1, num_mel_bins, T_mel), of all samples at once, by `audio.log_mel`. A stream's
            windows have to be the same.

    Raises:
        PteError: it refuses the samples, or gives other shapes.
    """
    if artifact.mode == "offline":
        return _difference(artifact.preprocess(samples), mel)
    window, chunk = config.streaming_window, config.mel_frames_per_token
    # At both ends a stream hears silence, where the whole is mirrored: those frames differ.
    count = samples.shape[0] // window.step - 1
    differences = []
    for token in range(1, count):
        start = token * window.step - window.left
        frames = artifact.preprocess(samples[start : start + window.samples])
        # No more than those: the offline one would give right frames, and twice as many.
        kept = frames[..., window.skip_frames :]
        differences.append(_difference(kept, mel[..., token * chunk : (token + 1) * chunk]))
    return float(torch.tensor(differences).max())  # NaN is the largest


def _difference(got: Tensor, wanted: Tensor) -> float:
    if got.shape != wanted.shape:
        raise PteError(
            "the preprocessor gives frames of another shape",
            got=list(got.shape),
            allowed=f"{list(wanted.shape)}",
            next_step="link the preprocessor of the artifact's mode",
        )
    return float((got - wanted).abs().max())
