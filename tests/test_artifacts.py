"""Artifacts, built through the steps as the workflow does, and run by ExecuTorch's runtime."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from tests.factory import SCHEMES, SPEECH
from tests.models import (
    ONE_LAYER,
    SETTINGS,
    eager,
    random_embeds,
    random_mel,
    stream_decode,
    stream_encode,
)
from voxtral_build import sound
from voxtral_build.audio import log_mel
from voxtral_build.backends import BACKENDS
from voxtral_build.catalog.card import artifact_card, repository_card
from voxtral_build.catalog.collect import artifact_entry
from voxtral_build.catalog.entries import Catalog
from voxtral_build.errors import BuildError, ValidationError
from voxtral_build.graph import bind_weights, load_graph
from voxtral_build.manifest import FileRecord, Manifest
from voxtral_build.model.attention import STANDARD
from voxtral_build.model.config import AudioParams
from voxtral_build.pte.inspect import describe, undelegated_linears
from voxtral_build.report import Report
from voxtral_build.runtime.artifact import Artifact
from voxtral_build.runtime.program import Program
from voxtral_build.steps import lower, synth
from voxtral_build.variants import Variant
from voxtral_build.verify import verify

pytestmark = pytest.mark.lowering

CELLS = [("xnnpack", "none"), ("xnnpack", "8da4w"), ("portable", "none")]
VARIANTS = [
    Variant(backend, "fp32", scheme, mode)
    for backend, scheme in CELLS
    for mode in ("offline", "streaming")
]
FLOAT = [variant for variant in VARIANTS if variant.scheme == "none"]


def slug(variant: Variant) -> str:
    return variant.slug


@pytest.mark.parametrize("variant", FLOAT, ids=slug)
@torch.no_grad()
def test_encoder_equals_eager(factory, variant):
    program = Program(factory.artifact(variant) / "model.pte")
    folder = factory.checkpoint
    samples = torch.from_numpy(sound.read(SPEECH, 16_000).samples[:79360])
    speech = log_mel(samples, AudioParams())
    if variant.mode == "offline":
        encode = program.method("audio_encoder")
        module = eager(folder, "audio_encoder", "offline", attention=STANDARD)
        # One token, the example's length, the bound; past the window of 40 mel frames.
        mels = [random_mel(frames) for frames in (8, 160, 8 * 256)]
        for mel in [*mels, speech]:
            torch.testing.assert_close(encode(mel), module(mel), atol=1e-4, rtol=0)
    else:
        encode = program.method("encode_audio_chunk")
        offline = eager(folder, "audio_encoder", "offline", attention=STANDARD)
        # A second utterance on the same state; 248 frames wrap a ring of 40 six times.
        for mel in (random_mel(48), speech):
            torch.testing.assert_close(stream_encode(encode, mel), offline(mel), atol=1e-4, rtol=0)


@pytest.mark.parametrize("variant", FLOAT, ids=slug)
@torch.no_grad()
def test_decoder_equals_eager_past_five_wraps(factory, variant):
    decode = Program(factory.artifact(variant) / "model.pte").method("text_decoder")
    module = eager(factory.checkpoint, "text_decoder", variant.mode, attention=STANDARD)
    for seed, prefill in ((1, 16), (2, 1)):
        embeds = random_embeds(200, 96, seed)
        torch.testing.assert_close(
            stream_decode(decode, embeds, prefill),
            stream_decode(module, embeds, prefill),
            atol=1e-4,
            rtol=0,
        )


@pytest.mark.parametrize("variant", [v for v in FLOAT if v.mode == "streaming"], ids=slug)
@torch.no_grad()
def test_methods_keep_their_own_state_when_they_alternate(factory, variant):
    """Live, the encoder's chunk and the decoder's step take turns, twice over here."""
    folder = factory.checkpoint
    program = Program(factory.artifact(variant) / "model.pte")
    encode, decode = program.method("encode_audio_chunk"), program.method("text_decoder")
    mel, embeds = random_mel(480), random_embeds(60, 96)
    audio = eager(folder, "audio_encoder", "offline", attention=STANDARD)(mel)
    module = eager(folder, "text_decoder", "streaming", attention=STANDARD)
    logits = stream_decode(module, embeds, 1)
    for _ in range(2):
        turns = [
            (
                encode(mel[..., 8 * i : 8 * i + 8].contiguous(), torch.arange(4 * i, 4 * i + 4)),
                decode(embeds[:, i : i + 1].contiguous(), torch.tensor([i])),
            )
            for i in range(60)
        ]
        chunks, steps = (torch.cat(outputs, dim=1) for outputs in zip(*turns, strict=True))
        torch.testing.assert_close(chunks, audio, atol=1e-4, rtol=0)
        torch.testing.assert_close(steps, logits, atol=1e-4, rtol=0)


@pytest.mark.parametrize("variant", VARIANTS, ids=slug)
@torch.no_grad()
def test_embedding_equals_eager_bit_for_bit(factory, variant):
    embed = Program(factory.artifact(variant) / "model.pte").method("token_embedding")
    quant = SCHEMES[variant.scheme].embedding
    module = eager(factory.checkpoint, "token_embedding", "offline", quant=quant)
    for ids in (torch.tensor([[7]]), torch.arange(256).unsqueeze(0) * 5):
        assert torch.equal(embed(ids), module(ids))


@pytest.mark.parametrize("variant", VARIANTS, ids=slug)
def test_an_artifact_is_validated_over_real_speech(factory, variant, tmp_path):
    output = tmp_path / "report.json"
    factory.validate(variant, output)
    report = json.loads(output.read_text())
    assert report["status"] == "validated"
    assert all(gate["passed"] for gate in report["gates"])
    assert report["methods"]["text_decoder"]["parity"]["top1_agreement"] >= 0.95
    if variant.scheme == "none":
        assert report["speech"]["token_agreement"] == 1.0
    if variant.backend == "xnnpack":
        for method in report["methods"].values():
            assert method["undelegated_linears"] == 0


def test_an_artifact_of_other_weights_is_refused(factory, tmp_path):
    other = tmp_path / "other"
    synth.write_checkpoint(synth.make_params(ONE_LAYER), 1, other)
    (tmp_path / "report.json").write_text("of an earlier artifact")
    with pytest.raises(ValidationError, match="relative_difference"):
        factory.validate(VARIANTS[0], tmp_path / "report.json", checkpoint=other)
    assert not (tmp_path / "report.json").exists()
    failed = json.loads((tmp_path / "report.failed.json").read_text())
    assert failed["status"] == "failed"
    assert [gate["gate"] for gate in failed["gates"] if not gate["passed"]] == [
        "audio_encoder.relative_difference",
        "text_decoder.relative_difference",
        "token_embedding.relative_difference",
        "token_agreement",
        "token_agreement",
    ]


def test_constant_methods_are_what_the_runner_reads(factory):
    """Values of ONE_LAYER and of 16 kHz audio, read through ExecuTorch's runtime."""
    both = {
        "sample_rate": 16000,
        "num_mel_bins": 128,
        "hop_length": 160,
        "window_size": 400,
        "downsample_factor": 4,
        "dim": 96,
        "enc_dim": 64,
        "vocab_size": 1280,
        "max_seq_len": 256,
        "sliding_window": 16,
        "delay_tokens": 6,
    }
    streaming = {
        "streaming": 1,
        "step_samples": 1280,
        "chunk_mel_len": 8,
        "max_enc_len": 20,
        "conv1_pad": 2,
        "conv2_pad": 1,
        "stft_left_overlap": 320,
        "stft_right_lookahead": 40,
        "mel_skip_frames": 2,
    }
    from executorch.runtime import Runtime

    for variant, expected in ((VARIANTS[0], both), (VARIANTS[1], both | streaming)):
        program = Runtime.get().load_program(factory.artifact(variant) / "model.pte")
        methods = {unit.method for unit in variant.units(SCHEMES["none"])}
        found = {
            name: program.load_method(name).execute([])[0]
            for name in program.method_names
            if name not in methods
        }
        assert found == expected


@torch.no_grad()
def test_linked_units_run_like_one_build_bit_for_bit(factory, tmp_path):
    from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower

    variant = Variant("xnnpack", "fp32", "none", "streaming")
    programs = {
        unit.method: bind_weights(
            load_graph(factory.graph(unit)),
            eager(factory.checkpoint, unit.method, variant.mode),
        )
        for unit in variant.units(SCHEMES["none"])
    }
    partitioners = {name: list(BACKENDS["xnnpack"].partitioners("forward")) for name in programs}
    edge = to_edge_transform_and_lower(
        programs,
        partitioner=partitioners,
        compile_config=EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=True),
    )
    path = tmp_path / "whole.pte"
    with path.open("wb") as file:
        edge.to_executorch(BACKENDS["xnnpack"].executorch_config()).write_to_file(file)

    whole, linked = Program(path), Program(factory.artifact(variant) / "model.pte")
    mel, embeds = random_mel(200), random_embeds(100, 96)
    ids = torch.arange(64).unsqueeze(0)
    for name, run in {
        "encode_audio_chunk": lambda method: stream_encode(method, mel),
        "text_decoder": lambda method: stream_decode(method, embeds, 16),
        "token_embedding": lambda method: method(ids),
    }.items():
        assert torch.equal(run(whole.method(name)), run(linked.method(name))), name


def test_lowering_twice_gives_the_same_bytes(factory, tmp_path):
    for scheme, backend in (("8da4w", "xnnpack"), ("none", "portable")):
        unit = Variant(backend, "fp32", scheme, "streaming").units(SCHEMES[scheme])[0]
        factory.lower(unit, tmp_path / "again.pte")
        assert (tmp_path / "again.pte").read_bytes() == factory.unit(unit).read_bytes()


def test_nothing_of_a_linear_is_left_outside_the_delegate(factory):
    for variant in VARIANTS:
        description = describe(factory.artifact(variant) / "model.pte")
        for method in description.methods.values():
            if variant.backend == "xnnpack":
                assert undelegated_linears(method) == 0
            else:
                assert not method.delegates


def test_a_failed_step_leaves_no_output(factory, tmp_path):
    """A graph that is none: the message is the loader's, and nothing is half written."""
    unit = VARIANTS[0].units(SCHEMES["none"])[0]
    broken = tmp_path / "broken.pt2"
    shutil.copy(SPEECH, broken)
    with pytest.raises(Exception):  # noqa: B017, PT011  # whatever torch raises
        lower.run(
            checkpoint=factory.checkpoint,
            graph=broken,
            unit=unit,
            weights=None,
            settings=SETTINGS,
            output=tmp_path / "out" / "unit.pte",
        )
    assert not (tmp_path / "out").exists()


def test_what_no_runtime_here_runs_is_read_back(factory, tmp_path):
    """Inspected, not validated: in report, catalog and card; and refused once a bit is wrong."""
    variant = Variant("mlx", "bf16", "none", "streaming")
    folder = tmp_path / variant.slug
    shutil.copytree(factory.artifact(variant), folder)
    factory.validate(variant, folder / "report.json", artifact=folder)
    report = Report.load(folder / "report.json")
    assert (report.status, report.not_run) == ("inspected", "the runtime here has no MLXBackend")
    assert report.speed is report.words is report.against_float32 is None
    assert all(method.delegates == {"MLXBackend": 1} for method in report.methods.values())
    verify(folder)
    with pytest.raises(BuildError, match="without MLXBackend"):
        Artifact.load(folder)
    entry = artifact_entry(folder)
    assert entry.status == "inspected"
    assert "It was not run (the runtime here has no MLXBackend)" in artifact_card(entry)
    whole = repository_card(Catalog(entries=[entry]))
    assert "None is validated." in whole
    assert "## Read back, not run" in whole
    # Some weight in the middle of the file, and a manifest that knows no better.
    content = bytearray((folder / "model.pte").read_bytes())
    content[len(content) // 2] ^= 16
    (folder / "model.pte").write_bytes(content)
    manifest = Manifest.load(folder / "manifest.json")
    manifest.files["model.pte"] = FileRecord.of(folder / "model.pte")
    manifest.write(folder / "manifest.json")
    with pytest.raises(ValidationError, match="constants"):
        factory.validate(variant, folder / "report.json", artifact=folder)
    assert not (folder / "report.json").exists()
