"""Frames of any rate and channel count to mono at the model's rate, block by block."""

from __future__ import annotations

import numpy as np
import soxr

from voxtral_build.errors import BuildError
from voxtral_build.sound.levels import Levels

# Hz. What is outside is a damaged header, and would have the resampler make thousands of
# samples of one or a filter of millions of taps.
MIN_RATE, MAX_RATE = 1000, 768_000
MAX_CHANNELS = 1024  # libsndfile's bound


class MonoMixer:
    """The mean of all channels, resampled by soxr (HQ: errors under -100 dB).

    Sounds at the model's rate are not resampled: mono 16-bit samples come out as
    exactly value / 32768.

    Args:
        name: of the source, for messages.
        source_rate: Hz.
        channels: of the source.
        rate: the model's, Hz.

    Attributes:
        notes: what is done to the sound.
        warnings: what is doubtful about it, once it is finished.

    Raises:
        BuildError: a rate or a number of channels that no sound has.
    """

    def __init__(self, name: str, source_rate: int, channels: int, rate: int) -> None:
        if not MIN_RATE <= source_rate <= MAX_RATE:
            raise BuildError(
                f"{name} has no sample rate that a sound has",
                got=f"{source_rate} Hz",
                allowed=f"{MIN_RATE} to {MAX_RATE} Hz",
                next_step="its header is damaged: make the file again",
            )
        if not 1 <= channels <= MAX_CHANNELS:
            raise BuildError(
                f"{name} has no number of channels that a sound has",
                got=channels,
                allowed=f"1 to {MAX_CHANNELS}",
                next_step="its header is damaged: make the file again",
            )
        self._name, self._source_rate, self._channels = name, source_rate, channels
        self._levels = Levels(source_rate, channels)
        self._frames = self._samples = 0
        self._resampler: soxr.ResampleStream | None = None
        notes = []
        if channels > 1:
            notes.append(f"{channels} channels mixed down")
        if source_rate != rate:
            self._resampler = soxr.ResampleStream(source_rate, rate, 1, dtype="float32")
            notes.append(f"{source_rate} Hz resampled to {rate} Hz")
        self.notes = tuple(notes)
        self.warnings: tuple[str, ...] = ()

    def add(self, frames: np.ndarray) -> np.ndarray:
        """Mix a block.

        Args:
            frames: (n, channels) float32.

        Returns:
            (m,) float32; the resampler keeps some milliseconds back.

        Raises:
            BuildError: a sample that is NaN or infinite; names its index and channel.
        """
        self._require_finite(frames)
        self._levels.add(frames)
        self._frames += len(frames)
        # In float64, where the sum of the largest floats is none too large.
        mono = frames[:, 0] if self._channels == 1 else frames.mean(axis=1, dtype=np.float64)
        return self._resample(mono.astype(np.float32), last=False)

    def finish(self) -> np.ndarray:
        """What was kept back, (m,) float32; from here on there are `warnings`."""
        rest = self._resample(np.zeros(0, np.float32), last=True)
        self.warnings = self._levels.finish()
        if self._frames and not self._samples:
            self.warnings = (f"empty: {self._frames} of its samples are shorter than one",)
        return rest

    def _resample(self, mono: np.ndarray, *, last: bool) -> np.ndarray:
        if self._resampler is not None:
            mono = self._resampler.resample_chunk(mono, last=last)
        self._samples += len(mono)
        return mono

    def _require_finite(self, frames: np.ndarray) -> None:
        wrong = ~np.isfinite(frames)
        if not wrong.any():
            return
        frame, channel = (int(index) for index in np.argwhere(wrong)[0])
        index = self._frames + frame
        raise BuildError(
            f"{self._name} has a sample that is not a finite number",
            got=f"{frames[frame, channel]} at sample {index} ({index / self._source_rate:.3f} s) "
            f"of channel {channel + 1} of {self._channels}",
            allowed="finite samples",
            next_step="find what wrote it, and make the file again",
        )
