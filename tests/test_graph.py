"""Exported graphs, saved without weights and bound again, against eager.

A graph that has baked in a position or a mask computes its example and nothing else: each
is run over many positions, past ring wraps and cache fill levels that it was not traced at.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from tests.models import (
    NONE,
    ONE_LAYER,
    builder,
    checkpoint,
    eager,
    random_embeds,
    random_mel,
    stream_decode,
    stream_encode,
)
from voxtral_build.axes import COMPONENT_OF, METHODS_OF
from voxtral_build.errors import BuildError
from voxtral_build.graph import bind_weights, export_method, load_graph, save_graph, strip_weights
from voxtral_build.model import attention
from voxtral_build.model.attention import CUSTOM_SDPA, FAMILIES
from voxtral_build.quant import Quant

EACH_FAMILY = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
DA4W, W8 = Quant.parse("8da4w.g32"), Quant.parse("8w.axis")


def _bound(tmp_path: Path, method, mode, family, quant) -> tuple[nn.Module, nn.Module]:
    """(graph as a module, eager): two instances, since both keep state."""
    folder = checkpoint(ONE_LAYER)
    program = export_method(builder(folder, mode, attention=family), method, quant, torch.float32)
    save_graph(strip_weights(program), tmp_path / "graph.pt2")
    args = {"attention": family, "quant": quant}
    loaded = bind_weights(load_graph(tmp_path / "graph.pt2"), eager(folder, method, mode, **args))
    # Guards off: tracing notes that one token alone is a layout of its own, which the values
    # that are compared here do not depend on.
    return loaded.module(check_guards=False), eager(folder, method, mode, **args)


@EACH_FAMILY
@pytest.mark.parametrize("quant", [NONE, DA4W], ids=lambda q: q.slug)
@torch.no_grad()
def test_offline_encoder_graph(tmp_path, family, quant):
    graph, module = _bound(tmp_path, "audio_encoder", "offline", family, quant)
    # Rounding each token's activations, a graph whose sizes are symbols takes two at least:
    # fewer than any recording has with the silence around it.
    shortest = 16 if family.symbolic_sizes and quant is DA4W else 8
    for frames in (shortest, 24, 160, 8 * 256):  # the example has 160; 2048 is the bound
        mel = random_mel(frames)
        torch.testing.assert_close(graph(mel), module(mel), atol=1e-5, rtol=0)


@EACH_FAMILY
@pytest.mark.parametrize("quant", [NONE, DA4W], ids=lambda q: q.slug)
@torch.no_grad()
def test_streaming_encoder_graph_past_ring_wraps(tmp_path, family, quant):
    graph, module = _bound(tmp_path, "encode_audio_chunk", "streaming", family, quant)
    mel = random_mel(480)
    torch.testing.assert_close(
        stream_encode(graph, mel), stream_encode(module, mel), atol=1e-5, rtol=0
    )


@EACH_FAMILY
@pytest.mark.parametrize("mode", ["offline", "streaming"])
@pytest.mark.parametrize("quant", [NONE, DA4W], ids=lambda q: q.slug)
@torch.no_grad()
def test_decoder_graph_at_many_positions(tmp_path, family, mode, quant):
    graph, module = _bound(tmp_path, "text_decoder", mode, family, quant)
    embeds = random_embeds(200, 96)
    torch.testing.assert_close(
        stream_decode(graph, embeds, 11), stream_decode(module, embeds, 11), atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("quant", [NONE, W8], ids=lambda q: q.slug)
@torch.no_grad()
def test_embedding_graph(tmp_path, quant):
    graph, module = _bound(tmp_path, "token_embedding", "offline", CUSTOM_SDPA, quant)
    for length in (1, 2, 256):
        ids = torch.arange(length).unsqueeze(0) * 5 % 1280
        assert torch.equal(graph(ids), module(ids))


@pytest.mark.parametrize("method", sorted({m for ms in METHODS_OF.values() for m in ms}))
def test_graph_carries_no_weights(tmp_path, method):
    mode = "streaming" if method == "encode_audio_chunk" else "offline"
    path = tmp_path / "graph.pt2"
    build = builder(checkpoint(ONE_LAYER), mode)
    program = strip_weights(export_method(build, method, NONE, torch.float32))
    assert sum(tensor.numel() for tensor in program.state_dict.values()) == 0
    save_graph(program, path)
    weights = sum(
        parameter.numel()
        for name, parameter in build.meta_model().named_parameters()
        if COMPONENT_OF[method] in ("encoder", "decoder") or "tok_embeddings" in name
    )
    assert path.stat().st_size < 4 * weights


def test_binding_another_methods_weights_is_refused(tmp_path):
    folder = checkpoint(ONE_LAYER)
    program = export_method(builder(folder, "offline"), "token_embedding", NONE, torch.float32)
    with pytest.raises(BuildError, match=r"tok_embeddings\.weight"):
        bind_weights(strip_weights(program), eager(folder, "text_decoder", "offline"))


@torch.no_grad()
def test_a_position_baked_in_would_be_seen(monkeypatch):
    """The fault that the comparisons above are for: a graph of one position only."""
    folder = checkpoint(ONE_LAYER)
    monkeypatch.setattr(attention, "start_position", lambda *_: 0)
    program = export_method(builder(folder, "offline"), "text_decoder", NONE, torch.float32)
    monkeypatch.undo()
    module = eager(folder, "text_decoder", "offline")
    graph = bind_weights(program, eager(folder, "text_decoder", "offline")).module()
    embeds = random_embeds(40, 96)
    first, later = stream_decode(graph, embeds, 11), stream_decode(module, embeds, 11)
    torch.testing.assert_close(first[:, :11], later[:, :11], atol=1e-5, rtol=0)
    assert (first[:, 11:] - later[:, 11:]).abs().max() > 0.1
