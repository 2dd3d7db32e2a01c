"""Sessions against transformers, against each other, and at the edges of audio."""

from __future__ import annotations

import dataclasses
import resource
import time

import numpy as np
import pytest
import soundfile
import soxr
import torch

from tests import transformers_reference
from tests.sessions import (
    FIRST,
    eager_artifact,
    letters,
    lively_checkpoint,
    scripted_artifact,
    speech,
)
from voxtral_build import sound
from voxtral_build.errors import BuildError
from voxtral_build.runtime.artifact import Artifact
from voxtral_build.runtime.session import OfflineSession, StreamingSession, as_samples
from voxtral_build.settings import Settings
from voxtral_build.variants import Variant

STEP = 1280


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Steps are so small that threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def offline() -> Artifact:
    return eager_artifact("offline")


@pytest.fixture(scope="module")
def streaming() -> Artifact:
    return eager_artifact("streaming")


def stream(session: StreamingSession, samples, size: int) -> list:
    tokens = []
    for start in range(0, len(samples), size):
        tokens += session.feed_audio(samples[start : start + size])
    return tokens + session.flush()


def sounds() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 0.05, 30_000).astype(np.float32)
    return {
        "speech": speech(),
        "its end": speech(2.31, 5.0),
        "quiet": speech(0.5, 3.0) * np.float32(0.02),
        "backwards": speech()[::-1].copy(),
        "noise": noise,
        "silence": np.zeros(20_001, np.float32),
    }


# --- against transformers ----------------------------------------------------------------


@pytest.mark.parametrize("name", sounds())
def test_offline_tokens_are_those_that_transformers_generates(offline, name):
    samples = sounds()[name]
    tokens = list(OfflineSession(offline).transcribe(samples))
    reference = transformers_reference.Reference(lively_checkpoint())
    # mistral-common's padding, written out.
    right = -len(samples) % STEP + 17 * STEP
    mel = transformers_reference.log_mel(np.pad(samples, (32 * STEP, right)))
    expected = reference.generate(mel, [1] + [32] * 38, delay_tokens=6)
    assert [token.id for token in tokens][:-1] == expected
    assert [token.position for token in tokens] == list(range(FIRST, mel.shape[-1] // 8))
    if name == "speech":
        assert len(set(expected)) > 5


def test_eos_does_not_end_a_stream():
    script = {FIRST + 2: 2, **letters("on", FIRST + 5)}
    for mode, session in (("offline", OfflineSession), ("streaming", StreamingSession)):
        running = session(scripted_artifact(mode, script))
        if mode == "offline":
            tokens = list(running.transcribe(speech(0, 1)))
        else:
            tokens = stream(running, speech(0, 1), 500)
        assert len(tokens) == 13 + 11
        assert tokens[2].id == 2
        assert tokens[5].id == 1000 + ord("o")


# --- kinds of sound ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "rate", "channels", "subtype", "container", "agreement"),
    [
        ("a.flac", 16_000, 1, "PCM_16", "FLAC", 1.0),
        ("a.extensible", 16_000, 1, "PCM_16", "WAVEX", 1.0),
        # Resampled there and back, the upper band differs a little, and with it near ties.
        ("a.wav", 48_000, 2, "PCM_24", "WAV", 0.9),
        ("a.dat", 44_100, 1, "FLOAT", "WAV", 0.9),
    ],
)
def test_other_kinds_of_sound_give_the_same_tokens(
    offline, tmp_path, name, rate, channels, subtype, container, agreement
):
    samples = speech()
    other = samples if rate == 16_000 else soxr.resample(samples, 16_000, rate)
    frames = np.stack([other] * channels, axis=1)
    soundfile.write(tmp_path / name, frames, rate, subtype, format=container)
    heard = sound.read(tmp_path / name, 16_000)
    assert heard.warnings == ()
    session = OfflineSession(offline)
    expected = [token.id for token in session.transcribe(samples)]
    tokens = [token.id for token in session.transcribe(heard.samples)]
    assert len(set(expected)) > 5
    assert len(tokens) == len(expected)
    same = sum(a == b for a, b in zip(tokens, expected, strict=True)) / len(expected)
    assert same >= agreement


# --- streaming ---------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 160, 1279, 1280, 1281, 3200, 10**9])
def test_tokens_do_not_depend_on_how_the_audio_is_cut(offline, streaming, size):
    samples = speech(0, 2.5)
    whole = list(OfflineSession(offline).transcribe(samples))
    assert len({token.id for token in whole}) > 3
    assert stream(StreamingSession(streaming), samples, size) == whole


@pytest.mark.parametrize("name", sounds())
def test_streaming_equals_offline(offline, streaming, name):
    samples = sounds()[name]
    whole = list(OfflineSession(offline).transcribe(samples))
    assert stream(StreamingSession(streaming), samples, 777) == whole


def test_streaming_mel_equals_that_of_the_whole_recording():
    samples, heard = speech(0, 3.3), []
    artifact = scripted_artifact("streaming", {})
    encode = artifact.methods.encode

    def listen(mel, positions):
        heard.append((mel, positions))
        return encode(mel, positions)

    artifact.methods = dataclasses.replace(artifact.methods, encode=listen)
    session = StreamingSession(artifact)
    stream(session, samples, 999)
    padded = session.protocol.pad(torch.from_numpy(samples), STEP)
    whole = artifact.preprocess(padded)
    streamed = torch.cat([mel for mel, _ in heard], dim=-1)
    torch.testing.assert_close(streamed, whole, atol=1e-5, rtol=0)
    positions = torch.cat([positions for _, positions in heard])
    assert torch.equal(positions, torch.arange(len(positions)))


def test_tokens_come_as_soon_as_their_audio_has(streaming):
    """The first needs 7 tokens of audio, and the 40 samples that the last window sees."""
    session = StreamingSession(streaming)
    assert session.feed_audio(speech()[: 7 * STEP + 39]) == []
    (token,) = session.feed_audio(speech()[7 * STEP + 39 : 7 * STEP + 40])
    assert token.position == FIRST
    assert session.seconds(token.position) == 0.0
    assert session.seconds(FIRST + 5) == pytest.approx(0.4)


def test_the_silence_before_the_audio_can_be_heard_ahead():
    calls = []
    artifact = scripted_artifact("streaming", {})
    encode = artifact.methods.encode
    artifact.methods = dataclasses.replace(
        artifact.methods, encode=lambda *inputs: calls.append(1) or encode(*inputs)
    )
    session = StreamingSession(artifact)
    session.feed_audio([])
    assert len(calls) == 31  # the last token's window reaches into the audio


def test_sessions_one_after_another_start_afresh(streaming):
    first, second = speech(0, 2), speech(2, 4)
    alone = [stream(StreamingSession(streaming), samples, 1280) for samples in (first, second)]
    assert alone[0] != alone[1]
    session = StreamingSession(streaming)
    session.feed_audio(speech(1, 3))  # and never flushed
    session.reset()
    assert stream(session, first, 3200) == alone[0]
    session.reset()
    assert stream(session, second, 3200) == alone[1]
    assert stream(StreamingSession(streaming), first, 100) == alone[0]


def test_a_second_session_on_the_same_caches_is_told(streaming):
    first = StreamingSession(streaming)
    first.feed_audio(speech(0, 1))
    second = StreamingSession(streaming)
    second.feed_audio(speech(0, 1))
    with pytest.raises(BuildError, match="in use by another session"):
        first.feed_audio(speech(1, 2))
    first.reset()
    first.feed_audio(speech(0, 1))


def test_after_flush(streaming):
    session = StreamingSession(streaming)
    session.feed_audio(speech(0, 1))
    assert session.flush()
    assert session.flush() == []
    with pytest.raises(BuildError, match="call reset"):
        session.feed_audio(speech(0, 1))


def test_an_interrupted_feed_can_be_flushed():
    """Ctrl-C in the middle: the audio stays in step."""
    artifact = scripted_artifact("streaming", letters("abcdefghij", FIRST))
    decode, interrupt = artifact.methods.decode, [FIRST + 4]

    def sometimes(embeds, positions):
        if positions[0] == interrupt[0]:
            interrupt[0] = -1
            raise KeyboardInterrupt
        return decode(embeds, positions)

    artifact.methods = dataclasses.replace(artifact.methods, decode=sometimes)
    session = StreamingSession(artifact)
    with pytest.raises(KeyboardInterrupt):
        session.feed_audio(speech(0, 3))
    assert session.flush()[-1].position < 32 + 38 + 17


# --- edges -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("samples", "tokens"),
    [(0, 0), (1, 12), (1279, 12), (1280, 12), (1281, 13), (160_000, 136)],
)
def test_lengths(offline, streaming, samples, tokens):
    zeros = np.zeros(samples, np.float32)
    whole = list(OfflineSession(offline).transcribe(zeros))
    assert len(whole) == tokens
    assert stream(StreamingSession(streaming), zeros, 5000) == whole


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (np.array([0.0, np.nan, np.nan], np.float32), "nan at sample 1, 2 such in 3"),
        (np.array([np.inf], np.float32), "inf at sample 0"),
        (np.array([0.0, -3000.0]), "-3000.0 at sample 1"),
        (np.zeros(4, np.int16), "int16"),
        (np.zeros((4, 2), np.float32), r"\[4, 2\]"),
        (np.float32(1), r"shape \[\]"),
    ],
)
def test_what_is_no_audio_is_refused_and_does_no_harm(offline, streaming, samples, message):
    with pytest.raises(BuildError, match=message):
        OfflineSession(offline).transcribe(samples)
    good = speech(0, 1)
    session = StreamingSession(streaming)
    tokens = session.feed_audio(good[:9000])
    with pytest.raises(BuildError, match=message):
        session.feed_audio(samples)
    tokens += session.feed_audio(good[9000:])
    assert tokens + session.flush() == list(OfflineSession(offline).transcribe(good))


def test_samples_of_any_float_kind():
    for samples in ([0.5, -0.5], np.array([0.5, -0.5]), torch.tensor([0.5, -0.5])):
        array = as_samples(samples)
        assert array.dtype == np.float32
        assert array.tolist() == [0.5, -0.5]
    assert as_samples(np.zeros(9, np.float32)[::3]).flags.c_contiguous


def test_a_recording_of_the_longest_length_fits_and_no_longer(offline):
    """max_seq_len 256 less 32 and 17 tokens of silence: 207 tokens, 16.56 s."""
    session = OfflineSession(offline)
    assert len(list(session.transcribe(np.zeros(207 * STEP, np.float32)))) == 218
    with pytest.raises(BuildError, match=r"allowed: 16\.56 s: max_seq_len is 256"):
        session.transcribe(np.zeros(207 * STEP + 1, np.float32))


def test_an_artifact_of_the_other_mode_is_refused(offline, streaming):
    with pytest.raises(BuildError, match="streaming transcription"):
        StreamingSession(offline)
    with pytest.raises(BuildError, match="offline transcription"):
        OfflineSession(streaming)


@pytest.mark.parametrize("delay", [1, 30])
def test_other_delays(delay):
    settings = Settings(max_seq_len=256, delay_tokens=delay)
    samples = speech(0, 1.5)
    whole = list(OfflineSession(eager_artifact("offline", settings)).transcribe(samples))
    assert [whole[0].position, len(whole)] == [32 + delay, 19 + 11]
    streamed = stream(StreamingSession(eager_artifact("streaming", settings)), samples, 1000)
    assert streamed == whole


# --- as ExecuTorch's runner --------------------------------------------------------------


@torch.no_grad()
def test_without_prompt_offline_decodes_as_the_runner(offline):
    """Its loop, written out: BOS first, then a token back in, and text alone at the end."""
    samples, methods = speech(0, 2), offline.methods
    audio = methods.encode(offline.preprocess(torch.from_numpy(samples)))
    expected, previous = [], 1
    for position in range(256):  # 25 of audio, and 500 more, but for max_seq_len
        embeds = methods.embed(torch.tensor([[previous]]))
        if position < audio.shape[1]:
            embeds = embeds + audio[:, position : position + 1]
        logits = methods.decode(embeds, torch.tensor([position]))
        previous = int(logits[0, -1].argmax())
        expected.append((previous, position))
        if previous == 2:
            break
    tokens = list(OfflineSession(offline, prompt="none").transcribe(samples))
    assert tokens == expected


def test_without_prompt_eos_ends_it():
    script = {5: 2, **letters("never", 6)}
    offline = OfflineSession(scripted_artifact("offline", script), prompt="none")
    assert len(list(offline.transcribe(speech()))) == 6
    session = StreamingSession(scripted_artifact("streaming", script), prompt="none")
    assert len(session.feed_audio(speech())) == 6
    assert session.ended
    assert session.feed_audio(speech()) == []
    assert session.flush() == []
    session.reset()
    assert len(session.feed_audio(speech())) == 6


def test_without_prompt_a_stream_hears_its_delay_in_silence(streaming):
    """ceil(samples / step) + delay steps, as the runner's flush makes them."""
    session = StreamingSession(streaming, prompt="none")
    assert len(stream(session, speech(0, 1), 1000)) == 13 + 6


# --- lowered -----------------------------------------------------------------------------


@pytest.mark.lowering
def test_artifacts_transcribe_alike_in_both_modes(lively_factory):
    loaded = {
        mode: Artifact.load(lively_factory.artifact(Variant("xnnpack", "fp32", "none", mode)))
        for mode in ("offline", "streaming")
    }
    session = StreamingSession(loaded["streaming"])
    for samples in (speech(), speech(1, 2), speech()):
        whole = list(OfflineSession(loaded["offline"]).transcribe(samples))
        session.reset()
        assert stream(session, samples, 1281) == whole
    assert len({token.id for token in whole}) > 5


@pytest.mark.lowering
def test_a_long_stream_takes_no_more_memory_and_no_more_time(lively_factory):
    """Two minutes through windows of 20 frames and 16 tokens."""
    folder = lively_factory.artifact(Variant("xnnpack", "fp32", "none", "streaming"))
    session = StreamingSession(Artifact.load(folder))
    samples = speech(0, 5)
    memory, seconds, count = [], [], 0
    for _ in range(24):
        started = time.perf_counter()
        for start in range(0, len(samples), STEP):
            count += len(session.feed_audio(samples[start : start + STEP]))
        seconds.append(time.perf_counter() - started)
        memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    # The first token needs 6 tokens more, the last one 40 samples.
    assert count == 1500 - 7
    assert memory[-1] - memory[3] < 2_000  # KiB
    assert sorted(seconds[-8:])[4] < 2 * sorted(seconds[4:12])[4]
