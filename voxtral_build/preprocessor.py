"""The preprocessor: samples in, the log-mel frames of `audio` out, as a graph to export.

torch.stft does not lower: its spectrum is complex. Here the DFT is a product of the frames
with a matrix of cosines and sines. What that takes for a whole recording would be gigabytes
if frames, spectra and powers were all kept; so they are made for one frame of each token at
a time, and memory is bounded by a few copies of the recording.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from voxtral_build.audio import scaled_log, slaney_filters
from voxtral_build.axes import Mode
from voxtral_build.model.config import AudioParams, ModelConfig


class FrameLogMel(nn.Module):
    """Log-mel values of frames, each for itself.

    The spectrum is float64: what a loud tone leaves in the quiet bins far from it is as
    small as float32's rounding in a sum over a frame, and the logarithm shows it.

    Attributes:
        basis: (window_size, 2 * frequencies) float64, a Hann window times the cosines, then
            times the sines, of 0 to window_size / 2 turns a window.
        filters: (2 * frequencies, num_mel_bins) float32, the mel filters, for the squares
            of either half of the spectrum.
    """

    basis: Tensor
    filters: Tensor

    def __init__(self, params: AudioParams) -> None:
        super().__init__()
        self.params = params
        size = params.window_size
        samples = torch.arange(size, dtype=torch.float64)
        turns = torch.outer(samples, torch.arange(size // 2 + 1, dtype=torch.float64))
        angles = 2 * math.pi / size * (turns % size)  # small ones have exact sines
        hann = torch.hann_window(size, dtype=torch.float64)  # periodic
        basis = torch.cat([angles.cos(), angles.sin()], dim=1) * hann.unsqueeze(1)
        filters = slaney_filters(params)
        self.register_buffer("basis", basis)
        self.register_buffer("filters", torch.cat([filters, filters], dim=1).T.contiguous())

    def forward(self, frames: Tensor) -> Tensor:
        """(N, window_size) float32 -> (N, num_mel_bins) float32."""
        spectrum = frames.double() @ self.basis
        power = (spectrum * spectrum).float()
        return scaled_log(power @ self.filters, self.params)


class OfflinePreprocessor(nn.Module):
    """Log-mel of a whole recording, with silence up to a whole number of tokens.

    The encoder takes whole tokens only, and a recording can have any length.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.log_mel = FrameLogMel(config.audio)
        self.step = config.samples_per_token

    def forward(self, samples: Tensor) -> Tensor:
        """Preprocess a recording.

        Args:
            samples: (N,) float32 in [-1, 1].

        Returns:
            (1, num_mel_bins, 8 * ceil(N / 1280)) float32, with the real model's sizes.
        """
        params, step = self.log_mel.params, self.step
        hop, size = params.hop_length, params.window_size
        tokens = (samples.shape[0] + step - 1) // step
        whole = nn.functional.pad(samples, (0, tokens * step - samples.shape[0]))
        # Frames are centred on multiples of the hop, and both ends mirrored, as torch.stft
        # does it. By hand: reflection padding lowers to 8 bytes of index for each sample.
        left = size // 2
        right = size - left - hop
        ends = whole[1 : left + 1].flip(0), whole[-1 - right : -1].flip(0)
        mirrored = torch.cat([ends[0], whole, ends[1]])
        # All samples that a token's frames see: (tokens, step - hop + size).
        spans = mirrored.unfold(0, step - hop + size, step)
        starts = range(0, step, hop)
        mel = [self.log_mel(spans[:, start : start + size]) for start in starts]
        return torch.stack(mel, dim=1).flatten(0, 1).T.unsqueeze(0)


class StreamingPreprocessor(nn.Module):
    """Log-mel of a token's window of a stream; see `ModelConfig.streaming_window`."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.log_mel = FrameLogMel(config.audio)

    def forward(self, samples: Tensor) -> Tensor:
        """Preprocess a window.

        Args:
            samples: (left + step + right,) float32 in [-1, 1].

        Returns:
            (1, num_mel_bins, skip_frames + 8) float32. The first `skip_frames` see samples
            from before the window, which are mirrored there; the caller drops them, as
            ExecuTorch's runner does.
        """
        params = self.log_mel.params
        left = params.window_size // 2
        mirrored = torch.cat([samples[1 : left + 1].flip(0), samples])
        frames = mirrored.unfold(0, params.window_size, params.hop_length)
        mel: Tensor = self.log_mel(frames)
        return mel.T.unsqueeze(0)


def export_preprocessor(config: ModelConfig, mode: Mode, max_seq_len: int) -> ExportedProgram:
    """Export the preprocessor of a mode.

    Args:
        max_seq_len: the longest recording, in tokens; a stream has no end.
    """
    dynamic_shapes: dict[str, Any] | None = None
    if mode == "streaming":
        module: nn.Module = StreamingPreprocessor(config)
        samples = torch.zeros(config.streaming_window.samples)
    else:
        module = OfflinePreprocessor(config)
        samples = torch.zeros(4 * config.samples_per_token - 1)
        bound = max_seq_len * config.samples_per_token
        dynamic_shapes = {"samples": {0: Dim("samples", min=2, max=bound)}}
    # The tracer treats sizes of 1 apart, and would refuse a graph that is also for one token.
    any_size = torch.fx.experimental._config.patch(  # type: ignore[attr-defined]
        backed_size_oblivious=True
    )
    with torch.no_grad(), any_size:
        return torch.export.export(
            module.eval(), (samples,), dynamic_shapes=dynamic_shapes, strict=True
        )
