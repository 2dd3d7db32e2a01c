"""Quantized weights: values, layouts, files."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn
from torchao.experimental.quant_api import _quantize
from torchao.quantization import (
    Int8DynamicActivationIntxWeightConfig,
    IntxWeightOnlyConfig,
    quantize_,
)
from torchao.quantization.granularity import PerAxis, PerGroup
from torchao.quantization.quant_primitives import _choose_qparams_and_quantize_affine_hqq

from tests.models import ONE_LAYER, builder, checkpoint
from voxtral_build.axes import COMPONENTS
from voxtral_build.errors import BuildError, ConfigError
from voxtral_build.model.attention import STANDARD
from voxtral_build.quant import QUANT_TYPES, Quant
from voxtral_build.quantization import placeholder, quantize_tensor, quantized_names, zeros
from voxtral_build.quantized_file import ComponentFile, pack_int4, unpack_int4
from voxtral_build.row_blocks import BLOCK_VALUES, Pool, blocks, read_rows
from voxtral_build.steps import quantize
from voxtral_build.tensor_file import read_header
from voxtral_build.weights import checkpoint_key, parameter_names

DA4W, W8 = Quant.parse("8da4w.g32"), Quant.parse("8w.axis")
QUANTS = [
    Quant.parse(f"{name}.{grouping}{algorithm}")
    for name in QUANT_TYPES
    if name != "none"
    for grouping in ("g32", "axis")
    for algorithm in ("", ".hqq")
]
SYMMETRIC = [quant for quant in QUANTS if not quant.zeros]
WITH_ZEROS = [quant for quant in QUANTS if quant.zeros]
EMBEDDING_QUANTS = [quant for quant in QUANTS if QUANT_TYPES[quant.type].embedding]


def slug(quant: Quant) -> str:
    return quant.slug


def gaussian(rows: int, width: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


def expected_error(bits: int, group: int) -> float:
    """Relative RMS error of symmetric rounding of Gaussian values, in groups of `group`.

    The step is the group's largest value over half the number of steps. Rounding to the
    nearest is off by a uniform fraction of it, 1 / 12 in the mean square, except at that
    largest value, which lies half-way between two steps: 1 / 4. E[max^2] is the integral of
    the probability that the largest of `group` half-normals is above sqrt(t).
    """
    x = np.linspace(0, 8, 80_001)
    below = np.array([math.erf(value / math.sqrt(2)) for value in x])
    mean_square_of_max = np.trapezoid(2 * x * (1 - below**group), x)
    half = 2 ** (bits - 1) - 0.5
    return math.sqrt(mean_square_of_max / half**2 / 12 * (1 + 2 / group))


@pytest.mark.parametrize("quant", SYMMETRIC, ids=slug)
def test_error_is_what_rounding_gaussian_weights_gives(quant):
    weight = gaussian(256, 1024)
    error = float((quantize_tensor(weight, quant).dequantize() - weight).norm() / weight.norm())
    expected = expected_error(quant.bits, quant.group_size or 1024)
    # HQQ looks for scales with less error than the largest value's, and finds some at 4 bits.
    low = 0.8 if quant.algorithm == "hqq" else 0.98
    assert low * expected <= error <= 1.02 * expected


@pytest.mark.parametrize("quant", [q for q in SYMMETRIC if q.algorithm == "affine"], ids=slug)
def test_values_are_the_nearest_of_a_symmetric_grid(quant):
    """Against the closed form: s = max |w| / (steps / 2), q the nearest to w / s."""
    rows, width = 16, 96
    weight = gaussian(rows, width)
    quantized = quantize_tensor(weight, quant)
    groups = weight.view(rows, -1, quant.group_size or width)
    scale = groups.abs().amax(-1) / (2 ** (quant.bits - 1) - 0.5)
    if quant.type == "8da4w":
        scale = scale.bfloat16().float()
    torch.testing.assert_close(quantized.scale, scale, rtol=1e-6, atol=0)
    low, high = -(2 ** (quant.bits - 1)), 2 ** (quant.bits - 1) - 1
    exact = (groups / quantized.scale.unsqueeze(-1)).clamp(low, high)
    assert (quantized.qdata.view(groups.shape) - exact).abs().max() <= 0.5 + 1e-4
    assert torch.count_nonzero(quantized.zero_point) == 0


@pytest.mark.parametrize("quant", WITH_ZEROS, ids=slug)
def test_with_zeros_values_reach_from_the_least_to_the_greatest(quant):
    """16 steps between them, and never further off than half a step (affine)."""
    weight = gaussian(16, 128) + 3  # far from symmetric
    quantized = quantize_tensor(weight, quant)
    groups = weight.view(16, -1, quant.group_size or 128)
    least, greatest = groups.amin(-1), groups.amax(-1)
    assert quantized.qdata.min() == -8
    assert quantized.qdata.max() == 7
    if quant.algorithm == "affine":
        torch.testing.assert_close(quantized.scale, (greatest - least) / 15, rtol=1e-5, atol=0)
        torch.testing.assert_close(zeros(quantized), least, rtol=1e-5, atol=0)
        off = (quantized.dequantize() - weight).abs().view(groups.shape)
        assert torch.all(off <= 0.501 * quantized.scale.unsqueeze(-1))


@pytest.mark.parametrize("quant", WITH_ZEROS, ids=slug)
def test_with_zeros_torchao_does_no_better(quant):
    """Its own for Metal: `UIntxWeightOnlyConfig`'s two ways, as its kernels dequantize them."""
    weight = gaussian(64, 256)
    size = quant.group_size or 256
    if quant.algorithm == "hqq":
        steps, scale, middle, _ = _choose_qparams_and_quantize_affine_hqq(
            weight, group_size=size, compute_dtype=torch.float32, device="cpu", raw_output=True
        )
    else:
        steps, scale, middle = _quantize(weight, size, 4, has_weight_zeros=True, signed=False)
    theirs = (steps.view(64, -1, size) - middle.unsqueeze(-1)) * scale.unsqueeze(-1)
    mine = quantize_tensor(weight, quant).dequantize()
    assert (mine - weight).norm() <= 1.01 * (theirs.view(64, 256) - weight).norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("quant", WITH_ZEROS, ids=slug)
def test_groups_of_one_value_are_that_value(quant, dtype):
    weight = torch.tensor([0.0, -1.5, 0.375]).repeat_interleave(64).view(3, 64).to(dtype)
    dequantized = quantize_tensor(weight, quant).dequantize()
    torch.testing.assert_close(dequantized, weight, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("quant", [q for q in SYMMETRIC if q.type != "8da4w"], ids=slug)
def test_torchao_quantizes_a_module_to_the_same(quant):
    """Through its public call, which takes a module and a config."""
    linear = nn.Linear(128, 48, bias=False)
    mine = quantize_tensor(linear.weight.detach().clone(), quant)
    granularity = PerGroup(quant.group_size) if quant.group_size else PerAxis(0)
    target = torch.int4 if quant.bits == 4 else torch.int8
    algorithm = "hqq_scale_only" if quant.algorithm == "hqq" else "affine"
    if quant.type.startswith("8da"):
        config = Int8DynamicActivationIntxWeightConfig(
            weight_dtype=target,
            weight_granularity=granularity,
            intx_choose_qparams_algorithm=algorithm,
        )
    else:
        config = IntxWeightOnlyConfig(
            weight_dtype=target, granularity=granularity, intx_choose_qparams_algorithm=algorithm
        )
    quantize_(linear, config)
    assert torch.equal(linear.weight.qdata, mine.qdata)
    assert torch.equal(linear.weight.scale, mine.scale)
    for name in ("block_size", "target_dtype", "dtype", "activation_quantization"):
        assert getattr(linear.weight, name) == getattr(mine, name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("quant", QUANTS, ids=slug)
def test_placeholder_has_the_layout_of_the_real_thing(quant, dtype):
    real = quantize_tensor(torch.randn(24, 128).to(dtype), quant)
    empty = placeholder(torch.Size((24, 128)), quant, dtype)
    for part in ("qdata", "scale", "zero_point"):
        assert getattr(real, part).shape == getattr(empty, part).shape
        assert getattr(real, part).dtype == getattr(empty, part).dtype
    assert real._quantization_type() == empty._quantization_type()


@pytest.mark.parametrize("quant", QUANTS, ids=slug)
def test_bf16_weights_are_quantized_as_well_as_float32_ones(quant):
    """Scales are rounded to bf16 before the weights are: off by rounding the scale at most."""
    weight = gaussian(64, 256).bfloat16()
    half = quantize_tensor(weight, quant)
    whole = quantize_tensor(weight.float(), quant)
    assert half.dtype == half.scale.dtype == torch.bfloat16
    norm = weight.float().norm()
    # The values times the scales, without rounding the product to bf16 again.
    values = half.qdata.view(64, half.scale.shape[1], -1) * half.scale.float().unsqueeze(-1)
    if quant.zeros:
        values += (8 * half.scale.float() + zeros(half).float()).unsqueeze(-1)
    error = float((values.view(64, 256) - weight.float()).norm() / norm)
    assert error <= 1.02 * float((whole.dequantize() - weight.float()).norm() / norm) + 2**-9


def test_int4_packing():
    """The even column in the lower half, each plus 8, as the layout says."""
    values = torch.tensor([[-8, 7, 0, -1], [1, 2, -3, -4]], dtype=torch.int8)
    assert pack_int4(values).tolist() == [[0xF0, 0x78], [0xA9, 0x45]]
    every = torch.arange(-8, 8, dtype=torch.int8).repeat(16).view(16, 16)
    assert torch.equal(unpack_int4(pack_int4(every)), every)


def run(folder, component, quant, output, *, dtype="fp32", threads=2):
    quantize.run(
        checkpoint=folder,
        component=component,
        quant=quant,
        dtype=dtype,
        threads=threads,
        output=output,
    )
    return json.loads(output.with_suffix(".json").read_text())


CELLS = [
    *(("encoder", quant) for quant in QUANTS),
    *(("decoder", quant) for quant in QUANTS),
    *(("embedding", quant) for quant in EMBEDDING_QUANTS),
]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("component", "quant"), CELLS, ids=lambda value: getattr(value, "slug", value)
)
def test_a_component_goes_through_its_file_unchanged(tmp_path, component, quant, dtype):
    folder = checkpoint(ONE_LAYER)
    model = builder(folder, "offline", attention=STANDARD).meta_model()
    path = tmp_path / "w.safetensors"
    report = run(folder, component, quant, path, dtype=dtype)
    torch_dtype = torch.float32 if dtype == "fp32" else torch.bfloat16
    file = ComponentFile(path, model, component, quant, torch_dtype)
    read = file.read(parameter_names(model, component))
    source = load_file(folder / "consolidated.safetensors")
    quantized = quantized_names(model, component, quant)
    assert quantized == report["weights"].keys()
    assert report["left_as_is"] == []
    for name, tensor in read.items():
        original = source[checkpoint_key(name)].to(torch_dtype)
        if name not in quantized:
            assert torch.equal(tensor, original)
            continue
        direct = quantize_tensor(original, quant)
        if quant.algorithm == "affine":  # the search stops when all of a block has settled
            assert torch.equal(tensor.qdata, direct.qdata)
            assert torch.equal(tensor.scale, direct.scale)
            if quant.zeros:
                torch.testing.assert_close(zeros(tensor), zeros(direct), rtol=1e-6, atol=0)
        assert tensor._quantization_type() == direct._quantization_type()
        error = (tensor.dequantize().float() - original.float()).norm() / original.float().norm()
        assert report["weights"][name]["relative_rms_error"] == pytest.approx(float(error), 1e-4)


@pytest.mark.parametrize(
    ("component", "quant"), CELLS, ids=lambda value: getattr(value, "slug", value)
)
def test_size_is_bits_per_weight_and_scales(tmp_path, component, quant):
    """4 or 8 bits, a scale a group (bf16 for 8da4w, else float32), a zero; float32 the rest."""
    folder = checkpoint(ONE_LAYER)
    path = tmp_path / "w.safetensors"
    report = run(folder, component, quant, path)
    with safe_open(str(path), framework="pt") as file:
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    expected = 0.0
    for name, shape in shapes.items():
        if not name.endswith((".qdata", ".scale", ".zero")):
            expected += 4 * math.prod(shape)
    source = read_header(folder / "consolidated.safetensors").tensors
    for name, weight in report["weights"].items():
        rows, width = source[checkpoint_key(name)].shape
        scale_bits = 16 if quant.type == "8da4w" else 32
        numbers = 2 if quant.zeros else 1
        bits = quant.bits + numbers * scale_bits / (quant.group_size or width)
        assert weight["bits_per_weight"] == pytest.approx(bits, rel=0.02)
        expected += rows * width * bits / 8
    header = int.from_bytes(path.read_bytes()[:8], "little") + 8
    assert path.stat().st_size - header == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("algorithm", ["affine", "hqq"])
def test_bytes_do_not_depend_on_the_number_of_threads(tmp_path, monkeypatch, algorithm):
    monkeypatch.setattr("voxtral_build.row_blocks.BLOCK_VALUES", 1000)  # many blocks
    quant = Quant(type="8da4w", algorithm=algorithm)
    folder, contents = checkpoint(ONE_LAYER), []
    for threads in (1, 5):
        path = tmp_path / f"{threads}.safetensors"
        report = run(folder, "decoder", quant, path, threads=threads)
        contents.append((path.read_bytes(), report))
    assert contents[0] == contents[1]


def test_blocks_are_the_tensor():
    folder = checkpoint(ONE_LAYER)
    file = read_header(folder / "consolidated.safetensors")
    for key, tensor in load_file(folder / "consolidated.safetensors").items():
        info = file.tensors[key]
        with file.path.open("rb", buffering=0) as handle:
            parts = [read_rows(handle.fileno(), info, rows) for rows in blocks(info.shape)]
        assert torch.equal(torch.cat(parts), tensor)
    ranges = list(blocks((131072, 3072)))
    assert ranges[0][0] == 0
    assert ranges[-1][1] == 131072
    assert all(a[1] == b[0] for a, b in itertools.pairwise(ranges))
    assert max((end - begin) * 3072 for begin, end in ranges) <= BLOCK_VALUES


def test_a_pool_keeps_the_order_and_few_results():
    started = []

    def items():
        for item in range(100):
            started.append(item)
            yield item

    with Pool(2) as pool:
        results = pool.map(lambda item: item * item, items())
        assert next(results) == 0
        assert len(started) < 10  # the rest waits until there is room
        assert list(results) == [item * item for item in range(1, 100)]
        with pytest.raises(ZeroDivisionError):
            list(pool.map(lambda item: 1 // item, [1, 0, 1]))


def test_convolutions_and_norms_are_never_quantized():
    model = builder(checkpoint(ONE_LAYER), "offline", attention=STANDARD).meta_model()
    names = quantized_names(model, "encoder", DA4W)
    assert len(names) == 7 + 2  # a layer's linears, and the adapter's
    assert not [name for name in names if "conv" in name or "norm" in name]
    decoder = quantized_names(model, "decoder", DA4W)
    assert "decoder.output.weight" in decoder
    assert "decoder.layers.0.ada_rms_norm_t_cond.0.weight" in decoder


def test_a_group_size_that_does_not_fit_names_the_layer(tmp_path):
    with pytest.raises(ConfigError) as caught:
        run(checkpoint(ONE_LAYER), "encoder", Quant.parse("8da4w.g64"), tmp_path / "w.safetensors")
    assert "encoder.layers.0.feed_forward.w2" in caught.value.what
    assert caught.value.allowed is not None
    assert "32" in caught.value.allowed
    assert caught.value.next_step is not None
    assert "skip_incompatible_shapes" in caught.value.next_step
    assert list(tmp_path.iterdir()) == []


def test_layers_that_do_not_fit_are_left_on_request(tmp_path):
    folder = checkpoint(ONE_LAYER)
    quant = Quant.parse("8da4w.g64.skip")
    path = tmp_path / "w.safetensors"
    report = run(folder, "encoder", quant, path)
    # Widths of 96; the others are 64 and, in the adapter, 256.
    assert report["left_as_is"] == [
        "adapter.w_out.weight",
        "encoder.layers.0.feed_forward.w2.weight",
    ]
    model = builder(folder, "offline", attention=STANDARD).meta_model()
    file = ComponentFile(path, model, "encoder", quant, torch.float32)
    read = file.read(report["left_as_is"])
    source = load_file(folder / "consolidated.safetensors")
    for name in report["left_as_is"]:
        assert torch.equal(read[name], source[checkpoint_key(name)].float())


@pytest.mark.parametrize(
    ("component", "quant"), [("embedding", DA4W), ("decoder", Quant.parse("none"))]
)
def test_what_cannot_be_quantized_so_is_refused(tmp_path, component, quant):
    with pytest.raises(ConfigError, match=f"the {component} cannot be quantized so"):
        run(checkpoint(ONE_LAYER), component, quant, tmp_path / "w.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_other_weights_are_refused(tmp_path):
    folder = checkpoint(ONE_LAYER)
    path = tmp_path / "w.safetensors"
    run(folder, "embedding", W8, path)
    model = builder(folder, "offline", attention=STANDARD).meta_model()
    with pytest.raises(BuildError, match="other weights") as caught:
        ComponentFile(path, model, "embedding", Quant.parse("4w.g32"), torch.float32)
    assert "quant 8w.axis" in str(caught.value)
    for component in COMPONENTS:
        if component != "embedding":
            with pytest.raises(BuildError, match="other weights"):
                ComponentFile(path, model, component, W8, torch.float32)
