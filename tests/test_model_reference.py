"""The eager model against transformers' implementation, on random checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests import transformers_reference
from tests.models import checkpoint, eager, random_embeds, random_mel, stream_decode, stream_encode
from voxtral_build import sound
from voxtral_build.audio import log_mel
from voxtral_build.model.attention import FAMILIES
from voxtral_build.model.config import AudioParams
from voxtral_build.settings import Settings

DATA = Path(__file__).parent / "data"
TOLERANCE = 1e-4
EACH_FAMILY = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)


@pytest.fixture(scope="module")
def reference() -> transformers_reference.Reference:
    return transformers_reference.Reference(checkpoint())


@EACH_FAMILY
@pytest.mark.parametrize("frames", [8, 40, 48, 400])  # 20 encoder frames of window: mel 40
@torch.no_grad()
def test_offline_audio_embeds_equal_the_reference(reference, family, frames):
    mel = random_mel(frames)
    ours = eager(checkpoint(), "audio_encoder", "offline", attention=family)(mel)
    torch.testing.assert_close(ours, reference.audio_embeds(mel), atol=TOLERANCE, rtol=0)


@EACH_FAMILY
@torch.no_grad()
def test_streaming_audio_embeds_equal_the_reference_past_five_ring_wraps(reference, family):
    mel = random_mel(480)  # 240 encoder frames in a ring of 40
    streaming = eager(checkpoint(), "encode_audio_chunk", "streaming", attention=family)
    torch.testing.assert_close(
        stream_encode(streaming, mel), reference.audio_embeds(mel), atol=TOLERANCE, rtol=0
    )


@EACH_FAMILY
@pytest.mark.parametrize("mode", ["offline", "streaming"])
@pytest.mark.parametrize("delay", [2, 6, 30])
@torch.no_grad()
def test_logits_equal_the_reference_at_any_delay(reference, family, mode, delay):
    embeds = random_embeds(60, 128)
    settings = Settings(max_seq_len=64, delay_tokens=delay)
    decode = eager(checkpoint(), "text_decoder", mode, settings, family)
    torch.testing.assert_close(
        stream_decode(decode, embeds, 12),
        reference.logits(embeds, delay),
        atol=TOLERANCE,
        rtol=0,
    )


@EACH_FAMILY
@pytest.mark.parametrize("mode", ["offline", "streaming"])
@torch.no_grad()
def test_logits_equal_the_reference_past_the_window(reference, family, mode):
    embeds = random_embeds(200, 128)  # a window of 16, a ring of 32: six wraps
    decode = eager(checkpoint(), "text_decoder", mode, attention=family)
    torch.testing.assert_close(
        stream_decode(decode, embeds, 16), reference.logits(embeds, 6), atol=TOLERANCE, rtol=0
    )


@torch.no_grad()
def test_token_embeddings_equal_the_reference(reference):
    ids = torch.tensor([[0, 1, 32, 1279]])
    ours = eager(checkpoint(), "token_embedding", "offline")(ids)
    assert torch.equal(ours, reference.token_embeds(ids))


@pytest.mark.parametrize("gain", [1.0, 0.1, 0.01, 0.0])
def test_log_mel_equals_the_reference(gain):
    samples = torch.from_numpy(sound.read(DATA / "jfk_5s.wav", 16_000).samples) * gain
    ours = log_mel(samples, AudioParams())
    torch.testing.assert_close(
        ours, transformers_reference.log_mel(samples.numpy()), atol=1e-4, rtol=0
    )
    if gain == 0.0:
        assert torch.all(ours == -0.625)
