"""Quantized weights: values, layouts, files."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from tests.models import ONE_LAYER, builder, checkpoint
from voxtral_build.errors import ConfigError
from voxtral_build.matrix import Quant
from voxtral_build.model.attention import STANDARD
from voxtral_build.quantization import (
    placeholder,
    quantize_tensor,
    quantized_names,
    read_component,
)
from voxtral_build.steps import quantize

DA4W, W8 = Quant.parse("8da4w.g32"), Quant.parse("8w.axis")


def test_8da4w_is_symmetric_per_group_with_bf16_scales():
    """Against the closed form: q the nearest to w / s, s = bf16(max |w| / 7.5) in each group."""
    weight = torch.randn(16, 96, generator=torch.Generator().manual_seed(0))
    quantized = quantize_tensor(weight, DA4W)
    groups = weight.view(16, 3, 32)
    scale = (groups.abs().amax(-1) / 7.5).bfloat16().float()
    assert torch.equal(quantized.scale, scale)
    exact = (groups / scale.unsqueeze(-1)).clamp(-8, 7)
    assert (quantized.qdata.view(16, 3, 32) - exact).abs().max() <= 0.5 + 1e-5
    assert torch.count_nonzero(quantized.zero_point) == 0


def test_8w_is_symmetric_per_row():
    weight = torch.randn(16, 96, generator=torch.Generator().manual_seed(0))
    quantized = quantize_tensor(weight, W8)
    scale = weight.abs().amax(-1, keepdim=True) / 127.5
    torch.testing.assert_close(quantized.scale, scale)
    torch.testing.assert_close(quantized.dequantize(), weight, atol=float(scale.max()), rtol=0)


@pytest.mark.parametrize("quant", [DA4W, W8, Quant.parse("8da4w.g64")], ids=lambda q: q.slug)
def test_placeholder_has_the_layout_of_the_real_thing(quant):
    real = quantize_tensor(torch.randn(24, 128), quant)
    empty = placeholder(torch.Size((24, 128)), quant, torch.float32)
    for part in ("qdata", "scale", "zero_point"):
        assert getattr(real, part).shape == getattr(empty, part).shape
        assert getattr(real, part).dtype == getattr(empty, part).dtype
    assert real._quantization_type() == empty._quantization_type()


def test_a_component_goes_through_its_file_unchanged(tmp_path):
    folder = checkpoint(ONE_LAYER)
    model = builder(folder, "offline", attention=STANDARD).meta_model()
    for component, quant in (("encoder", DA4W), ("decoder", DA4W), ("embedding", W8)):
        path = tmp_path / f"{component}.safetensors"
        args = {"checkpoint": folder, "component": component, "quant": quant, "dtype": "fp32"}
        quantize.run(**args, output=path)
        read = read_component(path, model, component, quant, torch.float32)
        source = load_file(folder / "consolidated.safetensors")
        from voxtral_build.weights import checkpoint_key

        quantized = quantized_names(model, component, quant)
        assert quantized
        for name, tensor in read.items():
            original = source[checkpoint_key(name)].float()
            if name in quantized:
                assert torch.equal(tensor.qdata, quantize_tensor(original, quant).qdata)
            else:
                assert torch.equal(tensor, original)
        first = path.read_bytes()
        quantize.run(**args, output=path)
        assert path.read_bytes() == first


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
        quantize.run(
            checkpoint=checkpoint(ONE_LAYER),
            component="encoder",
            quant=Quant.parse("8da4w.g64"),
            dtype="fp32",
            output=tmp_path / "out",
        )
    assert "encoder.layers.0.feed_forward.w2" in caught.value.what
    assert caught.value.allowed is not None
    assert "32" in caught.value.allowed
    assert list(tmp_path.iterdir()) == []
