"""The microphone, where the package sounddevice is installed."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from voxtral_build.errors import HostError

log = logging.getLogger(__name__)

_BLOCK_S = 0.08
_BUFFER_S = 2.0  # what the driver keeps while the model is busy


def listen(rate: int) -> Iterator[npt.NDArray[np.float32]]:
    """Blocks of 80 ms from the default microphone, without end.

    Args:
        rate: in Hz.

    Raises:
        HostError: no sounddevice, no PortAudio, or no microphone.
    """
    next_step = "pip install sounddevice (on Linux PortAudio, too: apt install libportaudio2)"
    try:
        sounddevice = importlib.import_module("sounddevice")
    except (ImportError, OSError) as error:  # OSError: PortAudio is missing
        raise HostError(
            "the microphone can't be used",
            got=f"{type(error).__name__}: {error}",
            allowed="the package sounddevice, and a microphone",
            next_step=f"{next_step}; or pipe sound in: arecord ... | voxtral-build transcribe",
        ) from None
    return _blocks(sounddevice, rate)


def _blocks(sounddevice: object, rate: int) -> Iterator[npt.NDArray[np.float32]]:
    open_stream = sounddevice.InputStream  # type: ignore[attr-defined]
    portaudio_error: type[Exception] = sounddevice.PortAudioError  # type: ignore[attr-defined]
    try:
        with open_stream(
            samplerate=rate, channels=1, dtype="float32", latency=_BUFFER_S
        ) as microphone:
            log.info("listening; Ctrl-C ends it")
            while True:
                block, lost = microphone.read(round(rate * _BLOCK_S))
                if lost:
                    log.warning("sound was lost: the model is slower than the microphone here")
                yield block[:, 0]
    except portaudio_error as error:
        raise HostError(
            "the microphone can't be used",
            got=error,
            allowed="a microphone",
            next_step="python -m sounddevice lists what there is",
        ) from None
