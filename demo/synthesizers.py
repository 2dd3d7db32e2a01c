"""Speech synthesizers of Debian's packages, and when they say what.

espeak-ng and flite speak through their C libraries, which also tell the times of words and
phones; festival, whose voices are for tests alone, through its command.
"""

from __future__ import annotations

import bisect
import ctypes
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from voxtral_build.errors import BuildError


@dataclass(frozen=True)
class Voice:
    """A voice and how it speaks.

    Attributes:
        synthesizer: `espeak`, `flite` or `festival`.
        name: as the synthesizer knows it; of espeak-ng, language file and variant
            (`gmw/en-US+f3`).
        rate: how fast; 1 is the voice's own.
        pitch: how high; 1 is the voice's own.
    """

    synthesizer: str
    name: str
    rate: float = 1.0
    pitch: float = 1.0


@dataclass(frozen=True)
class Speech:
    """What a voice said.

    Attributes:
        samples: (N,) float32 in [-1, 1].
        sample_rate: in Hz.
        word_ends: when each word ends, seconds.
        phones: symbol and end in seconds of each sound; silence is `_`.
    """

    samples: np.ndarray
    sample_rate: int
    word_ends: list[float]
    phones: list[tuple[str, float]]


class SpeechError(Exception):
    """A voice did not say what it was asked to."""


def speak(voice: Voice, words: list[str]) -> Speech:
    """Say the words as one sentence.

    Raises:
        BuildError: the synthesizer is not installed, or has no such voice.
        SpeechError: not all of the words were said.
    """
    return {"espeak": _espeak, "flite": _flite, "festival": _festival}[voice.synthesizer](
        voice, words
    )


def _missing(package: str, error: OSError) -> BuildError:
    return BuildError(
        f"{package} is not there to speak",
        got=error,
        allowed="the speech synthesizers of Debian",
        next_step="apt-get install espeak-ng flite festival festvox-kdlpc16k",
    )


def _library(name: str, package: str) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise _missing(package, error) from None


# --- espeak-ng: speak_lib.h ---

_WORD, _PHONEME = 1, 7
_SYNCHRONOUS, _PHONEME_EVENTS = 2, 1
_RATE, _PITCH = 1, 3  # espeak_PARAMETER


class _EventId(ctypes.Union):
    _fields_ = (("number", ctypes.c_int), ("name", ctypes.c_char_p), ("string", ctypes.c_char * 8))


class _Event(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", _EventId),
    )


_CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event)
)


class _Espeak:
    """The library, opened once a process; it speaks one sentence at a time."""

    def __init__(self) -> None:
        self.library = _library("libespeak-ng.so.1", "espeak-ng")
        self.sample_rate = self.library.espeak_Initialize(_SYNCHRONOUS, 0, None, _PHONEME_EVENTS)
        self.callback = _CALLBACK(self._heard)  # kept: the library holds only its address
        self.library.espeak_SetSynthCallback(self.callback)
        self.blocks: list[np.ndarray] = []
        self.events: list[tuple[int, int, int, str]] = []

    def _heard(self, samples: Any, count: int, events: Any) -> int:
        if samples and count:
            self.blocks.append(np.ctypeslib.as_array(samples, (count,)).copy())
        index = 0
        while events[index].type:
            event = events[index]
            symbol = event.id.string.decode("utf-8", "replace") if event.type == _PHONEME else ""
            self.events.append((event.type, event.sample, event.text_position, symbol))
            index += 1
        return 0

    def speak(self, voice: Voice, text: str) -> np.ndarray:
        if self.library.espeak_SetVoiceByName(voice.name.encode()):
            raise BuildError(
                f"espeak-ng has no voice {voice.name}",
                allowed="a language file and a variant, such as gmw/en-US+f3",
                next_step="espeak-ng --voices=en, and --voices=variant",
            )
        self.library.espeak_SetParameter(_RATE, round(175 * voice.rate), 0)
        self.library.espeak_SetParameter(_PITCH, round(50 * voice.pitch), 0)
        self.blocks, self.events = [], []
        data = text.encode()
        self.library.espeak_Synth(data, len(data) + 1, 0, 1, 0, 1, None, None)
        return np.concatenate(self.blocks)


@cache
def _espeak_library() -> _Espeak:
    return _Espeak()


def _espeak(voice: Voice, words: list[str]) -> Speech:
    espeak = _espeak_library()
    samples = espeak.speak(voice, " ".join(words))
    rate = espeak.sample_rate
    # A phoneme's event is its start: its end is the next one's start.
    starts = [(s / rate, symbol) for kind, s, _, symbol in espeak.events if kind == _PHONEME]
    ends = [start for start, _ in starts[1:]] + [len(samples) / rate]
    phones = [(_plain(symbol), end) for (_, symbol), end in zip(starts, ends, strict=True)]
    # An event without a place in the text is left over from another sentence.
    events = {at: s / rate for kind, s, at, _ in espeak.events if kind == _WORD and at > 0}
    return Speech(samples.astype(np.float32) / 32768, rate, _ends(words, events, phones), phones)


def _plain(symbol: str) -> str:
    """Silence has several symbols; stress and length say nothing of the sound."""
    symbol = symbol.strip("',%=:;!|")
    return "_" if not symbol or symbol[0] == "_" else symbol


def _ends(
    words: list[str], events: dict[int, float], phones: list[tuple[str, float]]
) -> list[float]:
    """The end of each word's last sound; a sound is in the word where its middle is.

    Words that are spoken as one (in the) have one event, and share its sounds evenly.

    Args:
        events: start of words, by the number of their first character, from 1.
    """
    starts = list(events.values())
    spans: list[list[float]] = [[] for _ in starts]  # ends of the sounds after each event
    time = 0.0
    for symbol, end in phones:
        span = bisect.bisect_right(starts, (time + end) / 2) - 1
        if symbol != "_" and span >= 0:
            spans[span].append(end)
        time = end
    places = list(accumulate((len(word) + 1 for word in words[:-1]), initial=1))
    groups = [bisect.bisect_right(list(events), place) - 1 for place in places]
    ends = []
    for index, group in enumerate(groups):
        sounds, size = spans[group], groups.count(group)
        nth = index - groups.index(group) + 1
        if group < 0 or len(sounds) < size:
            raise SpeechError(f"espeak-ng did not say all of {words}")
        ends.append(sounds[len(sounds) * nth // size - 1])
    return ends


# --- flite: flite.h ---

FLITE_VOICES = ("cmu_us_awb", "cmu_us_kal16", "cmu_us_rms", "cmu_us_slt")


class _Wave(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_char_p),
        ("sample_rate", ctypes.c_int),
        ("num_samples", ctypes.c_int),
        ("num_channels", ctypes.c_int),
        ("samples", ctypes.POINTER(ctypes.c_short)),
    )


class _VoiceHead(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("features", ctypes.c_void_p))


class _Flite:
    """The library with its voices, opened once a process."""

    def __init__(self) -> None:
        self.library = library = _library("libflite.so.1", "flite")
        pointer, text, real = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_float
        for name, result, arguments in (
            ("flite_synth_text", pointer, (text, pointer)),
            ("utt_wave", ctypes.POINTER(_Wave), (pointer,)),
            ("utt_relation", pointer, (pointer, text)),
            ("relation_head", pointer, (pointer,)),
            ("item_next", pointer, (pointer,)),
            ("ffeature_string", text, (pointer, text)),
            ("ffeature_float", real, (pointer, text)),
            ("get_param_float", real, (pointer, text, real)),
            ("feat_set_float", None, (pointer, text, real)),
            ("delete_utterance", None, (pointer,)),
        ):
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        library.flite_init()
        for part in ("usenglish", "cmulex"):
            _library(f"libflite_{part}.so.1", "flite")
        self.voices = {name: self._register(name) for name in FLITE_VOICES}
        self.pitches = {
            name: library.get_param_float(self._features(voice), b"int_f0_target_mean", 0.0)
            for name, voice in self.voices.items()
        }

    def _register(self, name: str) -> int:
        register = getattr(_library(f"libflite_{name}.so.1", "flite"), f"register_{name}")
        register.restype = ctypes.c_void_p
        return int(register(None))

    @staticmethod
    def _features(voice: int) -> int:
        return int(_VoiceHead.from_address(voice).features)

    def speak(self, voice: Voice, text: str) -> Speech:
        library, pointer = self.library, self.voices[voice.name]
        features = self._features(pointer)
        library.feat_set_float(features, b"duration_stretch", 1 / voice.rate)
        if self.pitches[voice.name]:
            library.feat_set_float(
                features, b"int_f0_target_mean", self.pitches[voice.name] * voice.pitch
            )
        utterance = library.flite_synth_text(text.encode(), pointer)
        try:
            wave = library.utt_wave(utterance).contents
            rate = int(wave.sample_rate)
            samples = np.ctypeslib.as_array(wave.samples, (wave.num_samples,)).copy()
            phones = [
                (
                    library.ffeature_string(item, b"name").decode(),
                    library.ffeature_float(item, b"end"),
                )
                for item in self._items(utterance, b"Segment")
            ]
            last = b"R:SylStructure.daughtern.daughtern.R:Segment.end"
            ends = [library.ffeature_float(item, last) for item in self._items(utterance, b"Word")]
        finally:
            library.delete_utterance(utterance)
        phones = [("_" if symbol == "pau" else symbol, end) for symbol, end in phones]
        return Speech(samples.astype(np.float32) / 32768, rate, ends, phones)

    def _items(self, utterance: int, relation: bytes) -> list[int]:
        items = []
        item = self.library.relation_head(self.library.utt_relation(utterance, relation))
        while item:
            items.append(item)
            item = self.library.item_next(item)
        return items


@cache
def _flite_library() -> _Flite:
    return _Flite()


def _flite(voice: Voice, words: list[str]) -> Speech:
    speech = _flite_library().speak(voice, " ".join(words))
    if len(speech.word_ends) != len(words):
        raise SpeechError(f"{voice.name} said {len(speech.word_ends)} words of {words}")
    return speech


# --- festival: its command ---


def _festival(voice: Voice, words: list[str]) -> Speech:
    """No times: festival's voices are only tested with."""
    with tempfile.TemporaryDirectory() as folder:
        wave = Path(folder, "speech.wav")
        script = Path(folder, "speech.scm")
        script.write_text(
            f"(voice_{voice.name})\n(Parameter.set 'Duration_Stretch {1 / voice.rate:.3f})\n"
            f'(set! u (Utterance Text "{" ".join(words)}"))\n(utt.synth u)\n'
            f'(utt.save.wave u "{wave}" \'riff)\n'
        )
        try:
            subprocess.run(["festival", "-b", str(script)], check=True, capture_output=True)
        except FileNotFoundError as error:
            raise _missing("festival", error) from None
        samples, rate = soundfile.read(wave, dtype="float32")
    return Speech(samples, rate, [], [])
