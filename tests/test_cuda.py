"""The CUDA backend up to where only a GPU's host can go on: graphs, weights, the partition."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from tests import cuda_ops
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
from voxtral_build.backends.cuda_graph import name_scalars_apart, tile_pack
from voxtral_build.backends.lowering import lower_program, write_unit
from voxtral_build.model.attention import STANDARD
from voxtral_build.pte.data_file import read_data
from voxtral_build.pte.inspect import describe, undelegated_operators
from voxtral_build.pte.link import link
from voxtral_build.quant import Quant
from voxtral_build.quantization import quantize_tensor

CUDA = BACKENDS["cuda"]
TILES = Quant.parse("4w.g32.tile_packed_to_4d")
METHODS = [*OVER_TIME, ("token_embedding", "offline")]
STREAMING = [
    ("encode_audio_chunk", "streaming"),
    ("text_decoder", "streaming"),
    ("token_embedding", "streaming"),
]


@pytest.fixture(scope="module", params=[NONE, TILES], ids=lambda quant: quant.slug)
def prepared(request):
    """quant, (method, mode) -> its graph as the CUDA backend prepares it, bf16, with weights."""
    quant = request.param
    programs = {}
    for method, mode in METHODS:
        of_method = Quant.parse("8w.axis") if method == "token_embedding" else quant
        program = bound(checkpoint(ONE_LAYER), method, mode, STANDARD, of_method, torch.bfloat16)
        if quant is TILES:
            CUDA.pack(program, quant.packing_format)
        CUDA.prepare(program)
        programs[method, mode] = program
    return quant, programs


@pytest.mark.parametrize(("method", "mode"), OVER_TIME)
def test_the_prepared_graph_computes_what_eager_does(prepared, method, mode):
    """With an error like bf16's own, against the same weights in float32."""
    quant, programs = prepared
    module = eager(
        checkpoint(ONE_LAYER), method, mode, SETTINGS, STANDARD, quant.values, torch.bfloat16
    )
    rounded = over_time(method, module, torch.bfloat16)
    got = over_time(method, programs[method, mode].module(check_guards=False), torch.bfloat16)
    if quant is NONE:
        module = eager(checkpoint(ONE_LAYER), method, mode, SETTINGS, STANDARD)
        exact = over_time(method, module, torch.float32)
        assert (got - exact).norm() <= 1.2 * (rounded - exact).norm()
    else:
        assert (got - rounded).norm() <= 0.03 * rounded.norm()


@pytest.mark.parametrize(("method", "mode"), OVER_TIME)
def test_what_the_prepared_graph_consists_of(prepared, method, mode):
    quant, programs = prepared
    nodes = [n for n in programs[method, mode].graph.nodes if n.op == "call_function"]
    names = [str(node.target) for node in nodes]
    assert not [name for name in names if name.startswith("llama.")]
    assert "aten.conv1d.default" not in names
    assert names.count("aten.conv2d.default") == (0 if method == "text_decoder" else 2)
    linears, packed = (
        names.count(name) for name in ("aten.linear.default", "aten._weight_int4pack_mm.default")
    )
    assert sorted((linears, packed)) == [0, 10 if method == "text_decoder" else 9]
    assert bool(packed) == (quant is TILES)
    (attention,) = [
        n for n in nodes if n.target is torch.ops.aten.scaled_dot_product_attention.default
    ]
    # What ExecuTorch's Triton kernel asks for: (1, 1, T, S), True where a query attends.
    q, k, v = attention.args[:3]
    mask = attention.kwargs.get("attn_mask", attention.args[3:4] and attention.args[3])
    assert mask.meta["val"].dtype == torch.bool
    queries, keys = q.meta["val"].shape[2], k.meta["val"].shape[2]
    assert tuple(mask.meta["val"].shape) == (1, 1, queries, keys)
    if method != "audio_encoder":
        assert k.target is v.target is torch.ops.aten.index_copy_.default
        assert k.meta["val"].shape[1] == v.meta["val"].shape[1] == 2
    assert attention.kwargs.get("enable_gqa", False) == (method == "text_decoder")


@pytest.mark.parametrize(("method", "mode"), METHODS)
def test_the_partitioner_takes_every_node(prepared, method, mode):
    """And the backend's own passes put its attention kernel in the place of PyTorch's."""
    executorch = cuda_ops.cuda_backend()
    _, programs = prepared
    (partitioner,) = CUDA.partitioners(method)
    assert partitioner.delegation_spec.backend_id == CUDA.delegate
    specs = {spec.key: spec.value for spec in partitioner.delegation_spec.compile_specs}
    assert specs == {"method_name": method.encode(), "target_device": b"cuda:0"}
    edge = everything_is_one_delegate(method, programs[method, mode], CUDA, partitioner)
    for rewrite in executorch.get_custom_passes(partitioner.delegation_spec.compile_specs):
        whole = getattr(rewrite, "requires_exported_program", False)
        rewrite(edge if whole else edge.graph_module)
    names = [str(node.target) for node in edge.graph.nodes]
    assert len([n for n in names if n.startswith("triton.sdpa")]) == (method != "token_embedding")
    assert not [name for name in names if "scaled_dot_product" in name]


def test_around_the_compiler_units_with_data_files_are_joined(monkeypatch, tmp_path):
    """Weights lie in the data file by their names in the model, which no two methods share."""
    stand_in_for_the_compiler(monkeypatch, cuda_ops.cuda_backend())
    units = []
    for method, mode in STREAMING:
        quant = Quant.parse("8w.axis") if method == "token_embedding" else TILES
        program = bound(checkpoint(ONE_LAYER), method, mode, STANDARD, quant, torch.bfloat16)
        lowered = lower_program(method, program, CUDA, quant.packing_format)
        units.append(tmp_path / f"{method}.pte")
        write_unit(lowered, units[-1], CUDA)
        described = describe(units[-1]).methods[method]
        assert described.delegates == {"CudaBackend": 1}
        # Nothing else than what goes in, and what comes out.
        inputs = 1 if method == "token_embedding" else 2
        copies = {"et_copy::_h2d_copy.out": inputs, "et_copy::_d2h_copy.out": 1}
        assert described.operators == copies
        assert undelegated_operators(described) == {}
        entries = read_data(units[-1].with_suffix(".ptd")).entries
        if method == "token_embedding":
            assert len(entries) > 0
            continue
        # All linears are packed: no tensor of torchao's class is left, to be taken apart.
        for name, tensor in program.state_dict.items():
            assert entries[f"cuda_fqn_weight:cpu:{name}"].extent.size == tensor.nbytes
        assert any(name.endswith("wo.weight.packed") for name in program.state_dict)
    output = tmp_path / "model.pte"
    link(units, output, {}, data_files={unit: unit.with_suffix(".ptd") for unit in units})
    assert describe(output).methods.keys() == {method for method, _ in STREAMING}
    joined = read_data(output.with_suffix(".ptd"))
    parts = [read_data(unit.with_suffix(".ptd")).entries for unit in units]
    assert len(joined.entries) == sum(len(part) for part in parts)


@pytest.mark.parametrize(("rows", "width"), [(8, 128), (24, 384)])
def test_tile_packing_is_what_the_kernel_unpacks(rows, width):
    values = torch.randint(-8, 8, (rows, width), generator=torch.Generator().manual_seed(0))
    packed = tile_pack(values.to(torch.int8))
    assert packed.dtype == torch.int32
    assert packed.shape == (rows // 8, width // 128, 32, 4)
    assert torch.equal(cuda_ops.unpack(packed), values)


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
@pytest.mark.parametrize(
    ("slug", "rows", "width"),
    [("4w.g32", 48, 256), ("4w.g128", 48, 256), ("4w.g32", 20, 32), ("4w.g64", 20, 192)],
)
@torch.no_grad()
def test_one_packed_linear_equals_its_values(slug, rows, width, bias):
    """Also where the layer is narrower than the layout, which is filled up."""
    generator = torch.Generator().manual_seed(0)
    linear = nn.Linear(width, rows, bias=bias, dtype=torch.bfloat16).requires_grad_(False)
    weight = quantize_tensor(
        torch.randn(rows, width, generator=generator).bfloat16(), Quant.parse(slug)
    )
    linear.weight = nn.Parameter(weight, requires_grad=False)
    x = torch.randn(1, 5, width, generator=generator).bfloat16()
    program = torch.export.export(linear, (x,), strict=True)
    CUDA.pack(program, "tile_packed_to_4d")
    exact = x.double() @ weight.dequantize().double().T
    if bias:
        exact = exact + linear.bias.double()
    got = program.module()(x)
    assert got.shape == exact.shape
    assert (got.double() - exact).abs().max() <= 2 * 2.0**-8 * exact.abs().max()
    sizes = {name: tensor.nbytes for name, tensor in program.state_dict.items()}
    filled_rows, filled_width = -(-rows // 8) * 8, -(-width // 128) * 128
    assert sizes["weight.packed"] == filled_rows * filled_width // 2
    assert "weight" not in sizes


def test_only_int4_weights_for_float_activations_are_packed():
    linear = nn.Linear(128, 16, bias=False).requires_grad_(False)
    for slug in ("8w.axis", "8da4w.g32"):
        weight = quantize_tensor(torch.randn(16, 128), Quant.parse(slug))
        linear.weight = nn.Parameter(weight, requires_grad=False)
        program = torch.export.export(linear, (torch.randn(1, 2, 128),), strict=True)
        CUDA.pack(program, "tile_packed_to_4d")
        assert list(program.state_dict) == ["weight"]


@pytest.fixture
def cuda_host(monkeypatch, tmp_path):
    """A machine that has everything, as far as `missing` looks."""
    (tmp_path / "version").touch()
    (tmp_path / "torch").mkdir()
    version = tmp_path / "torch" / "version.py"
    version.write_text("cuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n")
    (tmp_path / "torch" / "__init__.py").touch()
    module = "voxtral_build.backends.cuda"

    class Spec:
        origin = str(tmp_path / "torch" / "__init__.py")

    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr(f"{module}._DRIVER", tmp_path / "version")
    monkeypatch.setattr(f"{module}.find_spec", lambda _: Spec)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    return version


def test_on_a_cuda_host_nothing_is_missing(cuda_host):
    assert CUDA.missing() is None


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda m: m.setattr("platform.system", lambda: "Darwin"), "Linux; this is Darwin"),
        (
            lambda m: m.setattr("voxtral_build.backends.cuda._DRIVER", Path("/nowhere")),
            "NVIDIA GPU",
        ),
        (lambda m: m.setattr("shutil.which", lambda _: None), "CUDA toolkit"),
    ],
    ids=["mac", "no_driver", "no_toolkit"],
)
def test_what_is_missing_is_named(cuda_host, monkeypatch, change, told):
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setattr("voxtral_build.backends.cuda._TOOLKIT", Path("/nowhere"))
    change(monkeypatch)
    assert told in CUDA.missing()


def test_a_cpu_build_of_pytorch_is_told_from_a_cuda_build(cuda_host):
    cuda_host.write_text("cuda: Optional[str] = None\nhip: Optional[str] = None\n")
    assert "CUDA build" in CUDA.missing()


def test_scalars_of_two_methods_get_two_names():
    from executorch.backends.cuda import cuda_weight_collector as collector

    for _ in range(2):  # the second time nothing is left to do
        name_scalars_apart()
        for name in ("_lifted_tensor_constant5", "constant17", "_tensor_constant0"):
            assert collector._is_aoti_library_local_fqn(name)
        for name in ("decoder.norm.weight", "decoder.constant1"):
            assert not collector._is_aoti_library_local_fqn(name)
