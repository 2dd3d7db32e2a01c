"""The command `transcribe`: sound files, a pipe or a microphone through an artifact."""

from __future__ import annotations

import io
import logging
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from voxtral_build import sound
from voxtral_build.errors import BuildError
from voxtral_build.files import write_text
from voxtral_build.microphone import listen
from voxtral_build.runtime.artifact import Artifact
from voxtral_build.runtime.protocol import Prompt
from voxtral_build.runtime.session import OfflineSession, StreamingSession, Token
from voxtral_build.transcript import Transcriber
from voxtral_build.writers import EXTENSIONS, Collected, Format, Sink, live_sink, render

log = logging.getLogger(__name__)

STDIN = "-"
_PROGRESS_S = 10.0

Samples = npt.NDArray[np.float32]
Session = OfflineSession | StreamingSession


@dataclass(frozen=True)
class Source:
    """Something to transcribe.

    Attributes:
        name: for messages and output.
        path: of a file; None for standard input and the microphone, which are live: they
            come as they are spoken, and an interruption ends them.
    """

    name: str
    path: Path | None = None

    @property
    def live(self) -> bool:
        return self.path is None

    def output(self, folder: Path, output_format: Format) -> Path:
        """Where its transcript goes in `folder`."""
        stem = self.name if self.path is None else self.path.stem
        return folder / (stem + EXTENSIONS[output_format])


MICROPHONE = Source("microphone")


def run(
    *,
    artifact: Path,
    audio: Sequence[str],
    stream: bool,
    output_format: Format,
    delay_ms: int | None,
    prompt: Prompt,
    output: Path | None,
) -> None:
    """Transcribe, to stdout or into a folder.

    Args:
        artifact: an artifact's folder.
        audio: files, folders, `-` for standard input, `microphone` for that.
        stream: print as it goes.
        delay_ms: has to be the artifact's, if given.
        prompt: see `runtime.protocol`.
        output: a folder that gets one file for each source.

    Raises:
        BuildError: a mistake in these, or sources that could not be transcribed; the
            others were.
    """
    if stream and output is not None:
        raise BuildError(
            "--stream prints as it goes, and --output writes files when they are done",
            got="both",
            next_step="leave one out; a stream can be redirected with >",
        )
    sources = _sources(audio)
    _check_output(sources, output, output_format)
    started = time.perf_counter()
    loaded = Artifact.load(artifact)
    log.info("%s: loaded in %.2f s", artifact, time.perf_counter() - started)
    if delay_ms is not None:
        _check_delay(loaded, delay_ms)
    if stream:
        loaded.require("streaming")
    session: Session = (
        OfflineSession(loaded, prompt)
        if loaded.mode == "offline"
        else StreamingSession(loaded, prompt)
    )
    _transcribe_all(session, sources, stream, output_format, output)


def _transcribe_all(
    session: Session,
    sources: Sequence[Source],
    stream: bool,
    output_format: Format,
    output: Path | None,
) -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):  # transcripts are UTF-8, whatever the locale
        sys.stdout.reconfigure(encoding="utf-8")
    failed: list[str] = []
    total = Speed()
    for source in sources:
        try:
            speed = _transcribe_one(session, source, stream, output_format, output)
        except BuildError as error:
            if len(sources) == 1:
                raise
            log.error("%s", error)
            failed.append(source.name)
        else:
            total.audio_s += speed.audio_s
            total.busy_s += speed.busy_s
    if len(sources) > 1:
        log.info("%d files: %s", len(sources) - len(failed), total)
    if failed:
        raise BuildError(
            f"{len(failed)} of {len(sources)} could not be transcribed",
            got=", ".join(failed[:10]) + (", ..." if len(failed) > 10 else ""),
            next_step="read the messages above; the others are done",
        )


# --- sources -----------------------------------------------------------------------------


def _sources(audio: Sequence[str]) -> list[Source]:
    sources: list[Source] = []
    for argument in audio:
        path = Path(argument)
        if argument == STDIN:
            sources.append(Source("stdin"))
        elif argument == MICROPHONE.name:
            sources.append(MICROPHONE)
        elif path.is_dir():
            files = sound.sound_files(path)
            if not files:
                raise BuildError(
                    f"{path} has no sound files",
                    got="a folder without any",
                    allowed="files such as .wav, .flac, .mp3 or .ogg in the folder itself",
                    next_step="name the files, or another folder",
                )
            sources += [Source(str(file), file) for file in files]
        else:
            sources.append(Source(argument, path))
    return sources


def _check_output(sources: Sequence[Source], output: Path | None, output_format: Format) -> None:
    if output is None:
        if len(sources) > 1 and output_format in ("srt", "vtt"):
            raise BuildError(
                f"several files cannot share one {output_format} on stdout",
                got=f"{len(sources)} files",
                allowed="one, or text and json, which have a line for each",
                next_step="give a folder with --output",
            )
        return
    seen: dict[Path, Source] = {}
    for source in sources:
        other = seen.setdefault(source.output(output, output_format), source)
        if other is not source:
            raise BuildError(
                f"two transcripts would have one name in {output}",
                got=f"{other.name} and {source.name}",
                next_step="rename one, or transcribe them into two folders",
            )


def _check_delay(artifact: Artifact, delay_ms: int) -> None:
    token_ms = round(1000 * artifact.token_s)
    built = artifact.delay_tokens * token_ms
    if delay_ms == built:
        return
    tokens, rest = divmod(delay_ms, token_ms)
    raise BuildError(
        f"{artifact.name} has another delay than --delay",
        got=f"{delay_ms} ms",
        allowed=f"{built} ms: the delay is a constant inside text_decoder",
        next_step=f"build one with `delay_tokens: {tokens}` under settings in config/matrix.yaml"
        if tokens > 0 and not rest
        else f"a delay is a multiple of {token_ms} ms; set delay_tokens in config/matrix.yaml",
    )


# --- one source --------------------------------------------------------------------------


@dataclass
class Speed:
    """How long the model took for how much audio, in seconds."""

    audio_s: float = 0.0
    busy_s: float = 0.0

    def __str__(self) -> str:
        text = f"{self.audio_s:.2f} s of audio in {self.busy_s:.2f} s"
        if self.audio_s:
            text += f", real-time factor {self.busy_s / self.audio_s:.3f}"
        return text


def _transcribe_one(
    session: Session,
    source: Source,
    stream: bool,
    output_format: Format,
    output: Path | None,
) -> Speed:
    rate = session.artifact.sample_rate
    pieces, duration = _pieces(source, rate)
    sink = live_sink(output_format, sys.stdout) if stream else Collected()
    speed = _transcribe(session, source, pieces, duration, sink)
    if isinstance(pieces, sound.PcmStream):
        _tell(source.name, (), pieces.warnings)
    if isinstance(sink, Collected):
        text = render(output_format, source.name, sink.text, speed.audio_s, sink.words)
        if output is None:
            print(text, end="", flush=True)
        else:
            write_text(source.output(output, output_format), text)
    log.info("%s: %s", source.name, speed)
    return speed


def _pieces(source: Source, rate: int) -> tuple[Iterable[Samples], float | None]:
    """The source's samples, and its length in seconds where it is known."""
    if source is MICROPHONE:
        return listen(rate), None
    if source.path is None:
        if sys.stdin.isatty():
            raise BuildError(
                "standard input is a terminal",
                allowed="sound: WAV, or mono 16-bit PCM at the model's rate",
                next_step=f"ffmpeg -i IN -ac 1 -ar {rate} -f wav - | voxtral-build transcribe ...",
            )
        piped = sound.stream(sys.stdin.buffer, rate)
        _tell(source.name, piped.notes, ())
        return piped, None
    recording = sound.read(source.path, rate)
    _tell(source.name, recording.notes, recording.warnings)
    return [recording.samples], len(recording.samples) / rate


def _tell(name: str, notes: Sequence[str], warnings: Sequence[str]) -> None:
    for note in notes:
        log.info("%s: %s", name, note)
    for warning in warnings:
        log.warning("%s: %s", name, warning)


def _transcribe(
    session: Session,
    source: Source,
    pieces: Iterable[Samples],
    duration: float | None,
    sink: Sink,
) -> Speed:
    task = _Task(session, source, sink, duration)
    if isinstance(session, OfflineSession):
        _whole(task, session, pieces)
    else:
        _as_it_comes(task, session, pieces)
    task.finish()
    return task.speed


class _Task:
    """One source on its way to its sink: words, the time taken, and progress."""

    def __init__(
        self, session: Session, source: Source, sink: Sink, duration: float | None
    ) -> None:
        artifact = session.artifact
        self.session = session
        self.source = source
        self.speed = Speed()
        self._sink = sink
        self._duration = duration
        self._told = time.perf_counter()
        self._transcriber = Transcriber(
            artifact.vocabulary, artifact.tokens.streaming_word, artifact.token_s
        )

    def heard(self, samples: Samples) -> None:
        self.speed.audio_s += len(samples) / self.session.artifact.sample_rate

    @contextmanager
    def busy(self) -> Iterator[None]:
        """The model works: counts as its time."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.speed.busy_s += time.perf_counter() - started

    def write(self, tokens: Iterable[Token]) -> None:
        for token in tokens:
            seconds = self.session.seconds(token.position)
            self._sink.add(self._transcriber.add(token.id, seconds))
            if time.perf_counter() - self._told > _PROGRESS_S:
                self._tell_progress(seconds)

    def finish(self) -> None:
        self._sink.add(self._transcriber.finish())
        self._sink.finish()

    def interrupted(self) -> None:
        """The end of a live source; elsewhere, of the program."""
        if not self.source.live:
            raise KeyboardInterrupt
        log.info("%s: interrupted; what was heard is written to the end", self.source.name)

    def _tell_progress(self, seconds: float) -> None:
        self._told = time.perf_counter()
        of = f" of {self._duration:.0f} s" if self._duration is not None else ""
        log.info("%s: at %.0f s%s", self.source.name, seconds, of)


def _whole(task: _Task, session: OfflineSession, pieces: Iterable[Samples]) -> None:
    samples = np.zeros(0, dtype=np.float32)
    try:
        for piece in pieces:
            session.require_length(len(samples) + len(piece))
            samples = np.concatenate((samples, piece))
    except KeyboardInterrupt:
        task.interrupted()
    task.heard(samples)
    with task.busy():
        task.write(session.transcribe(samples))


def _as_it_comes(task: _Task, session: StreamingSession, pieces: Iterable[Samples]) -> None:
    session.reset()
    step = session.artifact.step

    def feed(samples: Samples) -> None:
        with task.busy():
            tokens = session.feed_audio(samples)
        task.heard(samples)
        task.write(tokens)

    feed(np.zeros(0, dtype=np.float32))  # the silence before the audio, before it comes
    try:
        for piece in pieces:
            # A token at a time: a pipe may hand over seconds at once.
            for start in range(0, len(piece), step):
                feed(piece[start : start + step])
            if session.ended:
                break
    except KeyboardInterrupt:
        task.interrupted()
    with task.busy():
        rest = session.flush()
    task.write(rest)
