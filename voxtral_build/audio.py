"""Log-mel frames as the model was trained on them.

Source: mistral-common's and transformers' VoxtralRealtime feature extraction.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from voxtral_build.model.config import AudioParams

_LOG_RANGE = 8.0  # decades kept below global_log_mel_max
_FLOOR = 1e-10


def slaney_filters(params: AudioParams) -> Tensor:
    """Triangular mel filters of unit area, on Slaney's scale (linear below 1 kHz).

    Source: Slaney, Auditory Toolbox (1998).

    Returns:
        (num_mel_bins, window_size // 2 + 1) float32.
    """

    def to_mel(hertz: np.ndarray) -> np.ndarray:
        logarithmic = 15.0 + np.log(np.maximum(hertz, 1000.0) / 1000.0) * (27.0 / np.log(6.4))
        return np.where(hertz < 1000.0, hertz * 3.0 / 200.0, logarithmic)

    def to_hertz(mel: np.ndarray) -> np.ndarray:
        exponential = 1000.0 * np.exp((mel - 15.0) * (np.log(6.4) / 27.0))
        return np.where(mel < 15.0, mel * 200.0 / 3.0, exponential)

    nyquist = params.sampling_rate / 2
    bins = np.linspace(0.0, nyquist, params.window_size // 2 + 1)
    ends = to_mel(np.array([0.0, nyquist]))
    corners = to_hertz(np.linspace(ends[0], ends[1], params.num_mel_bins + 2))
    low, centre, high = corners[:-2, None], corners[1:-1, None], corners[2:, None]
    rising = (bins - low) / (centre - low)
    falling = (high - bins) / (high - centre)
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    return torch.from_numpy(triangles * 2.0 / (high - low)).float()


def log_mel(samples: Tensor, params: AudioParams) -> Tensor:
    """Log-mel frames of a whole recording.

    Args:
        samples: (N,) float32 in [-1, 1] at `params.sampling_rate`; N a multiple of
            `params.hop_length`.

    Returns:
        (1, num_mel_bins, N // hop_length) float32. Silence is -0.625 in every bin.
    """
    window = torch.hann_window(params.window_size)
    spectrum = torch.stft(
        samples, params.window_size, params.hop_length, window=window, return_complex=True
    )
    power = spectrum[..., :-1].abs() ** 2  # the last frame is centred past the end
    return scaled_log(slaney_filters(params) @ power, params).unsqueeze(0)


def scaled_log(mel: Tensor, params: AudioParams) -> Tensor:
    """Mel powers, float32 of any shape, as the model takes them."""
    log = torch.clamp(mel, min=_FLOOR).log10()
    # A fixed floor, not one below the loudest frame of what is at hand: only so do frames
    # of a stream equal those of the whole recording.
    log = torch.clamp(log, min=params.global_log_mel_max - _LOG_RANGE)
    return (log + 4.0) / 4.0
