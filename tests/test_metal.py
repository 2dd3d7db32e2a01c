"""The Metal backend up to where only macOS can go on: graphs, weights, the partition.

Kernels that exist for MPS only run as what tests/mps_ops.py makes of their sources.
"""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest
import torch
from executorch.backends.apple.metal.metal_backend import MetalBackend as MetalCompiler
from torch import nn

from tests import mps_ops
from tests.aoti import everything_is_one_delegate, stand_in_for_the_compiler
from tests.models import (
    NONE,
    ONE_LAYER,
    OVER_TIME,
    SETTINGS,
    bound,
    checkpoint,
    eager,
    over_time,
)
from voxtral_build.backends import BACKENDS
from voxtral_build.backends.lowering import lower_program, write_unit
from voxtral_build.errors import BuildError
from voxtral_build.model.attention import MPS_MATH, STANDARD, MpsSDPA
from voxtral_build.model.kv_cache import Positions, SequenceKV
from voxtral_build.pte.inspect import describe
from voxtral_build.quant import Quant
from voxtral_build.quantization import quantize_tensor
from voxtral_build.steps.synth import Size

METAL = BACKENDS["metal"]
FPA4W = Quant.parse("fpa4w.g32")
# Heads as wide as kernels take them; windows that a hundred steps wrap several times.
SIZE = Size(64, 1, 2, 64, 96, 20, 96, 1, 4, 2, 64, 128, 1280, 16)
SDPA = torch.ops.aten._scaled_dot_product_attention_math_for_mps.default
LINEAR_4BIT = "torchao._linear_fp_act_4bit_weight.default"


@pytest.fixture(
    scope="module",
    params=[(NONE, torch.bfloat16), (FPA4W, torch.float32)],
    ids=["bf16", "fp32-fpa4w"],
)
def prepared(request):
    """quant, dtype, (method, mode) -> its graph as the Metal backend prepares it, with weights."""
    mps_ops.define_linears()
    programs = {}
    for method, mode in OVER_TIME:
        program = bound(checkpoint(SIZE), method, mode, MPS_MATH, *request.param)
        METAL.prepare(program)
        programs[method, mode] = program
    return *request.param, programs


@pytest.mark.parametrize(("method", "mode"), OVER_TIME)
def test_the_prepared_graph_computes_what_eager_does(prepared, method, mode):
    """In bf16, with an error like that of PyTorch's own attention."""
    quant, dtype, programs = prepared

    def eagerly(dtype):
        return over_time(
            method, eager(checkpoint(SIZE), method, mode, SETTINGS, STANDARD, quant, dtype), dtype
        )

    got = over_time(method, programs[method, mode].module(check_guards=False), dtype)
    exact = eagerly(torch.float32)
    if dtype == torch.float32:
        assert (got - exact).abs().max() <= 1e-5 * exact.abs().max()
    else:
        assert (got - exact).norm() <= 1.2 * (eagerly(dtype) - exact).norm()


@pytest.mark.parametrize(("method", "mode"), OVER_TIME)
def test_what_the_prepared_graph_consists_of(prepared, method, mode):
    quant, dtype, programs = prepared
    nodes = [n for n in programs[method, mode].graph.nodes if n.op == "call_function"]
    names = [str(node.target) for node in nodes]
    assert not [name for name in names if name.startswith("llama.")]
    linears = [node for node in nodes if node.target is torch.ops.aten.linear.default]
    assert all(len(node.args) == 2 for node in linears)
    if quant is FPA4W:
        assert linears == []
        assert "torchao.dequantize_affine.default" not in names
        assert names.count(LINEAR_4BIT) == 10 if method == "text_decoder" else 9
    (attention,) = [node for node in nodes if node.target is SDPA]
    q, k, v, mask = attention.args
    assert mask.meta["val"].dim() == 2
    assert mask.meta["val"].dtype == q.meta["val"].dtype == dtype
    if method != "audio_encoder":
        # Straight from the caches, which are written in the kernel's layout.
        assert k.target is v.target is torch.ops.aten.index_copy_.default
        heads = 2
        assert k.meta["val"].shape[1] == v.meta["val"].shape[1] == heads
        assert q.meta["val"].shape[1] == (4 if method == "text_decoder" else 2)


@pytest.mark.parametrize(("method", "mode"), OVER_TIME)
def test_the_partitioner_takes_every_node(prepared, method, mode):
    _, _, programs = prepared
    (partitioner,) = METAL.partitioners(method)
    assert partitioner.delegation_spec.backend_id == METAL.delegate
    (spec,) = partitioner.delegation_spec.compile_specs
    assert (spec.key, spec.value) == ("method_name", method.encode())
    everything_is_one_delegate(method, programs[method, mode], METAL, partitioner)


@pytest.mark.parametrize(("method", "mode"), OVER_TIME)
def test_around_the_compiler_a_unit_is_one_delegate_with_its_data(
    monkeypatch, tmp_path, method, mode
):
    """Its library and its weights, by their hashes, within the `.pte`."""
    mps_ops.define_linears()
    stand_in_for_the_compiler(monkeypatch, MetalCompiler)
    program = bound(checkpoint(SIZE), method, mode, MPS_MATH, FPA4W)
    path = tmp_path / "unit.pte"
    write_unit(lower_program(method, program, METAL), path, METAL)
    described = describe(path).methods[method]
    assert described.delegates == {"MetalBackend": 1}
    assert described.operators == {}
    assert [entry.name for entry in tmp_path.iterdir()] == ["unit.pte"]
    weights = sum(tensor.nbytes for tensor in program.state_dict.values())
    assert weights < path.stat().st_size < 1.5 * weights + 2e5


def test_the_length_of_audio_is_a_symbol_with_its_bounds():
    """Not a multiple of one, and not the example's length."""
    program = bound(checkpoint(ONE_LAYER), "audio_encoder", "offline", MPS_MATH, NONE)
    (mel,) = (node for node in program.graph.nodes if node.name == "mel")
    length = mel.meta["val"].shape[2].node.expr
    assert length.is_Symbol
    (bounds,) = program.range_constraints.values()
    assert (bounds.lower, bounds.upper) == (8, 8 * 256)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_masks_are_numbers_that_the_kernel_leaves_out(dtype):
    """-1e9 or less, after rounding to the dtype; float16's least number is -65504."""
    positions = Positions(torch.arange(6), None)
    mask = MpsSDPA(2, 2, 64).make_mask(positions, SequenceKV(3, heads_first=True), dtype)
    assert mask.dtype == dtype
    assert mask.shape == (6, 6)
    seen = torch.ones(6, 6).tril().triu(-2).bool()
    assert torch.all(mask[seen] == 0)
    assert torch.all(mask[~seen] == (-65504 if dtype == torch.float16 else -(2**30)))


def test_a_head_without_a_kernel_is_refused():
    """The program would be written, and fail when it runs."""
    program = bound(checkpoint(ONE_LAYER), "text_decoder", "streaming", MPS_MATH, NONE)
    with pytest.raises(BuildError, match="head dimension 32"):
        METAL.prepare(program)


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("slug", ["fpa4w.g32", "fpa4w.g128.hqq"])
@torch.no_grad()
def test_one_linear_in_torchaos_kernel_equals_its_values(slug, dtype, bias):
    mps_ops.define_linears()
    generator = torch.Generator().manual_seed(0)
    linear = nn.Linear(256, 48, bias=bias, dtype=dtype).requires_grad_(False)
    weight = torch.randn(48, 256, generator=generator).to(dtype)
    quantized = quantize_tensor(weight, Quant.parse(slug))
    linear.weight = nn.Parameter(quantized, requires_grad=False)
    x = torch.randn(1, 5, 256, generator=generator).to(dtype)
    program = torch.export.export(linear, (x,), strict=True)
    METAL.prepare(program)
    # The kernel's weight, in float64, from the parts of the quantized one.
    size = quantized.block_size[1]
    steps = quantized.qdata.view(48, -1, size).double() + 8
    zero = (-(quantized.zero_point.double() + 8) * quantized.scale.double()).to(dtype).double()
    values = steps * quantized.scale.double().unsqueeze(-1) + zero.unsqueeze(-1)
    exact = x.double() @ values.view(48, 256).T
    rounding = 2.0**-23 if dtype == torch.float32 else 2.0**-8
    if bias:
        exact = exact + linear.bias.double()
    got = program.module()(x)
    assert got.shape == exact.shape
    assert (got.double() - exact).abs().max() <= 4 * rounding * exact.abs().max()


def test_missing_says_what_it_takes(monkeypatch):
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert "Apple silicon" in METAL.missing()
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert "xcode-select" in METAL.missing()
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    assert "libtorchao_ops_mps_aten.dylib" in METAL.missing()


def test_with_torchaos_library_nothing_is_missing(monkeypatch, tmp_path):
    (tmp_path / "torchao").mkdir()
    for name in ("__init__.py", "libtorchao_ops_mps_aten.dylib"):
        (tmp_path / "torchao" / name).touch()
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    real = importlib.util.find_spec
    monkeypatch.setattr(
        "voxtral_build.backends.metal.find_spec",
        lambda name: importlib.machinery.PathFinder.find_spec(name, [str(tmp_path)]) or real(name),
    )
    assert METAL.missing() is None


@pytest.mark.parametrize("name", ["metal", "cuda"])
def test_here_something_is_missing_and_that_is_told_without_torch(name):
    script = (
        "import sys; from voxtral_build.backends import BACKENDS; "
        f"print(BACKENDS['{name}'].missing()); sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() not in ("", "None")
