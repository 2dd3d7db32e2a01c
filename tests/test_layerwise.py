"""The model a layer at a time: the same numbers as all of it at once."""

from __future__ import annotations

import pytest
import torch

from tests.models import SETTINGS, random_embeds, random_mel
from tests.sessions import lively_checkpoint, speech
from voxtral_build.audio import log_mel
from voxtral_build.runtime.eager import eager_artifact
from voxtral_build.runtime.greedy import by_position, decode_forced, decode_greedy, pad_audio
from voxtral_build.runtime.layerwise import LayerwiseModel


@pytest.fixture(scope="module")
def model():
    return LayerwiseModel.of_checkpoint(lively_checkpoint(), delay_tokens=6)


@pytest.fixture(scope="module")
def artifact():
    return eager_artifact(lively_checkpoint(), "offline", SETTINGS)


def test_encoder(model, artifact):
    mel = random_mel(8 * 40)
    assert torch.allclose(model.audio_embeds(mel), artifact.methods.encode(mel), atol=1e-5)


def test_decoder_past_several_windows(model, artifact):
    audio = random_embeds(100, model.config.dim)
    ids = torch.randint(0, 1280, (100,), generator=torch.Generator().manual_seed(1)).tolist()
    wanted = decode_forced(artifact.methods, audio, ids, prompt=10)
    assert torch.allclose(model.logits(audio, ids), wanted, atol=1e-4)


def test_greedy_is_what_a_token_at_a_time_says(model, artifact):
    samples = torch.from_numpy(speech())
    mel = log_mel(pad_audio(samples, model.config, artifact.tokens, 6), model.config.audio)
    audio = model.audio_embeds(mel)
    prompt = artifact.tokens.prompt(6)
    said = decode_greedy(artifact.methods, by_position(audio), prompt)
    assert len(set(said)) > 5
    ids, logits = model.greedy(audio, prompt)
    assert ids == [*prompt, *said[:-1]]
    assert logits[0, len(prompt) - 1 :].argmax(-1).tolist() == said


def test_one_layer_is_in_memory(model):
    held = [
        name for name, tensor in model._model.named_parameters() if tensor.device.type != "meta"
    ]
    assert held == []
    most = []
    model._model.decoder.layers[0].register_forward_hook(
        lambda *_: most.append(
            sum(not p.is_meta for p in model._model.parameters())
            - sum(1 for _ in model._model.decoder.layers[0].parameters())
        ),
        prepend=True,
    )
    model.audio_embeds(random_mel(80))
    model.logits(random_embeds(10, model.config.dim), [1] * 10)
    assert most == [0]
