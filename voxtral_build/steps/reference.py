"""Run the model itself over recordings, once for all variants: what they are measured by."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from voxtral_build.audio import log_mel
from voxtral_build.checkpoint import TOKENIZER
from voxtral_build.clips import read_clips
from voxtral_build.runtime.greedy import pad_audio
from voxtral_build.runtime.layerwise import LayerwiseModel
from voxtral_build.runtime.reference import SPEECH, Reference, save_references
from voxtral_build.speech import read_speech
from voxtral_build.tokenizer import StreamingTokens

log = logging.getLogger(__name__)


def run(
    *,
    checkpoint: Path,
    delay_tokens: int,
    audio: Sequence[Path],
    clips: Path | None,
    output: Path,
) -> None:
    """Write references to `output`.

    Args:
        delay_tokens: the transcription delay, in tokens.
        audio: recordings that make, one after the other, the speech that methods are
            compared on.
        clips: a set of recordings, each of which has its own reference, by its file's name.
    """
    model = LayerwiseModel.of_checkpoint(checkpoint, delay_tokens)
    tokens = StreamingTokens.load(checkpoint / TOKENIZER)
    rate = model.config.audio.sampling_rate

    def reference(samples: Tensor) -> Reference:
        mel = log_mel(pad_audio(samples, model.config, tokens, delay_tokens), model.config.audio)
        prompt = tokens.prompt(delay_tokens)
        embeds = model.audio_embeds(mel)
        ids, logits = model.greedy(embeds, prompt)
        return Reference.of(embeds, ids, logits, len(prompt))

    recordings = {SPEECH: list(audio)}
    for clip in [] if clips is None else read_clips(clips):
        recordings[clip.path.name] = [clip.path]
    references = {}
    for number, (name, paths) in enumerate(recordings.items(), 1):
        log.info("%d of %d: %s", number, len(recordings), name)
        references[name] = reference(read_speech(paths, rate))
    save_references(output, references)
