"""The preprocessors as programs, against transformers' feature extractor."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests import transformers_reference
from tests.models import checkpoint
from voxtral_build import sound
from voxtral_build.errors import PteError
from voxtral_build.metadata import constant_methods
from voxtral_build.model.config import ModelConfig, RuntimeConfig
from voxtral_build.pte.inspect import describe
from voxtral_build.runtime.program import Program
from voxtral_build.settings import Settings
from voxtral_build.steps import preprocessor

pytestmark = pytest.mark.lowering

SPEECH = Path(__file__).parent / "data" / "jfk_5s.wav"
TOKEN = 1280  # samples
MAX_SEQ_LEN = 4096  # tokens, the real model's use
TOLERANCE = 1e-4


def square_wave(hertz: int) -> torch.Tensor:
    """Two seconds at full scale, (N,)."""
    seconds = np.arange(25 * TOKEN) / 16_000
    return torch.from_numpy(np.sign(np.sin(2 * np.pi * hertz * seconds)).astype(np.float32))


def speech() -> torch.Tensor:
    """(N,), N a multiple of a token."""
    samples = torch.from_numpy(sound.read(SPEECH, 16_000).samples)
    return samples[: len(samples) // TOKEN * TOKEN]


SOUNDS = {
    "speech": speech(),
    "speech-20dB": speech() * 0.1,
    "speech-40dB": speech() * 0.01,
    "silence": torch.zeros(10 * TOKEN),
    "square-440Hz": square_wave(440),
    "square-1000Hz": square_wave(1000),  # what it leaves between its lines is rounding
}
EACH_SOUND = pytest.mark.parametrize("samples", SOUNDS.values(), ids=SOUNDS.keys())


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("preprocessors")
    for mode in ("offline", "streaming"):
        preprocessor.run(
            params=checkpoint() / "params.json",
            mode=mode,
            settings=Settings(max_seq_len=MAX_SEQ_LEN),
            output=folder / f"{mode}.pte",
        )
    return folder


@pytest.fixture(scope="module")
def offline(files):
    return Program(files / "offline.pte").method("forward")


@pytest.fixture(scope="module")
def streaming(files):
    return Program(files / "streaming.pte").method("forward")


@pytest.fixture(scope="module")
def constants():
    """What ExecuTorch's runner knows of the windows."""
    config = ModelConfig.load(checkpoint() / "params.json")
    return constant_methods(config, RuntimeConfig.resolve(config, Settings(), "streaming"))


def reference(samples):
    return transformers_reference.log_mel(samples.numpy())


def assert_close(ours, expected):
    torch.testing.assert_close(ours, expected, atol=TOLERANCE, rtol=0)


def stream(preprocess, constants, samples):
    """Frames of a stream, window by window as ExecuTorch's runner makes them."""
    left, right = constants["stft_left_overlap"], constants["stft_right_lookahead"]
    step, skip = constants["step_samples"], constants["mel_skip_frames"]
    assert (left, step, right, skip) == (320, 1280, 40, 2)
    heard = torch.nn.functional.pad(samples, (left, right))  # nothing before; at the end silence
    for start in range(0, len(samples), step):
        mel = preprocess(heard[start : start + left + step + right].contiguous())
        assert mel.shape == (1, 128, 10)
        yield mel[..., skip:]


@EACH_SOUND
def test_a_whole_recording_equals_the_reference(offline, samples):
    assert_close(offline(samples), reference(samples))


@EACH_SOUND
def test_windows_of_a_stream_equal_the_whole(streaming, offline, constants, samples):
    # Silence at both ends, as every session has it: there is nothing to mirror.
    padded = torch.nn.functional.pad(samples, (2 * TOKEN, TOKEN))
    frames = torch.cat(list(stream(streaming, constants, padded)), dim=2)
    assert_close(frames, reference(padded))
    torch.testing.assert_close(frames, offline(padded), atol=1e-6, rtol=0)


def test_a_stream_that_starts_with_sound_differs_by_the_mirrored_frames_alone(streaming, constants):
    frames = torch.cat(list(stream(streaming, constants, speech())), dim=2)
    assert_close(frames[..., 2:-1], reference(speech())[..., 2:-1])


def test_silence_is_exact(offline, streaming):
    assert torch.all(offline(torch.zeros(3 * TOKEN)) == -0.625)
    assert torch.all(streaming(torch.zeros(1640)) == -0.625)


@pytest.mark.parametrize("tokens", [1, 2, 3, 7, 61])
def test_any_number_of_tokens(offline, tokens):
    samples = speech()[20 * TOKEN :][: tokens * TOKEN]
    assert_close(offline(samples.contiguous()), reference(samples))


@pytest.mark.parametrize("length", [2, 160, 1279, 1281, 5000])
def test_a_recording_is_filled_with_silence_to_whole_tokens(offline, length):
    samples = speech()[20 * TOKEN :][:length].contiguous()
    filled = torch.nn.functional.pad(samples, (0, -length % TOKEN))
    assert_close(offline(samples), reference(filled))


def test_the_longest_recording_and_no_longer(offline):
    longest = speech().repeat(70)[: MAX_SEQ_LEN * TOKEN]
    assert_close(offline(longest), reference(longest))
    with pytest.raises(PteError, match="can't be run"):
        offline(torch.zeros(MAX_SEQ_LEN * TOKEN + 1))


def test_no_recording_is_refused(offline):
    with pytest.raises(PteError, match="can't be run"):
        offline(torch.zeros(0))


def test_planned_memory_is_bounded(files):
    """Of each token at once: its samples, one frame with its spectrum, and its mel frames."""
    frame, spectrum, mel = 400, 402, 128
    samples = TOKEN - 160 + frame  # all that its 8 frames see
    token = 4 * samples + 8 * (frame + spectrum) + 4 * 8 * mel  # 8 bytes a float64
    method = describe(files / "offline.pte").methods["forward"]
    assert method.planned_bytes < MAX_SEQ_LEN * token == 67_960_832
    window = describe(files / "streaming.pte").methods["forward"]
    assert window.planned_bytes < 10 * (8 * (frame + 2 * spectrum) + 4 * mel)


def test_the_programs_are_what_a_runtime_without_extras_can_run(files):
    for mode, inputs, outputs in (
        ("offline", (MAX_SEQ_LEN * TOKEN,), (1, 128, MAX_SEQ_LEN * 8)),
        ("streaming", (1640,), (1, 128, 10)),
    ):
        methods = describe(files / f"{mode}.pte").methods
        assert list(methods) == ["forward"]
        method = methods["forward"]
        assert {name.partition("::")[0] for name in method.operators} <= {
            "aten",
            "executorch_prim",
        }
        assert not method.delegates
        ((given,), (made,)) = method.inputs, method.outputs
        assert (given.dtype, given.sizes) == ("float32", inputs)
        assert (made.dtype, made.sizes) == ("float32", outputs)


def test_two_builds_are_the_same(files, tmp_path):
    preprocessor.run(
        params=checkpoint() / "params.json",
        mode="streaming",
        settings=Settings(max_seq_len=64),  # a stream's does not depend on it
        output=tmp_path / "again.pte",
    )
    assert (tmp_path / "again.pte").read_bytes() == (files / "streaming.pte").read_bytes()
