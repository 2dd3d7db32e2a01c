"""The key table, and what a wrong checkpoint is told."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.models import ONE_LAYER, builder, checkpoint
from voxtral_build.axes import COMPONENTS
from voxtral_build.errors import CheckpointError
from voxtral_build.model.attention import STANDARD
from voxtral_build.model.config import ModelConfig
from voxtral_build.quant import Quant
from voxtral_build.quantization import quantize_tensor
from voxtral_build.steps import meta_load, synth
from voxtral_build.weights import (
    check,
    checkpoint_key,
    expected_tensors,
    load_component,
    model_name,
    parameter_names,
    read_tensors,
    restore_tie,
)

MM = "mm_streams_embeddings.embedding_module."


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(checkpoint(ONE_LAYER), tmp_path / "copy"))


def rewrite(folder: Path, change) -> None:
    """Write the weights again after `change` worked on the dict of tensors."""
    tensors = load_file(folder / "consolidated.safetensors")
    change(tensors)
    save_file(tensors, folder / "consolidated.safetensors")


def test_full_size_has_the_real_checkpoints_tensors():
    """711 tensors and 8,859,462,744 bytes, as the published file has them."""
    config = ModelConfig.parse(synth.make_params(synth.SIZES["full"]))
    shapes = expected_tensors(config)
    assert len(shapes) == 711
    header = 8_859_462_744 - sum(2 * torch.Size(shape).numel() for shape in shapes.values())
    assert 0 < header < 200_000  # the rest is the file's header
    # Names and shapes from the published file's listing.
    assert shapes[f"{MM}tok_embeddings.weight"] == (131072, 3072)
    assert shapes[f"{MM}audio_language_projection.0.weight"] == (3072, 5120)
    assert shapes[f"{MM}whisper_encoder.conv_layers.0.conv.weight"] == (1280, 128, 3)
    assert shapes[f"{MM}whisper_encoder.transformer.layers.31.attention.wq.bias"] == (2048,)
    assert f"{MM}whisper_encoder.transformer.layers.0.attention.wk.bias" not in shapes
    assert shapes["layers.25.attention.wk.weight"] == (1024, 3072)
    assert shapes["layers.0.ada_rms_norm_t_cond.2.weight"] == (3072, 32)
    assert "output.weight" not in shapes


def test_key_table_goes_both_ways():
    for key in expected_tensors(ModelConfig.load(checkpoint(ONE_LAYER) / "params.json")):
        name = model_name(key)
        assert name is not None
        assert checkpoint_key(name) == key
    assert checkpoint_key("decoder.output.weight") == f"{MM}tok_embeddings.weight"
    assert model_name("vision.weight") is None
    with pytest.raises(KeyError):
        checkpoint_key("vision.weight")


def test_loading_assigns_and_ties():
    folder = checkpoint(ONE_LAYER)
    model = builder(folder, "offline", attention=STANDARD).meta_model()
    for component in COMPONENTS:
        names = parameter_names(model, component)
        load_component(model, component, read_tensors(folder, names, torch.float32))
    assert model.decoder.output.weight is not model.decoder.tok_embeddings.weight
    restore_tie(model)
    assert model.decoder.output.weight is model.decoder.tok_embeddings.weight
    stored = load_file(folder / "consolidated.safetensors")
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, stored[checkpoint_key(name)].float())


def test_a_quantized_output_stays_apart_from_the_embedding():
    folder = checkpoint(ONE_LAYER)
    model = builder(folder, "offline", attention=STANDARD).meta_model()
    for component in ("decoder", "embedding"):
        tensors = read_tensors(folder, parameter_names(model, component), torch.float32)
        if component == "decoder":
            output = quantize_tensor(tensors["decoder.output.weight"], Quant.parse("8da4w.g32"))
            tensors["decoder.output.weight"] = output
        load_component(model, component, tensors)
    restore_tie(model)
    assert model.decoder.output.weight is not model.decoder.tok_embeddings.weight


def test_runtime_buffers_are_made_right_after_loading():
    folder = checkpoint(ONE_LAYER)
    build = builder(folder, "streaming", attention=STANDARD)
    names = parameter_names(build.meta_model(), "decoder")
    tensors = read_tensors(folder, names, torch.float32)
    (module,) = build.build(["text_decoder"], tensors, torch.float32)
    buffers = dict(module.named_buffers())
    assert {buffer.device.type for buffer in buffers.values()} == {"cpu"}
    assert buffers["decoder.layers.0.attention.kv_cache.k_cache"].shape == (1, 2, 32, 32)
    torch.testing.assert_close(
        buffers["decoder.rope.inv_freq"], torch.tensor([1e6 ** (-2 * i / 32) for i in range(16)])
    )


def test_inventory_is_that_of_the_safetensors_package(tmp_path):
    folder = checkpoint(ONE_LAYER)
    meta_load.run(checkpoint=folder, output=tmp_path / "inventory.json")
    inventory = json.loads((tmp_path / "inventory.json").read_text())
    stored = load_file(folder / "consolidated.safetensors")
    assert {entry["key"]: entry["shape"] for entry in inventory["tensors"]} == {
        key: list(tensor.shape) for key, tensor in stored.items()
    }
    blob = (folder / "consolidated.safetensors").read_bytes()
    for entry in inventory["tensors"]:
        content = blob[entry["offset"] : entry["offset"] + entry["bytes"]]
        assert content == stored[entry["key"]].view(torch.uint8).numpy().tobytes()
    totals = inventory["components"].values()
    assert sum(total["parameters"] for total in totals) == sum(t.numel() for t in stored.values())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("layers.0.attention.wk.weight"), "missing: layers.0.attention.wk.weight"),
        (lambda t: t.update(extra=torch.zeros(1)), "unknown: extra"),
        (
            lambda t: t.update({"norm.weight": torch.zeros(7)}),
            r"misshapen: norm.weight \[7\], expected \[96\]",
        ),
        (
            lambda t: t.update({"norm.weight": torch.zeros(96, dtype=torch.int8)}),
            "wrong dtype: norm.weight I8",
        ),
    ],
    ids=["missing", "unknown", "misshapen", "dtype"],
)
def test_a_wrong_tensor_is_named(copy, change, message):
    rewrite(copy, change)
    with pytest.raises(CheckpointError, match=message):
        meta_load.run(checkpoint=copy, output=copy / "inventory.json")
    assert not (copy / "inventory.json").exists()


@pytest.mark.parametrize("name", ["params.json", "consolidated.safetensors", "tekken.json"])
def test_a_missing_file_is_named(copy, name):
    (copy / name).unlink()
    with pytest.raises(CheckpointError, match=name):
        check(copy)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("dim", None, "field dim is missing"),
        ("dim", -3, "field dim is wrong"),
        ("dim", "wide", "field dim is wrong"),
        ("n_kv_heads", 3, "n_heads 4 must be a multiple of n_kv_heads 3"),
        ("head_dim", 31, "field head_dim is wrong"),
        ("multimodal", {}, "field multimodal.whisper_model_args is missing"),
        ("tied_embeddings", False, "field tied_embeddings is wrong"),
    ],
)
def test_a_wrong_params_field_is_named(copy, field, value, message):
    path = copy / "params.json"
    params = json.loads(path.read_text())
    if value is None:
        del params[field]
    else:
        params[field] = value
    path.write_text(json.dumps(params))
    with pytest.raises(CheckpointError, match=message) as caught:
        check(copy)
    assert caught.value.next_step
