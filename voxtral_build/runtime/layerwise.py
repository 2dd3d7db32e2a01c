"""The model in eager float32, with one layer's weights in memory at a time.

The real model takes 17 GB in float32. Whole sequences go through one layer after the other,
so that each is read once a pass and never more than the largest is held: the embedding, which
is the output projection, with 1.6 GB.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from voxtral_build.checkpoint import PARAMS
from voxtral_build.model.attention import STANDARD
from voxtral_build.model.config import ModelConfig, RuntimeConfig
from voxtral_build.model.decoder import MistralDecoderLayer, time_embedding
from voxtral_build.model.layers import reset_runtime_buffers
from voxtral_build.model.voxtral import VoxtralRealtimeModel
from voxtral_build.settings import Settings
from voxtral_build.weights import read_tensors

log = logging.getLogger(__name__)

Read = Callable[[Sequence[str]], Mapping[str, Tensor]]


class LayerwiseModel:
    """Encoder and decoder over whole sequences: no cache, no ring, no step.

    Their code is the model's own; each layer finds its weights when it is called.

    Args:
        runtime: its mode says which windows hold. A stream's windows always do.
        read: the tensors of parameters, by the model's names; of one layer in each call.
        dtype: of activations.
    """

    def __init__(
        self, config: ModelConfig, runtime: RuntimeConfig, read: Read, dtype: torch.dtype
    ) -> None:
        self.config = config
        self.runtime = runtime
        self.dtype = dtype
        self._read = read
        with torch.device("meta"):
            self._model = VoxtralRealtimeModel(config, runtime, STANDARD)
        self._model.requires_grad_(False)
        window = runtime.offline_decoder_window
        if runtime.mode == "streaming":
            self._model.encoder.window = runtime.max_enc_len
            window = runtime.sliding_window
        for layer in cast("list[MistralDecoderLayer]", self._model.decoder.layers):
            del layer.attention.kv_cache
            layer.attention.kv_cache = cast("Any", STANDARD.sequence(window))
        reset_runtime_buffers(self._model, dtype)
        for name, module in self._parts():
            self._stream(name, module)

    @classmethod
    def of_checkpoint(cls, checkpoint: Path, delay_tokens: int) -> Self:
        """The model itself in float32, with its own windows.

        Args:
            checkpoint: a folder with Mistral's three files.
            delay_tokens: the transcription delay, in tokens; nothing else is a build's choice.

        Raises:
            CheckpointError: not such a folder.
        """
        config = ModelConfig.load(checkpoint / PARAMS)
        # As a stream, it has the decoder's window at any length.
        runtime = RuntimeConfig.resolve(config, Settings(delay_tokens=delay_tokens), "streaming")

        def read(names: Sequence[str]) -> Mapping[str, Tensor]:
            return read_tensors(checkpoint, names, torch.float32)

        return cls(config, runtime, read, torch.float32)

    @torch.no_grad()
    def audio_embeds(self, mel: Tensor) -> Tensor:
        """mel (1, num_mel_bins, T_mel), T_mel a multiple of 8 -> (1, T_mel // 8, dim)."""
        return cast("Tensor", self._model.adapter(self._model.encoder(mel.to(self.dtype))))

    @torch.no_grad()
    def embed(self, ids: Tensor) -> Tensor:
        """ids (1, T) -> (1, T, dim)."""
        return cast("Tensor", self._model.decoder.tok_embeddings(ids))

    @torch.no_grad()
    def logits(self, audio: Tensor, ids: Sequence[int]) -> Tensor:
        """Logits with all tokens given.

        Args:
            audio: (1, T, dim) audio embeddings.
            ids: T tokens at the input.

        Returns:
            (1, T, vocab_size).
        """
        inputs = audio.to(self.dtype) + self.embed(torch.tensor([list(ids)]))
        condition = time_embedding(self.runtime.delay_tokens, self.config.dim).to(self.dtype)
        positions = torch.arange(len(ids))
        return cast("Tensor", self._model.decoder(inputs, positions, condition))

    def greedy(self, audio: Tensor, prompt: Sequence[int]) -> tuple[list[int], Tensor]:
        """What greedy decoding says, and the logits it says it by.

        It is the fixed point of giving each position the token that the one before it finds
        most likely. A pass makes at least one more of them right, and since most tokens
        follow from the audio, far more than one: a transcription takes a few passes, not one
        for each token.

        Args:
            audio: (1, T, dim) audio embeddings.
            prompt: the first tokens; silence is its last.

        Returns:
            The T tokens at the input, and logits (1, T, vocab_size).
        """
        length, start = audio.shape[1], len(prompt)
        ids = [*prompt, *[prompt[-1]] * (length - start)]
        for count in range(1, length + 1):
            logits = self.logits(audio, ids)
            said = logits[0, start - 1 : -1].argmax(-1).tolist()
            wrong = sum(a != b for a, b in zip(said, ids[start:], strict=True))
            log.info("pass %d: %d of %d tokens still changed", count, wrong, len(said))
            if not wrong:
                break
            ids = [*prompt, *said]
        return ids, logits

    def _parts(self) -> Iterator[tuple[str, nn.Module]]:
        """What is loaded together: a layer, or a module outside of any."""
        encoder, decoder = self._model.encoder, self._model.decoder
        # The embedding is loaded for each of its two uses.
        parts: list[nn.Module] = [encoder.norm, self._model.adapter, decoder.norm]
        parts += [decoder.tok_embeddings, decoder.output]
        parts += [*encoder.conv_layers, *encoder.layers, *decoder.layers]
        names = {module: name for name, module in self._model.named_modules()}
        return ((names[part], part) for part in parts)

    def _stream(self, prefix: str, module: nn.Module) -> None:
        names = [name for name, _ in module.named_parameters()]
        shapes = dict(module.named_parameters())

        def load(*_: object) -> None:
            tensors = self._read([f"{prefix}.{name}" for name in names])
            state = {name: tensors[f"{prefix}.{name}"] for name in names}
            module.load_state_dict(state, assign=True)

        def release(*_: object) -> None:
            module.load_state_dict(shapes, assign=True)

        module.register_forward_pre_hook(load)
        module.register_forward_hook(release)
