"""Footprints: the formulas against plain arithmetic, against the model, and against programs.

The arithmetic is the real model's, written out; where a figure of ExecuTorch's notes is
meant, its words are beside it, and `docs/FOOTPRINT.md` says which of them hold.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn

from tests.factory import SCHEMES, Factory
from tests.models import SETTINGS, builder, checkpoint
from tests.pte_programs import plan, tensor, write_by_hand
from voxtral_build import cli
from voxtral_build.backends import BACKENDS
from voxtral_build.backends.lowering import lower_program
from voxtral_build.footprint import (
    conv_state_bytes,
    decoder_cache_bytes,
    encoder_cache_bytes,
    footprints,
)
from voxtral_build.footprint_table import decimal
from voxtral_build.gates import REQUIRED
from voxtral_build.matrix import Matrix
from voxtral_build.methods import MethodBuilder
from voxtral_build.model.attention import CUSTOM_SDPA, STANDARD
from voxtral_build.model.config import ModelConfig, RuntimeConfig
from voxtral_build.pte.memory import methods_memory
from voxtral_build.quant import Quant
from voxtral_build.quantization import quantize_tensor, quantized_bytes
from voxtral_build.settings import Settings
from voxtral_build.steps.synth import SIZES, make_params
from voxtral_build.variants import Variant
from voxtral_build.weights import expected_tensors

# A bound on every figure, which anything passes.
GATES = [{"figure": figure, "max": 1e9, "reason": "None."} for figure in REQUIRED]
FULL = ModelConfig.parse(make_params(SIZES["full"]))
MIB, GIB = 2**20, 2**30


def runtime(mode: Any, **settings: Any) -> RuntimeConfig:
    return RuntimeConfig.resolve(FULL, Settings(**settings), mode)


# --- caches and state --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "window", "dtype", "expected"),
    [
        # "fp32: 832 MB, bf16: 416 MB": in units of 2^20 bytes.
        ("offline", None, "fp32", 26 * 2 * 4096 * 8 * 128 * 4),
        ("offline", None, "bf16", 26 * 2 * 4096 * 8 * 128 * 2),
        # "sw=8192 fp32: 3.3 GB, bf16: 1.7 GB": 3.49 and 1.74 GB, 3.25 and 1.625 GiB.
        ("streaming", None, "fp32", 26 * 2 * 16384 * 8 * 128 * 4),
        ("streaming", None, "bf16", 26 * 2 * 16384 * 8 * 128 * 2),
        # "sw=2048 fp32: 832 MB, bf16: 416 MB": in units of 2^20 bytes.
        ("streaming", 2048, "fp32", 26 * 2 * 4096 * 8 * 128 * 4),
        ("streaming", 2048, "bf16", 26 * 2 * 4096 * 8 * 128 * 2),
    ],
)
def test_decoder_caches(mode: Any, window: int | None, dtype: Any, expected: int) -> None:
    assert decoder_cache_bytes(FULL, runtime(mode, sliding_window=window), dtype) == expected


def test_the_seeds_decoder_caches_are_in_binary_units() -> None:
    assert 26 * 2 * 4096 * 8 * 128 * 4 == 872_415_232 == 832 * MIB
    assert 26 * 2 * 4096 * 8 * 128 * 2 == 436_207_616 == 416 * MIB
    assert 26 * 2 * 16384 * 8 * 128 * 4 == 3_489_660_928 == 3.25 * GIB  # not 3.3 in any unit
    assert 26 * 2 * 16384 * 8 * 128 * 2 == 1_744_830_464 == 1.625 * GIB  # 1.7 in decimal only


def test_encoder_caches() -> None:
    """786 MB and 393 MB: these two are in units of 10^6 bytes."""
    streaming = runtime("streaming")
    assert encoder_cache_bytes(FULL, streaming, "fp32") == 32 * 2 * 1500 * 32 * 64 * 4
    assert encoder_cache_bytes(FULL, streaming, "bf16") == 32 * 2 * 1500 * 32 * 64 * 2
    assert 32 * 2 * 1500 * 32 * 64 * 4 == 786_432_000 == 750 * MIB
    assert 32 * 2 * 1500 * 32 * 64 * 2 == 393_216_000 == 375 * MIB


def test_conv_state() -> None:
    assert conv_state_bytes(FULL, runtime("streaming"), "fp32") == (128 * 2 + 1280 * 1) * 4
    example = runtime("streaming", fidelity="executorch")
    assert conv_state_bytes(FULL, example, "bf16") == (128 * 2 + 1280 * 2) * 2


@pytest.mark.parametrize("family", [CUSTOM_SDPA, STANDARD], ids=lambda family: family.name)
@pytest.mark.parametrize("mode", ["offline", "streaming"])
def test_the_models_own_buffers_are_as_large(family: Any, mode: Any) -> None:
    """Caches and conv state of the full model as it is built, without memory."""
    resolved = runtime(mode)
    build = MethodBuilder(FULL, resolved, family)
    model = build.meta_model()

    def buffers(module: nn.Module, ending: str) -> int:
        return sum(
            buffer.numel() * 4 for name, buffer in module.named_buffers() if name.endswith(ending)
        )

    assert buffers(model.decoder, "_cache") == decoder_cache_bytes(FULL, resolved, "fp32")
    if mode == "streaming":
        with torch.device("meta"):
            encode = build._wrap("encode_audio_chunk", model)
        assert buffers(encode, "_cache") == encoder_cache_bytes(FULL, resolved, "fp32")
        assert buffers(encode, "_state") == conv_state_bytes(FULL, resolved, "fp32")


# --- weights -----------------------------------------------------------------------------

# Of the real model: parameters and rows of linears, and what is never quantized.
ENCODER_LAYER = 4 * 1280 * 2048 + 3 * 1280 * 5120
ENCODER_LINEARS = 32 * ENCODER_LAYER + 5120 * 3072 + 3072 * 3072
ENCODER_ROWS = 32 * (3 * 2048 + 1280 + 2 * 5120 + 1280) + 2 * 3072
CONVOLUTIONS = (128 * 1280 * 3 + 1280) + (1280 * 1280 * 3 + 1280)
ENCODER_REST = CONVOLUTIONS + 32 * (2 * 2048 + 2 * 1280 + 2 * 1280) + 1280  # biases, norms
ADA_NORM = 26 * (3072 * 32 + 32 * 3072)
DECODER_LAYER = 2 * 3072 * 4096 + 2 * 3072 * 1024 + 3 * 3072 * 9216
DECODER_LINEARS = 26 * DECODER_LAYER + ADA_NORM
DECODER_ROWS = 26 * (4096 + 2 * 1024 + 3072 + 2 * 9216 + 3072 + 32 + 3072)
DECODER_REST = 26 * 2 * 3072 + 3072  # norms
EMBEDDING = 131072 * 3072  # and as much again for the output projection
PARAMETERS = ENCODER_LINEARS + ENCODER_REST + DECODER_LINEARS + DECODER_REST + EMBEDDING
AS_BUILT = PARAMETERS + EMBEDDING  # encoder, decoder and embedding are units of their own
LINEARS = ENCODER_LINEARS + DECODER_LINEARS + EMBEDDING
ROWS = ENCODER_ROWS + DECODER_ROWS + 131072
REST = ENCODER_REST + DECODER_REST


def parameters(*parts: str) -> int:
    return sum(
        torch.Size(shape).numel()
        for key, shape in expected_tensors(FULL).items()
        if any(part in key for part in parts)
    )


def test_parameters_of_the_checkpoint() -> None:
    assert parameters("whisper_encoder", "projection") == ENCODER_LINEARS + ENCODER_REST
    assert ENCODER_LINEARS + ENCODER_REST == 995_561_216
    assert parameters("tok_embeddings") == EMBEDDING == 402_653_184
    assert DECODER_LINEARS + DECODER_REST == 3_031_464_960
    assert parameters("") == PARAMETERS == 4_429_679_360


def test_ada_norm() -> None:
    """ "~5.1M parameters": holds."""
    assert parameters("ada_rms_norm_t_cond") == ADA_NORM == 26 * 196_608 == 5_111_808


def full_scheme(dtype: str, linears: str, embedding: str) -> int:
    """Weights of an artifact of the full model, in bytes, by formula."""
    product = {
        "backend": ["xnnpack" if dtype == "fp32" else "portable"],
        "dtype": [dtype],
        "scheme": ["q"],
        "mode": ["offline", "streaming"],
    }
    matrix = Matrix.parse(
        {
            "checkpoint": {"synth": {"size": "full"}},
            "schemes": {"q": {"encoder": linears, "decoder": linears, "embedding": embedding}},
            "variants": [product],
            "gates": GATES,
        }
    )
    table = footprints(matrix, FULL, Settings(), Path("nowhere"))
    offline, streaming = (
        sum(of.formula.weights for of in footprint.methods.values()) for footprint in table
    )
    assert offline == streaming
    return offline


@pytest.mark.parametrize(
    ("dtype", "linears", "embedding", "expected", "shown"),
    [
        # "~16 GB (fp32)": 16.5 GiB are the checkpoint's parameters. An artifact has 19.3 GB,
        # as the tied matrix is in it twice.
        ("fp32", "none", "none", AS_BUILT * 4, "19.33 GB"),
        # "~8 GB (bf16)"
        ("bf16", "none", "none", AS_BUILT * 2, "9.66 GB"),
        # "~4 GB (8w)"
        ("fp32", "8w", "8w", LINEARS + ROWS * 4 + EMBEDDING + 131072 * 4 + REST * 4, "4.86 GB"),
        ("fp32", "8da8w", "8w", LINEARS + ROWS * 4 + EMBEDDING + 131072 * 4 + REST * 4, "4.86 GB"),
        # "~2 GB (4w/8da4w)": with groups of 32 and an 8-bit embedding, as the notes export
        (
            *("fp32", "8da4w", "8w"),
            LINEARS // 2 + LINEARS // 32 * 2 + EMBEDDING + 131072 * 4 + REST * 4,
            "2.92 GB",
        ),
        (
            *("fp32", "8da4w", "4w"),
            LINEARS // 2 + LINEARS // 32 * 2 + EMBEDDING // 2 + EMBEDDING // 32 * 4 + REST * 4,
            "2.76 GB",
        ),
    ],
)
def test_weights(dtype: str, linears: str, embedding: str, expected: int, shown: str) -> None:
    found = full_scheme(dtype, linears, embedding)
    assert found == expected
    assert decimal(found) == shown


def test_where_the_seeds_round_weights_come_from() -> None:
    assert [round(PARAMETERS * size / GIB, 2) for size in (4, 2, 1, 0.5)] == [
        *(16.5, 8.25, 4.13, 2.06),
    ]


# --- programs ----------------------------------------------------------------------------


def lowered(tmp_path: Path, module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> Any:
    program = torch.export.export(module.eval(), inputs, strict=True)
    path = tmp_path / "model.pte"
    with path.open("wb") as file:
        lower_program("forward", program, BACKENDS["xnnpack"]).write_to_file(file)
    return path


@pytest.mark.lowering
@pytest.mark.parametrize(
    ("slug", "expected"),
    [
        ("none", 96 * 128 * 4),
        ("8da4w.g32", 96 * 128 // 2 + 96 * (128 // 32) * 2),
        ("8da4w.axis", 96 * 128 // 2 + 96 * 2),
        ("8da8w.axis", 96 * 128 + 96 * 4),
        ("4w.axis", 96 * 128 // 2 + 96 * 4),
        ("8w.axis", 96 * 128 + 96 * 4),
    ],
)
def test_a_linear_is_stored_in_so_many_bytes(slug: str, expected: int, tmp_path: Path) -> None:
    quant = Quant.parse(slug)
    linear = nn.Linear(128, 96, bias=False)
    weight = torch.randn(96, 128, generator=torch.Generator().manual_seed(0))
    if quant.type != "none":
        weight = quantize_tensor(weight, quant)
        assert quantized_bytes((96, 128), quant, torch.float32) == expected
    linear.weight = nn.Parameter(weight, requires_grad=False)
    path = lowered(tmp_path, linear, (torch.randn(1, 4, 128),))
    assert methods_memory(path)["forward"].named_bytes == expected


@pytest.mark.lowering
@pytest.mark.parametrize(
    ("slug", "expected"),
    [
        ("8w.axis", 160 * 128 + 160 * 4),
        ("8w.g32", 160 * 128 + 160 * (128 // 32) * 4),
        ("4w.g32", 160 * 128 // 2 + 160 * (128 // 32) * 4),
        ("4w.axis", 160 * 128 // 2 + 160 * 4),
    ],
)
def test_an_embedding_is_stored_in_so_many_bytes(slug: str, expected: int, tmp_path: Path) -> None:
    from voxtral_build.pte.inspect import describe

    quant = Quant.parse(slug)
    embedding = nn.Embedding(160, 128)
    weight = torch.randn(160, 128, generator=torch.Generator().manual_seed(0))
    embedding.weight = nn.Parameter(quantize_tensor(weight, quant), requires_grad=False)
    path = lowered(tmp_path, embedding, (torch.arange(4),))
    assert describe(path).methods["forward"].constant_bytes == expected
    assert quantized_bytes((160, 128), quant, torch.float32) == expected


@pytest.mark.lowering
@pytest.mark.parametrize(("scheme", "mode"), [("none", "offline"), ("8da4w", "streaming")])
def test_formulas_and_programs(factory: Factory, scheme: str, mode: Any) -> None:
    variant = Variant("xnnpack", "fp32", scheme, mode)
    artifact = factory.artifact(variant)
    matrix = Matrix.parse(
        {
            "checkpoint": {"path": str(factory.checkpoint)},
            "schemes": {scheme: SCHEMES[scheme].model_dump()},
            "variants": [
                {"backend": ["xnnpack"], "dtype": ["fp32"], "scheme": [scheme], "mode": [mode]}
            ],
            "gates": GATES,
        }
    )
    config = builder(checkpoint(), mode).config  # of two layers: not what was built
    (other,) = footprints(matrix, config, SETTINGS, artifact.parent)
    assert other.status == "other build"
    assert {of.measured for of in other.methods.values()} == {None}

    config = ModelConfig.load(factory.checkpoint / "params.json")
    (footprint,) = footprints(matrix, config, SETTINGS, artifact.parent)
    assert footprint.status == "measured"
    assert footprint.file_bytes == (artifact / "model.pte").stat().st_size
    for method, of in footprint.methods.items():
        formula, measured = of.formula, of.measured
        assert measured is not None
        assert measured.kv_caches == formula.kv_caches
        assert measured.conv_state == formula.conv_state
        # Delegates' own graphs are in the measured weights: here about a kilobyte each.
        assert 0 <= measured.weights - formula.weights < 50_000, method
        assert measured.activation >= formula.activation
        assert measured.planned >= formula.planned
    decoder = footprint.methods["text_decoder"]
    assert decoder.measured is not None
    if mode == "offline":  # logits of 256 positions
        assert decoder.activation == "logits"
        assert decoder.measured.activation == decoder.formula.activation == 256 * 1280 * 4
        assert decoder.measured.kv_caches == 1 * 2 * 256 * 2 * 32 * 4
    else:  # rings of twice 16 tokens and twice 20 frames
        assert decoder.measured.kv_caches == 1 * 2 * 32 * 2 * 32 * 4
        encoder = footprint.methods["encode_audio_chunk"].measured
        assert encoder is not None
        assert encoder.kv_caches == 1 * 2 * 40 * 2 * 32 * 4
        assert encoder.conv_state == (128 * 2 + 64 * 1) * 4


# --- the command -------------------------------------------------------------------------


@pytest.fixture
def config_file(tmp_path: Path, matrix_data: dict[str, Any]) -> Path:
    path = tmp_path / "matrix.yaml"
    path.write_text(yaml.safe_dump(matrix_data), encoding="utf-8")
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = cli.main(["footprint", *map(str, arguments)])
    output = capsys.readouterr()
    return code, output.out, output.err


def test_for_programs(
    config_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    artifacts = tmp_path / "artifacts"
    (artifacts / "portable-fp32-none-offline").mkdir(parents=True)
    write_by_hand(
        artifacts / "portable-fp32-none-offline" / "model.pte", [plan("a", [tensor([1])])]
    )
    given = ("--config", config_file, "--artifacts", artifacts, "--json")
    code, out, _ = run(capsys, *given)
    assert code == 0
    rows = {row["variant"]: row for row in json.loads(out)}
    assert rows["portable-fp32-none-offline"]["status"] == "other build"
    row = rows["xnnpack-fp32-8da4w-streaming"]
    assert (row["status"], row["file_bytes"]) == ("not built", None)
    assert list(row["methods"]) == ["encode_audio_chunk", "text_decoder", "token_embedding"]
    embedding = row["methods"]["token_embedding"]
    assert embedding["measured"] is None
    assert embedding["formula"]["weights"] == 1696 * 192 + 1696 * 4  # the demo's
    assert embedding["quant"] == "8w.axis"

    settings = ("--max-seq-len", 4096, "--sliding-window", 2048)
    params = tmp_path / "params.json"
    params.write_text(json.dumps(make_params(SIZES["full"])), encoding="utf-8")
    _, out, _ = run(capsys, *given, "--params", params, *settings)
    decoder = json.loads(out)[1]["methods"]["text_decoder"]
    assert decoder["formula"]["kv_caches"] == 26 * 2 * 4096 * 8 * 128 * 4
    assert decoder["activation"] == "logits"
    assert decoder["formula"]["activation"] == 2048 * 131072 * 4


def test_for_people(
    config_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], matrix_data: Any
) -> None:
    matrix_data["checkpoint"] = {"synth": {"size": "full"}}
    matrix_data["settings"]["max_seq_len"] = 4096
    config_file.write_text(yaml.safe_dump(matrix_data), encoding="utf-8")
    code, out, _ = run(capsys, "--config", config_file, "--artifacts", tmp_path)
    assert code == 0
    lines = out.splitlines()
    row = next(line for line in lines if line.startswith("xnnpack-fp32-8da4w-streaming"))
    for cell in ("formula (not built)", "2.92 GB", "3.49 GB", "786.4 MB", "6.1 kB"):
        assert cell in row
    assert "MB" in lines[-1]


def test_mistakes(
    config_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], matrix_data: Any
) -> None:
    given = ("--config", config_file)
    code, out, err = run(capsys, *given, "--params", tmp_path / "params.json")
    assert (code, out) == (2, "")
    assert "params.json" in err
    code, out, err = run(capsys, *given, "--delay-tokens", 31)
    assert (code, out) == (2, "")
    assert "settings: delay_tokens" in err

    matrix_data["schemes"]["8da4w"]["encoder"] = {"type": "8da4w", "group_size": 128}
    config_file.write_text(yaml.safe_dump(matrix_data), encoding="utf-8")
    code, out, err = run(capsys, *given)
    assert (code, out) == (2, "")
    assert "does not fit layer" in err

    matrix_data["checkpoint"] = {"path": str(tmp_path / "nothing")}
    config_file.write_text(yaml.safe_dump(matrix_data), encoding="utf-8")
    assert run(capsys, *given)[0] == 2


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (0, "-"),
        (999, "999 B"),
        (6144, "6.1 kB"),
        (872_415_232, "872.4 MB"),
        (3_489_660_928, "3.49 GB"),
    ],
)
def test_decimal(size: int, shown: str) -> None:
    assert decimal(size) == shown
