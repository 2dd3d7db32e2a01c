"""What is doubtful about a sound: its levels, clipping, and channels that cancel."""

from __future__ import annotations

import math

import numpy as np

# Levels are measured as broadcasters measure momentary loudness, in windows of 400 ms
# (ITU-R BS.1770-5, unweighted here): long enough for a word, short enough that the pauses
# around a single word do not hide it.
WINDOW_S = 0.4

# Speech is recorded at -30 to -15 dBFS RMS. At -40 the consonants, 30 dB below the vowels,
# are near the rounding noise of 16 bits and below most rooms' noise.
QUIET_DBFS = -40.0

# Noise of a good microphone's preamplifier, and dither, stay under this; no speech does.
SILENT_DBFS = -80.0

# Channels that have nothing in common mix to the sum of their energies (over channels
# squared). 10 dB less than that and they must be cancelling each other; speech of one
# speaker, wherever they stand, leaves as much or more.
ANTI_PHASE_DB = -10.0

# A clipped wave stands still at its limit. Full scale of 8 bits is 127/128 = 0.992. A wave
# that just reaches it is there for a sample or two; four that are equal are no wave's crest.
FULL_SCALE = 0.99
CLIPPED_RUN = 4

# Decoders of MP3 and Ogg overshoot by some tenths, and floats may; twice full scale is
# integers stored as floats, or an amplifier left on.
BEYOND_FULL_SCALE = 2.0


class Levels:
    """Measures a sound as it passes, in constant memory.

    A level is that of the window's deviation from its mean, so that a microphone's DC
    offset counts for nothing. 0 dBFS is an RMS of 1: a sine of full scale has -3.

    Args:
        rate: samples a second.
        channels: of the source.
    """

    def __init__(self, rate: int, channels: int) -> None:
        self._rate, self._channels = rate, channels
        # (CLIPPED_RUN + window, channels): the end of the last window, then this one.
        self._window = np.zeros((CLIPPED_RUN + max(1, round(rate * WINDOW_S)), channels), "f4")
        self._filled = CLIPPED_RUN
        self._frames = 0
        self._peak = 0.0
        self._loudest: float | None = None  # mean square of the mix
        self._energy = self._mix_energy = 0.0
        self._clipped = 0
        self._clipped_at = 0.0

    def add(self, frames: np.ndarray) -> None:
        """Frames: (n, channels) float32, finite."""
        while len(frames):
            taken = min(len(frames), len(self._window) - self._filled)
            self._window[self._filled : self._filled + taken] = frames[:taken]
            self._filled += taken
            frames = frames[taken:]
            if self._filled == len(self._window):
                self._measure()

    def finish(self) -> tuple[str, ...]:
        """After the last frame: a warning for each property that is doubtful."""
        # What is left over is no whole window: a click there is no loud part.
        self._measure(whole=self._loudest is None)
        if not self._frames:
            return ("empty: no samples",)
        # What stands still at 1 in integers is no limit.
        return tuple(filter(None, (self._level(), self._range() or self._clipping())))

    def _measure(self, *, whole: bool = True) -> None:
        history = self._window[: self._filled]
        window = history[CLIPPED_RUN:]
        if not len(window):
            return
        channels = window.astype(np.float64)
        mix = float(channels.mean(axis=1).var())
        self._energy += len(window) * float(channels.var(axis=0).sum())
        self._mix_energy += len(window) * mix
        if whole:
            self._loudest = max(self._loudest or 0.0, mix)
        peak = float(np.abs(window).max())
        self._peak = max(self._peak, peak)
        if peak >= FULL_SCALE:
            self._count_clipped(history)
        self._frames += len(window)
        self._window[:CLIPPED_RUN] = history[-CLIPPED_RUN:]
        self._filled = CLIPPED_RUN

    def _count_clipped(self, history: np.ndarray) -> None:
        still = (np.abs(history[1:]) >= FULL_SCALE) & (history[1:] == history[:-1])
        steps = CLIPPED_RUN - 1  # between the samples of a run
        ends = [still[i : len(still) - steps + 1 + i] for i in range(steps)]
        runs = np.logical_and.reduce(ends)  # whether a run has ended at or before this sample
        starts = runs[1:] & ~runs[:-1]  # (window, channels)
        found = int(starts.sum())
        if found and not self._clipped:
            first = int(np.flatnonzero(starts.any(axis=1))[0])
            self._clipped_at = (self._frames + first) / self._rate
        self._clipped += found

    def _level(self) -> str | None:
        limit = 10 ** (ANTI_PHASE_DB / 10) * self._energy / self._channels**2
        if self._channels > 1 and self._mix_energy < limit:
            return (
                f"anti-phase: the {self._channels} channels cancel each other when they are "
                "mixed; one may be wired the wrong way round, so give one of them alone"
            )
        level = 10 * math.log10(self._loudest) if self._loudest else -math.inf
        loudest = f"the loudest {1000 * WINDOW_S:.0f} ms are at {level:.1f} dBFS RMS"
        if level < SILENT_DBFS:
            return f"silent: {loudest}, where speech is over {SILENT_DBFS:.0f}"
        if level < QUIET_DBFS:
            return f"quiet: {loudest}, under {QUIET_DBFS:.0f}; record it louder"
        return None

    def _clipping(self) -> str | None:
        if not self._clipped:
            return None
        return (
            f"clipped: {CLIPPED_RUN} or more samples in a row at full scale, "
            f"{self._clipped} times, first at {self._clipped_at:.2f} s; record it less loud"
        )

    def _range(self) -> str | None:
        if self._peak <= BEYOND_FULL_SCALE:
            return None
        return (
            f"beyond full scale: a peak of {self._peak:.6g}, where full scale is 1; "
            "these may be integers stored as floats"
        )
