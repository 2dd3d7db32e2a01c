"""Every scheme as an artifact: what runs is what was quantized, and as small as promised."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from torch import nn

from tests.factory import SCHEMES
from voxtral_build.axes import COMPONENT_OF
from voxtral_build.backends import BACKENDS
from voxtral_build.backends.lowering import lower_program
from voxtral_build.manifest import Manifest
from voxtral_build.pte.inspect import describe, undelegated_linears
from voxtral_build.quant import Quant
from voxtral_build.quantization import quantize_tensor
from voxtral_build.runtime.program import Program
from voxtral_build.variants import Variant

pytestmark = pytest.mark.lowering

QUANTIZED = [name for name in SCHEMES if name not in ("none", "embedding_4w")]
VARIANTS = [
    *(
        Variant("xnnpack", "fp32", scheme, mode)
        for scheme in QUANTIZED
        if scheme != "8da4w"  # in test_artifacts
        for mode in ("offline", "streaming")
    ),
    *(Variant("portable", "fp32", scheme, "streaming") for scheme in QUANTIZED),
    *(Variant("portable", "bf16", scheme, "streaming") for scheme in ("none", "embedding_4w")),
    *(Variant("portable", "bf16", scheme, "offline") for scheme in ("none", "8w_8da4w")),
]


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.slug)
def test_an_artifact_equals_quantized_eager_over_real_speech(factory, variant, tmp_path):
    output = tmp_path / "report.json"
    factory.validate(variant, output)
    report = json.loads(output.read_text())
    assert all(gate["passed"] for gate in report["gates"])
    assert report["speech"]["token_agreement"] >= 0.95
    for name, method in report["methods"].items():
        if variant.backend == "xnnpack":
            assert method["undelegated_linears"] == 0
        quant = SCHEMES[variant.scheme].of(COMPONENT_OF[name])
        # Float activations in float32: sums in another order, and nothing else.
        if variant.dtype == "fp32" and not quant.type.startswith("8da"):
            parity = method["parity"]
            assert parity["max_abs_difference"] <= 1e-5 * max(1, parity["max_abs_output"])
    assert Manifest.load(factory.artifact(variant) / "manifest.json").variant == variant.slug


@pytest.mark.parametrize("backend", ["xnnpack", "portable"])
@pytest.mark.parametrize("scheme", QUANTIZED)
def test_a_quantized_artifact_is_as_small_as_its_scheme_says(factory, scheme, backend):
    """Against the same in float32; what was left as it is saves nothing."""
    variant = Variant(backend, "fp32", scheme, "streaming")
    plain = Variant(backend, "fp32", "none", "streaming")
    size, full = ((factory.artifact(v) / "model.pte").stat().st_size for v in (variant, plain))
    promised = 0.0
    for path in factory.variant_weights(variant).values():
        report = json.loads(path.with_suffix(".json").read_text())
        for name, weight in report["weights"].items():
            rows, width = factory.shape(name)
            promised += rows * width * (32 - weight["bits_per_weight"]) / 8
    # Paddings, and graphs that say more, eat some of it.
    assert full - size > 0.93 * promised


def test_the_manifest_tells_what_was_left_as_it_is(factory):
    artifact = factory.artifact(Variant("xnnpack", "fp32", "mixed", "offline"))
    components = Manifest.load(artifact / "manifest.json").components
    decoder = components["decoder"]
    assert decoder["quantization"] == {
        "type": "8da4w",
        "group_size": 64,
        "algorithm": "hqq",
        "packing_format": "plain",
        "skip_incompatible_shapes": True,
    }
    # Of widths 96, 128 (both feed-forwards' and attention's outputs) and 32, groups of 64
    # divide 128.
    left = decoder["left_as_is"]
    assert "decoder.output.weight" in left
    assert "decoder.layers.0.ada_rms_norm_t_cond.2.weight" in left
    assert "decoder.layers.0.attention.wo.weight" not in left
    assert "decoder.layers.0.feed_forward.w2.weight" not in left
    assert components["encoder"]["left_as_is"] == []
    described = describe(artifact / "model.pte")
    assert undelegated_linears(described.methods["text_decoder"]) == 0


def lowered(module, x, backend, path):
    program = torch.export.export(module, (x,), strict=True)
    with path.open("wb") as file:
        lower_program("forward", program, BACKENDS[backend]).write_to_file(file)
    return Program(path).method("forward")


def quantized_linear(slug, dtype, bias):
    generator = torch.Generator().manual_seed(0)
    linear = nn.Linear(128, 256, bias=bias).requires_grad_(False).to(dtype)
    weight = torch.randn(256, 128, generator=generator).to(dtype)
    linear.weight = nn.Parameter(quantize_tensor(weight, Quant.parse(slug)), False)
    return linear, torch.randn(1, 64, 128, generator=generator).to(dtype)


XNNPACK = ["4w.axis", "8w.axis", "8da4w.g32", "8da4w.g64", "8da4w.axis", "8da8w.axis"]
PORTABLE = [*XNNPACK, "4w.g32", "8w.g64", "8da8w.g32"]


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
@pytest.mark.parametrize(
    ("backend", "slug"),
    [*(("xnnpack", slug) for slug in XNNPACK), *(("portable", slug) for slug in PORTABLE)],
)
@torch.no_grad()
def test_one_quantized_linear_equals_eager(tmp_path, backend, slug, bias):
    """Rounding differs in no value, so that nothing but sums in another order is left.

    Through a whole model a flipped last bit spreads; here a fault of a thousandth in scales
    or zero points would show.
    """
    linear, x = quantized_linear(slug, torch.float32, bias)
    path = tmp_path / "linear.pte"
    run = lowered(linear, x, backend, path)
    expected = linear(x)
    assert (run(x) - expected).abs().max() <= 1e-6 * expected.abs().max()
    if backend == "xnnpack":
        assert undelegated_linears(describe(path).methods["forward"]) == 0
    assert path.stat().st_size < 0.5 * 4 * 128 * 256  # float32's half: it is stored quantized


@pytest.mark.parametrize(
    ("backend", "slug"),
    [
        *(("xnnpack", "8w.axis"), ("portable", "8da4w.g32")),
        *(("mlx", "4w.g32"), ("vulkan", "8da4w.g32")),
    ],
)
def test_lowering_needs_nothing_that_other_work_imported(tmp_path, backend, slug):
    """In a process of its own, as the workflow lowers: ops are there once someone imports them."""
    code = (
        "import torch\n"
        "from tests.test_schemes import quantized_linear\n"
        "from voxtral_build.backends import BACKENDS\n"
        "from voxtral_build.backends.lowering import lower_program\n"
        f"linear, x = quantized_linear('{slug}', torch.float32, True)\n"
        "program = torch.export.export(linear, (x,), strict=True)\n"
        f"lowered = lower_program('forward', program, BACKENDS['{backend}'])\n"
        f"lowered.write_to_file(open({str(tmp_path / 'one.pte')!r}, 'wb'))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert describe(tmp_path / "one.pte").methods


@pytest.mark.parametrize("slug", ["4w.g32", "8w.axis", "8da4w.g32", "8da8w.axis"])
@torch.no_grad()
def test_one_quantized_linear_in_bf16_rounds_as_eager_does(tmp_path, slug):
    linear, x = quantized_linear(slug, torch.bfloat16, bias=False)
    path = tmp_path / "linear.pte"
    got = lowered(linear, x, "portable", path)(x).float()
    eager = linear(x).float()
    exact = nn.functional.linear(x.float(), linear.weight.dequantize().float())
    assert (got - exact).norm() <= 1.05 * (eager - exact).norm()
    assert path.stat().st_size < 0.75 * 2 * 128 * 256


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(96, 96, 3, stride=2)

    def forward(self, x):
        return self.conv(x)


@pytest.mark.parametrize(
    ("module", "shape", "bound"),
    [
        (nn.Linear(96, 96, bias=False), (1, 40, 96), 1.01),
        (nn.Linear(96, 96), (1, 40, 96), 1.5),  # rounds before the bias, and after
        (Convolution(), (1, 96, 40), 1.01),
    ],
    ids=["linear", "linear_with_bias", "convolution"],
)
@torch.no_grad()
def test_bf16_on_portable_kernels_adds_up_in_float32(tmp_path, module, shape, bound):
    """Its error is that of rounding inputs, weights and outputs, as PyTorch's own is."""
    module.requires_grad_(False)
    module.to(torch.bfloat16)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).bfloat16()
    got = lowered(module, x, "portable", tmp_path / "one.pte")(x).float()
    eager = module(x).float()
    exact = module.float()(x.float())
    assert (got - exact).norm() <= bound * (eager - exact).norm()
