"""Run the model itself over speech, once for all variants: what they are measured by."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from voxtral_build.audio import log_mel
from voxtral_build.checkpoint import TOKENIZER
from voxtral_build.runtime.greedy import pad_audio
from voxtral_build.runtime.layerwise import LayerwiseModel
from voxtral_build.runtime.reference import Reference
from voxtral_build.speech import read_speech
from voxtral_build.tokenizer import StreamingTokens

log = logging.getLogger(__name__)


def run(*, checkpoint: Path, delay_tokens: int, audio: Sequence[Path], output: Path) -> None:
    """Write the reference of `audio`, one recording after the other, to `output`.

    Args:
        delay_tokens: the transcription delay, in tokens.
    """
    model = LayerwiseModel(checkpoint, delay_tokens)
    tokens = StreamingTokens.load(checkpoint / TOKENIZER)
    samples = read_speech(audio, model.config.audio.sampling_rate)
    mel = log_mel(pad_audio(samples, model.config, tokens, delay_tokens), model.config.audio)
    prompt = tokens.prompt(delay_tokens)
    embeds = model.audio_embeds(mel)
    log.info("audio embeddings of %d tokens", embeds.shape[1])
    ids, logits = model.greedy(embeds, prompt)
    Reference.of(embeds, ids, logits, len(prompt)).save(output)
