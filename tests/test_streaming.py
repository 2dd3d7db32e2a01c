"""Streaming against offline, and caches against attention without a cache."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.models import checkpoint, eager, random_embeds, random_mel, stream_decode, stream_encode
from voxtral_build.model.attention import FAMILIES
from voxtral_build.model.kv_cache import Positions, RingKVCache, StandardRingKVCache
from voxtral_build.model.layers import reset_runtime_buffers

EACH_FAMILY = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)


@EACH_FAMILY
@pytest.mark.parametrize("fidelity_settings", ["reference", "executorch"])
@torch.no_grad()
def test_streaming_encoder_equals_offline(family, fidelity_settings):
    from voxtral_build.settings import Settings

    # Within the window: `executorch` has none offline.
    settings = Settings(max_seq_len=256, fidelity=fidelity_settings)
    mel = random_mel(40 if fidelity_settings == "executorch" else 480)
    offline = eager(checkpoint(), "audio_encoder", "offline", settings, family)(mel)
    streaming = eager(checkpoint(), "encode_audio_chunk", "streaming", settings, family)
    torch.testing.assert_close(stream_encode(streaming, mel), offline, atol=2e-5, rtol=0)


@EACH_FAMILY
@torch.no_grad()
def test_an_utterance_after_another_is_as_after_none(family):
    """Position 0 starts anew: no state of the utterance before is seen."""
    encode = eager(checkpoint(), "encode_audio_chunk", "streaming", attention=family)
    first, second = random_mel(96, seed=1), random_mel(64, seed=2)
    alone = stream_encode(encode, second)
    stream_encode(encode, first)
    assert torch.equal(stream_encode(encode, second), alone)

    decode = eager(checkpoint(), "text_decoder", "streaming", attention=family)
    embeds, before = random_embeds(40, 128, seed=1), random_embeds(70, 128, seed=2)
    alone = stream_decode(decode, embeds, 8)
    stream_decode(decode, before, 8)
    assert torch.equal(stream_decode(decode, embeds, 8), alone)


@EACH_FAMILY
@pytest.mark.parametrize("chunk", [1, 3, 4, 8])
@torch.no_grad()
def test_ring_attention_equals_windowed_attention(family, chunk):
    """Past five wraps, with calls as large as the window, grouped heads and all."""
    window, heads, kv_heads, dim, length = 8, 4, 2, 16, 96
    generator = torch.Generator().manual_seed(chunk)
    q = torch.randn(1, length, heads, dim, generator=generator)
    k = torch.randn(1, length, kv_heads, dim, generator=generator)
    v = torch.randn(1, length, kv_heads, dim, generator=generator)

    cache = family.ring_cache(window, kv_heads, dim)
    sdpa = family.sdpa(heads, kv_heads, dim)
    reset_runtime_buffers(cache, torch.float32)
    outputs = []
    for start in range(0, length, chunk):
        part = slice(start, start + chunk)
        positions = Positions(torch.arange(start, start + chunk), None)
        keys, values = cache.update(positions, k[:, part].contiguous(), v[:, part].contiguous())
        mask = sdpa.make_mask(positions, cache, torch.float32)
        outputs.append(sdpa(positions, q[:, part].contiguous(), keys, values, mask))

    distance = torch.arange(length)[:, None] - torch.arange(length)[None, :]
    expected = F.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=(distance >= 0) & (distance < window),
        enable_gqa=True,
    )
    expected = expected.transpose(1, 2).reshape(1, length, heads * dim)
    torch.testing.assert_close(torch.cat(outputs, dim=1), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("cache_class", [RingKVCache, StandardRingKVCache])
def test_ring_positions_equal_a_simulation(cache_class):
    """Which position each slot holds, against writing them down one by one."""
    cache, slots = cache_class(4, 1, 2), 8
    held = [-1] * slots
    for start in range(0, 50, 3):
        for position in range(start, start + 3):
            held[position % slots] = position
        found = cache.key_positions(Positions(torch.arange(start, start + 3), None)).tolist()
        # Any negative number says "nothing yet".
        assert [max(position, -1) for position in found] == held
