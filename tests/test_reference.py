"""What is kept of the model's own run over a recording."""

from __future__ import annotations

import json

import pytest
import torch

from tests.factory import SPEECH
from tests.sessions import lively_checkpoint
from voxtral_build.errors import BuildError
from voxtral_build.runtime.eager import eager_artifact
from voxtral_build.runtime.reference import Reference, load_references
from voxtral_build.runtime.session import OfflineSession
from voxtral_build.settings import Settings
from voxtral_build.sound import read
from voxtral_build.steps import reference
from voxtral_build.variants import Variant

PROMPT = 39


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("reference") / "speech.safetensors"
    reference.run(
        checkpoint=lively_checkpoint(), delay_tokens=6, audio=[SPEECH], clips=None, output=path
    )
    return path


def test_it_says_what_a_session_says(file):
    """A token at a time, with caches, against whole sequences, a layer at a time."""
    (kept,) = load_references(file).values()
    artifact = eager_artifact(lively_checkpoint(), "offline", Settings(max_seq_len=256))
    tokens = OfflineSession(artifact).transcribe(read(SPEECH, 16_000).samples)
    assert kept.top_ids[:, 0].tolist() == [token.id for token in tokens]
    assert kept.ids.tolist()[PROMPT:] == kept.top_ids[:-1, 0].tolist()
    assert kept.ids.tolist()[:PROMPT] == artifact.tokens.prompt(6)
    assert kept.audio.shape == (len(kept.ids), 128)
    (file.parent / "plain").touch()
    assert file.stat().st_mode == (file.parent / "plain").stat().st_mode
    # Much smaller than the logits.
    assert file.stat().st_size < 0.2 * len(kept.ids) * 1280 * 4


def made_of(logits):
    length = len(logits) + 1
    audio = torch.zeros(1, length, 4)
    whole = torch.cat((torch.zeros(1, logits.shape[1]), logits)).unsqueeze(0)
    return Reference.of(audio, [1] * length, whole, prompt=2)


def test_divergence_where_all_is_kept():
    """Of 32 outputs all are kept: the divergence by its definition."""
    generator = torch.Generator().manual_seed(0)
    ours, theirs = (3 * torch.randn(7, 32, generator=generator) for _ in range(2))
    p, q = ours.double().softmax(-1), theirs.double().softmax(-1)
    wanted = (p * (p / q).log()).sum(-1).mean()
    assert made_of(ours).divergence(theirs) == pytest.approx(float(wanted), rel=1e-4)
    assert made_of(ours).divergence(ours) == pytest.approx(0, abs=1e-6)


def test_divergence_is_never_more_than_the_true_one():
    generator = torch.Generator().manual_seed(1)
    ours, theirs = (3 * torch.randn(7, 1000, generator=generator) for _ in range(2))
    p, q = ours.double().softmax(-1), theirs.double().softmax(-1)
    true = float((p * (p / q).log()).sum(-1).mean())
    assert 0.4 * true < made_of(ours).divergence(theirs) <= true + 1e-6
    # A shift of all logits changes no probability.
    assert made_of(ours).divergence(ours + 5) == pytest.approx(0, abs=1e-5)


def test_top1_agreement():
    ours = torch.zeros(4, 40)
    ours[range(4), [3, 5, 7, 9]] = 1.0
    theirs = torch.zeros(4, 40)
    theirs[range(4), [3, 6, 7, 9]] = 1.0
    assert made_of(ours).top1_agreement(theirs) == 0.75


@pytest.mark.lowering
def test_what_quantization_costs(factory, tmp_path):
    """float32 costs nothing; a report says what the others cost, in both modes."""
    reports = {}
    for scheme in ("none", "8da4w"):
        for mode in ("offline", "streaming"):
            variant = Variant("xnnpack", "fp32", scheme, mode)
            factory.validate(variant, tmp_path / "report.json")
            reports[scheme, mode] = json.loads((tmp_path / "report.json").read_text())
    for mode in ("offline", "streaming"):
        exact = reports["none", mode]["against_float32"]
        assert exact["audio_cosine"] == pytest.approx(1, abs=1e-6)
        assert (exact["top1_agreement"], exact["token_agreement"]) == (1, 1)
        assert exact["divergence"] == pytest.approx(0, abs=1e-5)
        speech = reports["none", mode]["speech"]
        assert speech["text"] == speech["text_float32"]
        rounded = reports["8da4w", mode]["against_float32"]
        assert 0.9 < rounded["audio_cosine"] < 0.99999
        assert rounded["divergence"] > 1e-5

    other = tmp_path / "other.safetensors"
    reference.run(
        checkpoint=factory.checkpoint, delay_tokens=9, audio=[SPEECH], clips=None, output=other
    )
    with pytest.raises(BuildError, match="the reference is not of this audio"):
        factory.validate(variant, tmp_path / "report.json", reference=other)
