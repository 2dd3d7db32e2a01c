"""The streaming protocol on any three functions: eager modules or methods of a `.pte`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from voxtral_build.model.config import ModelConfig
from voxtral_build.runtime.protocol import Protocol
from voxtral_build.tokenizer import StreamingTokens

Function = Callable[..., Tensor]


@dataclass(frozen=True)
class Methods:
    """The three methods of one mode.

    Attributes:
        encode: the offline or the streaming encoder.
        decode_bound: most positions that one call of `decode` takes.
    """

    encode: Function
    embed: Function
    decode: Function
    decode_bound: int


def pad_audio(samples: Tensor, config: ModelConfig, tokens: StreamingTokens, delay: int) -> Tensor:
    """Silence around the audio, as the reference's offline protocol has it.

    Args:
        samples: (N,) float32.
        delay: in tokens.

    Returns:
        (M,) with M a multiple of one token.
    """
    return Protocol.reference(tokens, delay).pad(samples, config.samples_per_token)


def by_position(audio: Tensor) -> Iterator[Tensor]:
    """(1, T, dim) -> T times (1, 1, dim)."""
    return (audio[:, i : i + 1] for i in range(audio.shape[1]))


def encode_offline(encode: Function, mel: Tensor) -> Iterator[Tensor]:
    """mel (1, bins, T) in one call; gives (1, 1, dim) for each of its tokens."""
    yield from by_position(encode(mel))


def encode_streaming(encode: Function, mel: Tensor, config: ModelConfig) -> Iterator[Tensor]:
    """The same, one token's frames a call, each when it is asked for."""
    chunk, frames = config.mel_frames_per_token, config.downsample_factor
    for i in range(mel.shape[-1] // chunk):
        yield encode(
            mel[..., i * chunk : (i + 1) * chunk].contiguous(),
            torch.arange(i * frames, (i + 1) * frames),
        )


def decode_forced(methods: Methods, audio: Tensor, ids: Sequence[int], prompt: int) -> Tensor:
    """Logits with the tokens given: the prompt first, then one position a call.

    Args:
        audio: (1, T, dim) audio embeddings.
        ids: the tokens at the input, at most T.
        prompt: how many of them come first.

    Returns:
        (1, len(ids), vocab_size).
    """
    inputs = audio[:, : len(ids)] + methods.embed(torch.tensor([list(ids)]))
    starts = [*range(0, prompt, methods.decode_bound), *range(prompt, len(ids))]
    ends = [*starts[1:], len(ids)]
    calls = [
        methods.decode(inputs[:, start:end].contiguous(), torch.arange(start, end))
        for start, end in zip(starts, ends, strict=True)
    ]
    return torch.cat(calls, dim=1)


def most_likely(logits: Tensor) -> int:
    """(1, T, vocab_size) -> the token that is most likely after the last position."""
    return int(logits[0, -1].argmax())


class GreedyDecoder:
    """Decodes one utterance, a position at a time; each token goes back in.

    The end-of-stream token does not stop it: the reference goes on while there is audio.

    Args:
        prompt: the tokens of the first positions, decoded together once the last of their
            audio has come.
        sample: the token for logits (1, T, vocab_size).

    Attributes:
        position: of the next audio embedding.
    """

    def __init__(
        self,
        methods: Methods,
        prompt: Sequence[int],
        sample: Callable[[Tensor], int] = most_likely,
    ) -> None:
        self.methods = methods
        self.prompt = list(prompt)
        self.sample = sample
        self.reset()

    def reset(self) -> None:
        """Start another utterance; caches need none, see `model.kv_cache`."""
        self.position = 0
        self._heard: list[Tensor] = []  # audio of the prompt's positions
        self._token = 0

    def step(self, heard: Tensor | None) -> int | None:
        """Decode one position.

        Args:
            heard: (1, 1, dim) its audio embedding; None where the audio has ended.

        Returns:
            The token that follows, or None before the prompt's last position.
        """
        prompt = len(self.prompt)
        if self.position < prompt:
            assert heard is not None, "a prompt is heard"
            self._heard.append(heard)
            self.position += 1
            if self.position < prompt:
                return None
            audio = torch.cat(self._heard, dim=1)
            self._heard = []
            logits = decode_forced(self.methods, audio, self.prompt, prompt)
        else:
            embeds = self.methods.embed(torch.tensor([[self._token]]))
            if heard is not None:
                embeds = heard + embeds
            logits = self.methods.decode(embeds.contiguous(), torch.tensor([self.position]))
            self.position += 1
        self._token = self.sample(logits)
        return self._token


def decode_greedy(methods: Methods, audio: Iterable[Tensor], prompt: Sequence[int]) -> list[int]:
    """The most likely token for every audio position from the prompt's last on.

    Args:
        audio: (1, 1, dim) for each position, at least as many as the prompt has. Taken one
            by one: a streaming encoder runs between the decoder's steps, as it does live.
    """
    decoder = GreedyDecoder(methods, prompt)
    return [token for heard in audio if (token := decoder.step(heard)) is not None]
