"""Faults planted in artifacts, each of which has to be caught by the gate that is meant for it.

What is planted is what really goes wrong between a checkpoint and a program: in weights, scales,
graphs, caches, kernels, and in which files are put together.
"""

from __future__ import annotations

import shutil

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save, save_file

from tests.factory import SCHEMES, Factory, gates
from tests.models import ONE_LAYER, SETTINGS, checkpoint
from voxtral_build import preprocessor
from voxtral_build.checkpoint import WEIGHTS
from voxtral_build.errors import ValidationError
from voxtral_build.gates import Gate
from voxtral_build.matrix import graph_for
from voxtral_build.model import kv_cache
from voxtral_build.report import Report
from voxtral_build.steps import export
from voxtral_build.steps import preprocessor as preprocessor_step
from voxtral_build.variants import Variant

pytestmark = pytest.mark.lowering

OFFLINE, STREAMING = (Variant("xnnpack", "fp32", "none", mode) for mode in ("offline", "streaming"))
QUANTIZED = Variant("xnnpack", "fp32", "8da4w", "offline")
ENCODE, DECODE, EMBED = 0, 1, 2  # places of a variant's units
# What the methods say together: a fault in one of them may show there, too.
TOGETHER = {
    *("token_agreement", "audio_cosine", "top1_agreement", "divergence", "word_error_increase")
}


def units(variant):
    return variant.units(SCHEMES[variant.scheme])


class Bench:
    """Links artifacts with a part that is not theirs, and validates them."""

    def __init__(self, factory: Factory, folder) -> None:
        self.factory = factory
        self.folder = folder

    def linked(self, variant, changed=None, preprocessor=None):
        """An artifact some of whose units, by place, are others."""
        own = [self.factory.unit(unit) for unit in units(variant)]
        for place, path in (changed or {}).items():
            own[place] = path
        output = self.folder / variant.slug
        self.factory.link(variant, output, own, preprocessor)
        return output

    def report(self, variant, artifact, **changes):
        """Of an artifact that has to fail."""
        output = self.folder / "report.json"
        with pytest.raises(ValidationError) as caught:
            self.factory.validate(variant, output, artifact=artifact, **changes)
        assert not output.exists()
        report = Report.load(self.folder / "report.failed.json")
        assert report.status == "failed"
        for outcome in report.failures:  # the message has each gate, figure and bound
            assert str(outcome) in str(caught.value)
        return report

    def failures(self, variant, artifact, **changes):
        """Gates that it does not pass, less those of all methods together."""
        found = {outcome.gate for outcome in self.report(variant, artifact, **changes).failures}
        return found - TOGETHER


@pytest.fixture
def bench(factory, tmp_path):
    # The right parts, before a test breaks what they are made with.
    for variant in (OFFLINE, STREAMING, QUANTIZED):
        factory.artifact(variant)
    return Bench(factory, tmp_path)


def test_a_scrambled_tensor(bench):
    """All values of one weight are there, in another order."""
    other = bench.folder / "scrambled"
    shutil.copytree(bench.factory.checkpoint, other)
    tensors = load_file(other / WEIGHTS)
    weight = tensors["layers.0.feed_forward.w2.weight"]
    order = torch.randperm(weight.numel(), generator=torch.Generator().manual_seed(0))
    tensors["layers.0.feed_forward.w2.weight"] = weight.flatten()[order].view_as(weight)
    save_file(tensors, other / WEIGHTS)
    unit = bench.folder / "unit.pte"
    bench.factory.lower(units(OFFLINE)[DECODE], unit, checkpoint=other)
    artifact = bench.linked(OFFLINE, {DECODE: unit})
    assert bench.failures(OFFLINE, artifact) == {"text_decoder.relative_difference"}


def halved(factory, unit, path):
    """A unit's quantized weights, with the scales of one linear halved."""
    tensors = load_file(factory.weights(unit))
    name = next(name for name in tensors if name.endswith("attention.wo.weight.scale"))
    tensors[name] = tensors[name] / 2
    with safe_open(str(factory.weights(unit)), framework="pt") as file:
        path.write_bytes(save(tensors, file.metadata()))
    return path


def test_a_halved_scale(bench):
    """In the program alone: the weights that quantize wrote are right."""
    unit = units(QUANTIZED)[ENCODE]
    wrong = halved(bench.factory, unit, bench.folder / "wrong.safetensors")
    path = bench.folder / "unit.pte"
    bench.factory.lower(unit, path, weights=wrong)
    artifact = bench.linked(QUANTIZED, {ENCODE: path})
    assert bench.failures(QUANTIZED, artifact) == {
        "audio_encoder.noise_ratio",
        "audio_encoder.draw_ratio",
    }


def test_a_halved_scale_that_eager_has_too(bench):
    """Where quantize itself is wrong, only the model in float32 can tell."""
    good = bench.folder / "good.json"
    bench.factory.validate(QUANTIZED, good)
    cosine = Report.load(good).against_float32.audio_cosine
    unit = units(QUANTIZED)[ENCODE]
    wrong = halved(bench.factory, unit, bench.folder / "wrong.safetensors")
    path = bench.folder / "unit.pte"
    bench.factory.lower(unit, path, weights=wrong)
    artifact = bench.linked(QUANTIZED, {ENCODE: path})
    # As close as the right one is, less a third of what that loses.
    bound = Gate(figure="audio_cosine", min=1 - 1.3 * (1 - cosine), reason="Measured.")
    report = bench.report(
        QUANTIZED,
        artifact,
        weights={**bench.factory.variant_weights(QUANTIZED), "encoder": wrong},
        gates=[*gates(QUANTIZED), bound],
    )
    assert [outcome.gate for outcome in report.failures] == ["audio_cosine"]


def test_a_position_that_is_baked_in(bench, monkeypatch):
    """As tracing makes it when the position is read as a number: every call is at 0."""
    monkeypatch.setattr("voxtral_build.model.attention.start_position", lambda *_: 0)
    path = lowered_anew(bench, units(OFFLINE)[DECODE])
    artifact = bench.linked(OFFLINE, {DECODE: path})
    assert bench.failures(OFFLINE, artifact) == {"text_decoder.relative_difference"}


def lowered_anew(bench, unit):
    graph, path = bench.folder / "graph.pt2", bench.folder / f"{unit.method}.pte"
    export.run(
        params=bench.factory.checkpoint / "params.json",
        graph=graph_for(unit),
        settings=SETTINGS,
        output=graph,
    )
    bench.factory.lower(unit, path, graph=graph)
    return path


def test_rings_of_one_window(bench, monkeypatch):
    """A call then overwrites keys that its own first queries still need."""
    init = kv_cache.RingKVCache.__init__

    def one_window(self, window, n_heads, head_dim):
        init(self, window, n_heads, head_dim)
        self.shape = (1, window, n_heads, head_dim)
        self.slots = window
        self.k_cache, self.v_cache = (torch.empty(self.shape, device="meta") for _ in range(2))

    monkeypatch.setattr(kv_cache.RingKVCache, "__init__", one_window)
    for place, method in ((ENCODE, "encode_audio_chunk"), (DECODE, "text_decoder")):
        path = lowered_anew(bench, units(STREAMING)[place])
        artifact = bench.linked(STREAMING, {place: path})
        assert bench.failures(STREAMING, artifact) == {f"{method}.relative_difference"}


@pytest.mark.parametrize("variant", [OFFLINE, STREAMING], ids=["offline", "streaming"])
def test_a_mel_clamp_of_the_wrong_kind(bench, monkeypatch, variant):
    """Below the loudest value of what is at hand, as Whisper has it."""

    def below_the_loudest(mel, params):
        log = torch.clamp(mel, min=1e-10).log10()
        return (torch.maximum(log, log.max() - 8.0) + 4.0) / 4.0

    monkeypatch.setattr(preprocessor, "scaled_log", below_the_loudest)
    path = bench.folder / "preprocessor.pte"
    preprocessor_step.run(
        params=bench.factory.checkpoint / "params.json",
        mode=variant.mode,
        settings=SETTINGS,
        output=path,
    )
    artifact = bench.linked(variant, preprocessor=path)
    assert bench.failures(variant, artifact) == {"preprocessor_difference"}


def test_linears_that_are_not_delegated(bench):
    """They compute what they should, with the wrong kernels."""
    portable = units(Variant("portable", "fp32", "none", "offline"))[DECODE]
    artifact = bench.linked(OFFLINE, {DECODE: bench.factory.unit(portable)})
    report = bench.report(OFFLINE, artifact)
    (failure,) = report.failures
    assert failure.gate == "text_decoder.undelegated_linears"
    # q, k, v, o; gate, up, down; the projection to tokens. What depends on the delay alone
    # was computed when it was lowered.
    assert failure.figure == 8


def test_an_operator_that_is_missing(bench):
    """No runtime has a kernel of this name."""
    path = bench.folder / "unit.pte"
    content = bench.factory.unit(units(OFFLINE)[DECODE]).read_bytes()
    assert b"llama::update_cache" in content
    path.write_bytes(content.replace(b"llama::update_cache", b"llama::outdate_cach"))
    artifact = bench.linked(OFFLINE, {DECODE: path})
    report = bench.report(OFFLINE, artifact)
    (failure,) = report.failures
    assert failure.gate == "text_decoder.runs"
    assert "can't be run" in failure.detail
    # The others are measured all the same.
    assert report.methods["audio_encoder"].parity.cosine > 0.999


def test_a_preprocessor_of_the_other_mode(bench):
    factory = bench.factory
    artifact = bench.linked(STREAMING, preprocessor=factory.preprocessor("offline"))
    assert bench.failures(STREAMING, artifact) == {"preprocessor.runs"}
    artifact = bench.linked(OFFLINE, preprocessor=factory.preprocessor("streaming"))
    assert "preprocessor.runs" in bench.failures(OFFLINE, artifact)


def test_a_preprocessor_that_was_swapped_afterwards(bench):
    artifact = bench.linked(OFFLINE)
    other = bench.factory.preprocessor("streaming").read_bytes()
    (artifact / "preprocessor.pte").write_bytes(other)
    assert bench.failures(OFFLINE, artifact) == {"files", "loads"}


@pytest.mark.parametrize(
    ("place", "method"),
    [(ENCODE, "audio_encoder"), (DECODE, "text_decoder"), (EMBED, "token_embedding")],
)
def test_a_unit_of_another_checkpoint(bench, place, method):
    path = bench.folder / "unit.pte"
    bench.factory.lower(units(OFFLINE)[place], path, checkpoint=checkpoint(ONE_LAYER, seed=1))
    artifact = bench.linked(OFFLINE, {place: path})
    assert bench.failures(OFFLINE, artifact) == {f"{method}.relative_difference"}


def test_a_unit_of_other_settings(bench):
    """A decoder that was built for another delay."""
    unit = units(OFFLINE)[DECODE]
    graph, path = bench.folder / "graph.pt2", bench.folder / "unit.pte"
    slower = SETTINGS.model_copy(update={"delay_tokens": 7})
    params = bench.factory.checkpoint / "params.json"
    export.run(params=params, graph=graph_for(unit), settings=slower, output=graph)
    bench.factory.lower(unit, path, graph=graph, settings=slower)
    artifact = bench.linked(OFFLINE, {DECODE: path})
    assert bench.failures(OFFLINE, artifact) == {"text_decoder.relative_difference"}


def test_what_is_right_passes(bench):
    """The same bench, and nothing planted."""
    output = bench.folder / "report.json"
    bench.factory.validate(OFFLINE, output, artifact=bench.linked(OFFLINE))
    report = Report.load(output)
    assert report.status == "validated"
    assert report.failures == []
