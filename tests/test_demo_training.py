"""The demo's training: the student is the model that is shipped, and a run can be resumed."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from demo import train
from demo.examples import Batch, Examples
from demo.mixing import RATE, Recording
from demo.recordings import write_set
from demo.student import Student, losses, params, write_checkpoint, write_tokenizer
from demo.train import Training, disturbance, hardness, learning_rate, word_weight
from voxtral_build.errors import BuildError
from voxtral_build.model.config import AudioParams, ModelConfig
from voxtral_build.runtime.eager import eager_artifact
from voxtral_build.runtime.greedy import decode_forced
from voxtral_build.settings import Settings
from voxtral_build.weights import check


@pytest.fixture(scope="module")
def batch(tmp_path_factory) -> Batch:
    tokenizer = write_tokenizer(tmp_path_factory.mktemp("tokenizer"))
    return Examples(tokenizer, ["_", "es"], AudioParams(), seed=1).batch(2, 560, (1.0, 1.0), 0.1)


@pytest.fixture(scope="module")
def student() -> Student:
    """Random, with delays that matter, and weights that bf16 holds."""
    torch.manual_seed(0)
    student = Student(ModelConfig.parse(params()), phones=2)
    for name, parameter in student.model.named_parameters():
        if "ada_rms_norm_t_cond.2" in name:
            torch.nn.init.normal_(parameter, std=0.5)
        parameter.data = parameter.data.bfloat16().float()
    return student


@pytest.mark.parametrize("mode", ["offline", "streaming"])
def test_the_student_is_the_model_with_its_caches(tmp_path, student, batch, mode):
    write_checkpoint(student.model, tmp_path)
    check(tmp_path)
    with torch.no_grad():
        wanted, _ = student(batch)
    # In one batch of 56 tokens or more, with windows of 64 tokens and 160 frames.
    for row in range(2):
        delay = int(batch.delays[row])
        methods = eager_artifact(tmp_path, mode, Settings(delay_tokens=delay)).methods
        mel = batch.mel[row : row + 1]
        if mode == "offline":
            audio = methods.encode(mel)
        else:
            audio = torch.cat(
                [
                    methods.encode(
                        mel[..., 8 * i : 8 * i + 8].contiguous(), torch.arange(4 * i, 4 * i + 4)
                    )
                    for i in range(mel.shape[-1] // 8)
                ],
                dim=1,
            )
        got = decode_forced(methods, audio, batch.ids[row].tolist(), prompt=20)
        assert torch.allclose(got[0], wanted[row], atol=2e-4), delay


def test_losses(batch):
    """Of a guess that is even: the logarithm of the number of choices, whatever the weights."""
    text = torch.zeros(*batch.ids.shape, 1696)
    phones = torch.zeros(*batch.phones.shape, 2)
    said, heard = losses(text, phones, batch, silence=32, word_weight=4.0)
    assert said.item() == pytest.approx(np.log(1696), rel=1e-5)
    assert heard.item() == pytest.approx(np.log(2), rel=1e-5)
    # Silence everywhere: right where nothing is said, and wrong at four times the weight.
    text[..., 32] = 100.0
    said, _ = losses(text, phones, batch, silence=32, word_weight=4.0)
    silent, words = (batch.targets == 32).sum(), (batch.targets > 32).sum()
    assert said.item() == pytest.approx((400 * words / (4 * words + silent)).item(), rel=1e-4)


def test_schedules():
    rates = [learning_rate(step, 1000) for step in range(1000)]
    assert max(rates) == pytest.approx(train.PEAK_RATE)
    assert np.argmax(rates) in range(99, 102)
    assert rates[-1] < 1e-4 * train.PEAK_RATE
    assert [hardness(step, 100) for step in (0, 6, 49)] == [(0, 0), (0, 0), (1, 1)]
    assert hardness(15, 95) == pytest.approx((0.515, 0.515), abs=1e-3)
    assert [hardness(step, 100) for step in (50, 99)] == [(0, 1), (0, 1)]
    assert [disturbance(step, 100) for step in (0, 24, 25, 99)] == [0.1, 0.1, 0.3, 0.3]
    assert [word_weight(step, 100) for step in (0, 50, 70, 90)] == pytest.approx([4, 4, 2.5, 1])


def test_an_interrupted_run_goes_on_to_the_same_weights(tmp_path, batch, monkeypatch):
    monkeypatch.setattr(train, "SAVE_EVERY", 1)
    monkeypatch.setattr(train, "phone_symbols", lambda: ["_", "es"])
    whole = Training(4, 0, tmp_path / "whole")
    monkeypatch.setattr(whole, "_batches", lambda: iter([batch] * 4))
    whole.run()
    first = Training(4, 0, tmp_path / "parts")
    monkeypatch.setattr(first, "_batches", lambda: iter([batch] * 2))
    first.run()
    second = Training(4, 0, tmp_path / "parts")
    assert second.step == 2
    monkeypatch.setattr(second, "_batches", lambda: iter([batch] * 2))
    second.run()
    for name, weight in whole.student.state_dict().items():
        assert torch.equal(weight, second.student.state_dict()[name]), name

    with pytest.raises(BuildError) as error:
        Training(5, 0, tmp_path / "parts")
    assert "got:     steps 4, seed 0" in str(error.value)
    assert "allowed: steps 5, seed 0" in str(error.value)


def test_the_commands(tmp_path, repository):
    """What `make demo-train` runs, from synthesizers to a word error rate, some steps long."""

    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-m", *map(str, arguments)],
            cwd=repository,
            capture_output=True,
            text=True,
            check=False,
        )

    checkpoint, work = tmp_path / "checkpoint", tmp_path / "work"
    flags = ("--output", checkpoint, "--work", work)
    trained = run("demo.train", *flags, "--steps", 3)
    assert trained.returncode == 0, trained.stderr
    assert {path.name for path in checkpoint.iterdir()} == {
        "params.json",
        "consolidated.safetensors",
        "tekken.json",
    }
    again = run("demo.train", *flags, "--steps", 3)
    assert "going on after step 3" in again.stderr
    other = run("demo.train", *flags, "--steps", 4)
    assert other.returncode == 2
    assert "is another run's" in other.stderr
    assert "Traceback" not in other.stderr

    clips = tmp_path / "clips"
    write_set({"tone": Recording(np.full(RATE, 0.1, np.float32), [("one", 0.5)])}, clips)
    evaluated = run("demo.evaluate", "--checkpoint", checkpoint, clips)
    assert evaluated.returncode == 0, evaluated.stderr
    assert "\tclips\t1 words\t" in evaluated.stdout
    for wrong in (
        run("demo.train", *flags, "--steps", 0),
        run("demo.evaluate", "--checkpoint", checkpoint, clips, "--delay-tokens", 99),
    ):
        assert wrong.returncode == 2
        assert "allowed:" in wrong.stderr
        assert "Traceback" not in wrong.stderr
    missing = run("demo.evaluate", "--checkpoint", checkpoint, tmp_path / "nowhere")
    assert missing.returncode == 2
    assert "nowhere" in missing.stderr
    assert "Traceback" not in missing.stderr
