"""`fidelity: executorch` against the example that the executorch wheel ships."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from executorch.examples.models.voxtral_realtime import export_voxtral_rt as peer_export
from executorch.examples.models.voxtral_realtime import model as peer

from tests.models import checkpoint, eager, random_embeds, random_mel, stream_decode, stream_encode
from voxtral_build.settings import Settings

SETTINGS = Settings(max_seq_len=256, fidelity="executorch")


def _peer(*, streaming: bool) -> Any:
    return peer.load_model(
        str(checkpoint()), max_seq_len=256, n_delay_tokens=6, streaming=streaming
    )


def _assert_same(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


@torch.no_grad()
def test_offline_encoder_equals_the_example() -> None:
    mel = random_mel(160)  # past the window, which the example does not have offline
    ours = eager(checkpoint(), "audio_encoder", "offline", SETTINGS)(mel)
    _assert_same(ours, peer_export.AudioEncoderExport(_peer(streaming=False))(mel))


@torch.no_grad()
def test_streaming_encoder_equals_the_example() -> None:
    mel = random_mel(480)
    theirs = peer.StreamingAudioEncoderExport(_peer(streaming=True), max_enc_len=20)
    ours = eager(checkpoint(), "encode_audio_chunk", "streaming", SETTINGS)
    _assert_same(stream_encode(ours, mel), stream_encode(theirs, mel))


@pytest.mark.parametrize("mode", ["offline", "streaming"])
@torch.no_grad()
def test_decoder_equals_the_example(mode: Any) -> None:
    embeds = random_embeds(120, 128)
    theirs = peer_export.TextDecoderExport(_peer(streaming=mode == "streaming"))
    ours = eager(checkpoint(), "text_decoder", mode, SETTINGS)
    _assert_same(stream_decode(ours, embeds, 16), stream_decode(theirs, embeds, 16))


@torch.no_grad()
def test_the_two_fidelities_differ() -> None:
    """Else the comparison above would show nothing."""
    mel = random_mel(160)
    follows = eager(checkpoint(), "audio_encoder", "offline", SETTINGS)(mel)
    reference = eager(checkpoint(), "audio_encoder", "offline")(mel)
    assert (follows - reference).abs().max() > 1e-2
