"""The demo's data: words, tokens, voices, and what the model should answer when."""

from __future__ import annotations

import random
import subprocess
import sys

import numpy as np
import pytest
import soundfile
import torch

from demo import mixing
from demo.examples import IGNORED, Examples, answer
from demo.language import WORDS, held_out, merges, sentence
from demo.mixing import RATE, Recording, joined, say, training_recording
from demo.recordings import NEW_VOICES, known_voice, new_synthesizer, spoken
from demo.student import MERGES, VOCABULARY, write_tokenizer
from demo.synthesizers import FLITE_VOICES, Voice, speak
from demo.voices import ACCENTS, NEW_ACCENT, NEW_SYNTHESIZER, NEW_VARIANTS, VARIANTS, training_voice
from voxtral_build.clips import read_clips
from voxtral_build.errors import BuildError
from voxtral_build.model.config import AudioParams
from voxtral_build.text import Vocabulary
from voxtral_build.tokenizer import StreamingTokens, check_tokenizer

PAD, WORD = 32, 33
WORDS_OF = ["set", "my", "alarm", "at", "seven", "monday", "evening"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def examples(tokenizer):
    return Examples(tokenizer, ["_", "fs", "feh", "ft"], AudioParams(), seed=0)


# --- words and tokens ---


def test_sentences():
    rng = random.Random(0)
    sentences = [sentence(rng) for _ in range(5000)]
    assert {len(words) for words in sentences} == set(range(1, 13))
    assert {word for words in sentences for word in words} == set(WORDS)
    assert len(WORDS) > 150
    long = [list(words) for words in {tuple(words) for words in sentences} if len(words) > 2]
    assert np.mean([held_out(words) for words in long]) == pytest.approx(0.1, abs=0.02)
    assert not any(held_out(words) for words in sentences if len(words) < 3)


def test_every_piece_merges_from_two_before_it():
    known = {bytes([value]) for value in range(256)}
    for piece in merges(MERGES):
        assert piece not in known
        assert any(piece[:i] in known and piece[i:] in known for i in range(1, len(piece)))
        known.add(piece)


def test_tokenizer(tokenizer):
    check_tokenizer(tokenizer, VOCABULARY)
    vocabulary = Vocabulary.load(tokenizer)
    lengths = []
    for word in WORDS:
        pieces = vocabulary.encode(f" {word}")
        assert b"".join(map(vocabulary.piece, pieces)).decode() == f" {word}"
        lengths.append(len(pieces))
    # Nearly all words are one piece, and a few are several, as in any language.
    assert 0.9 < lengths.count(1) / len(WORDS) < 1


def test_mistral_common_reads_the_tokenizer(tokenizer):
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    theirs, ours = Tekkenizer.from_file(tokenizer), Vocabulary.load(tokenizer)
    for text in (" set my alarm at seven", " february snow", " coffee"):
        ids = ours.encode(text)
        assert theirs.decode(ids) == text
        assert theirs.encode(text, bos=False, eos=False) == ids


# --- what the model should answer ---


def test_answer(tokenizer):
    tokens = StreamingTokens.load(tokenizer)
    # Frames end at 0.08, 0.16, ...: 0.30 s is in frame 3, 0.35 in frame 4, 0.56 opens frame 7.
    words = [([1500], 0.30), ([1501, 1502], 0.35), ([1503], 0.56)]
    got = answer(words, tokens, left_pad=4, delay=2, length=20)
    said = [PAD] * 9 + [WORD, 1500, WORD, 1501, 1502, WORD, 1503] + [PAD] * 4
    assert got == said
    assert answer(words, tokens, left_pad=4, delay=2, length=13) == said[:13]
    later = answer(words, tokens, left_pad=8, delay=5, length=27)
    assert later == [PAD] * 7 + said


def test_an_example(examples):
    batch = examples.batch(0, 560, hardness=(1.0, 1.0), disturbance=0.1)
    count, length = batch.ids.shape
    assert count == 560 // length
    assert batch.mel.shape == (count, 128, 8 * length)
    assert batch.phones.shape == (count, 4 * length)
    for i in range(count):
        ids, targets = batch.ids[i].tolist(), batch.targets[i].tolist()
        start = targets.count(IGNORED)
        left_pad = start - int(batch.delays[i])
        assert targets[:start] == [IGNORED] * start
        assert ids[: start + 1] == [1] + [PAD] * start  # the model's own prompt
        # Silence before the audio: the floor of the log-mel in every bin.
        assert torch.allclose(batch.mel[i, :, : 8 * left_pad - 2], torch.tensor(-0.625))
        # Each output goes back in, but for the pieces that were disturbed.
        told, said = ids[start + 1 :], targets[start:-1]
        different = [t for t, s in zip(told, said, strict=True) if t != s]
        assert all(token >= 1256 for token in different)
        assert len(different) < max(6, 0.4 * sum(s >= 1000 for s in said))
        # A piece never comes without [STREAMING_WORD] or another piece before it.
        for before, token in zip(targets[start - 1 :], targets[start:], strict=False):
            assert token < 1000 or before in (WORD, IGNORED) or before >= 1000


def test_the_same_number_makes_the_same_words(examples):
    first, again = (examples.batch(5, 560, (0.0, 1.0), 0.1) for _ in range(2))
    assert (first.delays == again.delays).all()
    pieces = [batch.targets[batch.targets >= 1000].tolist() for batch in (first, again)]
    assert len(pieces[0]) > 40
    # A word's time may fall into the next 80 ms: espeak-ng's flutter is its own.
    assert np.mean([a == b for a, b in zip(*pieces, strict=False)]) > 0.5


def test_sounds_are_named_80_ms_later(examples):
    phones = [("_", 0.10), ("fs", 0.30), ("feh", 0.50), ("ft", 0.60)]
    labels = examples.sounds(Recording(np.zeros(0), [], phones), left_pad=2, length=12).tolist()
    # Frames of 20 ms, labelled by what was heard 80 ms before their middle.
    expected = []
    for frame in range(48):
        time = (frame + 0.5) * 0.02 - 0.08 - 0.16
        passed = sum(time > end for end in (0.10, 0.30, 0.50, 0.60))
        expected.append([0, 1, 2, 3, 0][passed])
    assert labels == expected


# --- voices ---


@pytest.mark.parametrize(
    "voice",
    [
        Voice("espeak", "gmw/en-US+f3"),
        Voice("espeak", "gmw/en-GB-x-rp+m3", rate=1.3, pitch=0.7),
        *(Voice("flite", name) for name in FLITE_VOICES),
        Voice("flite", "cmu_us_slt", rate=0.8, pitch=1.3),
    ],
    ids=lambda voice: voice.name,
)
def test_times_of_words(voice):
    speech = speak(voice, WORDS_OF)
    assert len(speech.word_ends) == len(WORDS_OF)
    assert speech.word_ends == sorted(speech.word_ends)
    ends = [end for _, end in speech.phones]
    assert ends == sorted(ends)
    assert set(speech.word_ends) <= set(ends)
    # The last word ends where the sound does.
    loud = np.flatnonzero(np.abs(speech.samples) > 0.02 * np.abs(speech.samples).max())
    assert speech.word_ends[-1] == pytest.approx(loud[-1] / speech.sample_rate, abs=0.08)
    # What comes before a word's end is a good part of saying it alone.
    alone = speak(voice, WORDS_OF[:3])
    assert speech.word_ends[2] == pytest.approx(alone.word_ends[2], rel=0.35)


def test_words_that_are_spoken_as_one_share_their_sounds():
    words = ["turn", "on", "the", "light", "in", "the", "kitchen", "now"]
    for accent in ACCENTS:
        speech = speak(Voice("espeak", accent), words)
        assert len(speech.word_ends) == len(words)
        assert (np.diff(speech.word_ends) > 0.03).all()


def test_no_sentence_is_lost():
    rng = random.Random(1)
    for _ in range(150):
        words = sentence(rng)
        assert len(speak(training_voice(rng, 1.0), words).word_ends) == len(words)


def test_rate_and_pitch():
    for name in ("gmw/en-US+m3", "cmu_us_rms"):
        synthesizer = "flite" if name.startswith("cmu") else "espeak"
        lengths = [
            len(speak(Voice(synthesizer, name, rate=rate), WORDS_OF).samples)
            for rate in (0.8, 1.0, 1.25)
        ]
        assert lengths[0] > 1.1 * lengths[1] > 1.2 * lengths[2]
    low, high = (
        _pitch(speak(Voice("espeak", "gmw/en-US+m3", pitch=pitch), ["zero"]))
        for pitch in (0.6, 1.5)
    )
    assert high > 1.15 * low


def _pitch(speech):
    """Hertz of the strongest period between 4 and 16 ms of the loudest 100 ms."""
    rate = speech.sample_rate
    middle = int(np.convolve(speech.samples**2, np.ones(rate // 10), "same").argmax())
    part = speech.samples[middle - rate // 20 : middle + rate // 20]
    period = np.correlate(part, part, "full")[len(part) - 1 :]
    first, last = int(0.004 * rate), int(0.016 * rate)
    return rate / (first + int(period[first:last].argmax()))


def test_a_voice_that_does_not_exist():
    with pytest.raises(BuildError, match="no voice gmw/en-XX"):
        speak(Voice("espeak", "gmw/en-XX"), ["one"])


def test_a_synthesizer_that_is_not_installed(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(BuildError, match="apt-get install espeak-ng flite festival"):
        spoken(random.Random(0), new_synthesizer, 1)


def test_new_voices_are_never_trained_with():
    rng = random.Random(0)
    trained = {training_voice(rng, 1.0) for _ in range(3000)}
    names = {voice.name for voice in trained}
    assert {voice.synthesizer for voice in trained} == {"espeak", "flite"}
    accents = {name.partition("+")[0] for name in names if "/" in name}
    assert accents == set(ACCENTS)
    assert not any(name.endswith(f"+{variant}") for name in names for variant in NEW_VARIANTS)
    assert len(VARIANTS) > 60
    for kind, voice_of in NEW_VOICES.items():
        for _ in range(50):
            voice = voice_of(rng)
            accent, _, variant = voice.name.partition("+")
            new = {
                "variants": accent in ACCENTS and variant in NEW_VARIANTS,
                "accent": accent == NEW_ACCENT and variant in VARIANTS,
                "synthesizer": voice.name == NEW_SYNTHESIZER.name,
            }
            assert new[kind], voice


# --- recordings ---


def test_speech_is_trimmed_and_its_times_with_it():
    recording = say(Voice("flite", "cmu_us_slt"), WORDS_OF)
    assert np.abs(recording.samples[:800]).max() > 0.001
    length = len(recording.samples) / RATE
    assert recording.words[-1][1] == pytest.approx(length, abs=0.12)
    slower = say(Voice("flite", "cmu_us_slt"), WORDS_OF, stretch=1.1)
    assert len(slower.samples) == pytest.approx(1.1 * len(recording.samples), rel=0.01)
    assert slower.words[3][1] == pytest.approx(1.1 * recording.words[3][1], rel=0.02)


def test_joined_recordings_keep_their_times_and_lose_what_is_cut():
    tone = Recording(np.ones(RATE, np.float32), [("one", 0.5), ("two", 1.0)], [("fw", 1.0)])
    whole = joined([(0.5, tone), (2.0, tone)], 2.75)
    assert whole.words == [("one", 1.0), ("two", 1.5), ("one", 2.5)]
    assert whole.phones == [("_", 0.5), ("fw", 1.5), ("_", 2.0), ("fw", 3.0)]
    at = np.flatnonzero(np.diff(whole.samples)) + 1
    assert at.tolist() == [8000, 24000, 32000]
    assert len(whole.samples) == 44000


def test_training_recordings():
    rng = random.Random(3)
    recordings = [
        training_recording(rng, 6.0, lambda rng: training_voice(rng, 1.0), 1.0) for _ in range(30)
    ]
    assert all(recording.samples.shape == (6 * RATE,) for recording in recordings)
    assert all(np.abs(recording.samples).max() <= 1 for recording in recordings)
    assert all(end <= 6 for recording in recordings for _, end in recording.words)
    assert any(not recording.words for recording in recordings)
    counts = [len(recording.words) for recording in recordings]
    assert np.mean(counts) > 4
    clean = training_recording(rng, 6.0, lambda rng: training_voice(rng, 0.0), 0.0)
    assert (clean.samples == 0).any()


@pytest.mark.parametrize("seed", range(4))
def test_noise_and_rooms_are_finite_and_scaled(seed):
    rng = random.Random(seed)
    sound = mixing.noise(rng, 30_000)
    assert sound.shape == (30_000,)
    assert np.sqrt((sound**2).mean()) == pytest.approx(1, abs=1e-3)
    speech = say(known_voice(rng), ["seven"]).samples
    heard = mixing.room(rng, speech)
    assert heard.shape == speech.shape
    assert np.isfinite(heard).all()


def test_the_clips_are_what_the_script_makes(repository, tmp_path):
    """In a process of its own: espeak-ng's flutter depends on all that it has said before."""
    command = [sys.executable, "-m", "demo.recordings", "--clips", str(tmp_path)]
    subprocess.run(command, cwd=repository, check=True)
    shipped, made = (read_clips(folder) for folder in (repository / "demo" / "clips", tmp_path))
    assert len(shipped) == 10
    for clip, again in zip(shipped, made, strict=True):
        assert (clip.path.name, clip.text) == (again.path.name, again.text)
        samples, rate = soundfile.read(clip.path)
        assert rate == RATE
        # To the bit on one machine; elsewhere, filters may add up in another order.
        np.testing.assert_allclose(soundfile.read(again.path)[0], samples, atol=1e-3)
