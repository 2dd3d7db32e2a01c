"""The checkpoint that the project ships: what it is, and that it understands speech.

Its word error rates on thousands of words are in demo/checkpoint/README.md; here are the
clips, and one more implementation of the model that says the same.
"""

from __future__ import annotations

import functools
import json

import numpy as np
import pytest
import torch

from demo.evaluate import word_errors
from demo.student import params, tekken
from tests import transformers_reference
from voxtral_build import sound
from voxtral_build.checkpoint import FILES
from voxtral_build.clips import read_clips
from voxtral_build.runtime.eager import eager_artifact
from voxtral_build.runtime.protocol import Protocol
from voxtral_build.runtime.session import StreamingSession
from voxtral_build.runtime.words import transcribe
from voxtral_build.settings import Settings
from voxtral_build.tokenizer import StreamingTokens
from voxtral_build.weights import check

RATE, STEP = 16_000, 1280
RIGHT = ("known-voice", "new-variant", "quiet", "to-last-sample")  # without an error
SHORT = (*RIGHT, "flite", "from-first-sample")


@pytest.fixture
def checkpoint(repository):
    return repository / "demo" / "checkpoint"


@pytest.fixture
def clips(repository):
    found = read_clips(repository / "demo" / "clips")
    return {clip.path.stem: (clip.path, clip.text.split()) for clip in found}


@functools.cache
def artifact(checkpoint, mode, delay=6):
    return eager_artifact(checkpoint, mode, Settings(max_seq_len=1024, delay_tokens=delay))


def samples_of(path):
    return sound.read(path, RATE).samples


def test_what_it_is_made_of(checkpoint):
    config, file = check(checkpoint)
    for key, info in file.tensors.items():
        # Every group size of every scheme divides them; a convolution's kernel has 3 taps.
        sizes = info.shape[:2] if "conv_layers" in key else info.shape
        assert all(size % 32 == 0 for size in sizes), key
    assert config.n_heads > config.n_kv_heads > 1
    assert config.encoder.sliding_window < 500
    assert config.sliding_window < 100
    assert json.loads((checkpoint / "params.json").read_text()) == params()
    assert json.loads((checkpoint / "tekken.json").read_text()) == tekken()


def test_it_is_small(checkpoint, repository):
    assert sum(path.stat().st_size for path in checkpoint.iterdir()) < 12e6
    assert sum(path.stat().st_size for path in (repository / "demo" / "clips").iterdir()) < 2e6
    assert {*FILES, "README.md"} == {path.name for path in checkpoint.iterdir()}


@pytest.mark.parametrize("mode", ["offline", "streaming"])
def test_it_understands_the_clips(checkpoint, repository, clips, mode):
    result = word_errors(artifact(checkpoint, mode), repository / "demo" / "clips")
    assert result.spoken == sum(len(words) for _, words in clips.values()) > 150
    assert result.rate < 0.06


def test_it_says_the_same_in_both_modes(checkpoint, clips):
    for name in SHORT:
        path, _ = clips[name]
        offline = transcribe(artifact(checkpoint, "offline"), samples_of(path))
        assert transcribe(artifact(checkpoint, "streaming"), samples_of(path)) == offline


@pytest.mark.parametrize("delay", [2, 6, 12])
def test_transformers_says_the_same(checkpoint, clips, delay):
    """Its own implementation of the model, of the protocol's loop and of the log-mel."""
    reference = transformers_reference.Reference(checkpoint)
    ours = artifact(checkpoint, "offline", delay)
    tokens = StreamingTokens.load(checkpoint / "tekken.json")
    for name in SHORT:
        path, words = clips[name]
        padded = Protocol.reference(tokens, delay).pad(torch.from_numpy(samples_of(path)), STEP)
        mel = transformers_reference.log_mel(padded.numpy())
        text = ours.vocabulary.text(reference.generate(mel, tokens.prompt(delay), delay))
        assert text == transcribe(ours, samples_of(path))
        if delay == 6 and name in RIGHT:
            assert text.split() == words, name


def test_silence_and_noise_have_no_words(checkpoint):
    streaming = artifact(checkpoint, "streaming")
    noise = np.random.default_rng(0).standard_normal(20 * RATE).astype(np.float32)
    assert transcribe(streaming, np.zeros(20 * RATE, np.float32)) == ""
    for level in (0.001, 0.01, 0.1):
        assert transcribe(streaming, level * noise) == ""


def test_words_come_when_they_have_ended(checkpoint, clips):
    """Not before the audio of the delay was heard, and not long after."""
    path, words = clips["to-last-sample"]  # a second of silence, then speech to the end
    streaming = artifact(checkpoint, "streaming")
    session = StreamingSession(streaming)
    samples = samples_of(path)
    written = [
        start / RATE
        for start in range(0, len(samples), STEP)
        for token in session.feed_audio(samples[start : start + STEP])
        if token.id == streaming.tokens.streaming_word
    ]
    flushed = [t.id for t in session.flush()].count(streaming.tokens.streaming_word)
    assert len(written) + flushed == len(words)
    assert flushed >= 1  # the last word ends with the audio: its delay runs out in silence
    assert all(time > 1.0 + 0.4 for time in written)


def test_the_delay_is_heard(checkpoint, clips):
    """The same words, later by as much as the delay is longer."""
    path, words = clips["known-voice"]
    first = {}
    for delay in (2, 6, 12):
        streaming = artifact(checkpoint, "streaming", delay)
        assert transcribe(streaming, samples_of(path)).split()[: len(words)]
        session = StreamingSession(streaming)
        tokens = session.feed_audio(samples_of(path)) + session.flush()
        first[delay] = next(t.position for t in tokens if t.id == streaming.tokens.streaming_word)
    assert abs(first[6] - first[2] - 4) <= 1
    assert abs(first[12] - first[6] - 6) <= 1
