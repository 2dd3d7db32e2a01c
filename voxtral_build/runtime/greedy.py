"""The streaming protocol on any three functions: eager modules or methods of a `.pte`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from voxtral_build.model.config import ModelConfig
from voxtral_build.tokenizer import BUFFER_TOKENS, StreamingTokens

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
        (M,) with M a multiple of one token: left padding, audio, and enough silence for
        the delay to run out.
    """
    step = config.samples_per_token
    tail = -samples.shape[0] % step + (delay + 1 + BUFFER_TOKENS) * step
    return torch.nn.functional.pad(samples, (tokens.left_pad * step, tail))


def encode_offline(encode: Function, mel: Tensor) -> Tensor:
    """mel (1, bins, T) -> (1, T // frames per token, dim), in one call."""
    return encode(mel)


def encode_streaming(encode: Function, mel: Tensor, config: ModelConfig) -> Tensor:
    """The same, one token's frames a call."""
    chunk, frames = config.mel_frames_per_token, config.downsample_factor
    steps = range(mel.shape[-1] // chunk)
    return torch.cat(
        [
            encode(
                mel[..., i * chunk : (i + 1) * chunk].contiguous(),
                torch.arange(i * frames, (i + 1) * frames),
            )
            for i in steps
        ],
        dim=1,
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


def decode_greedy(methods: Methods, audio: Tensor, prompt: Sequence[int]) -> list[int]:
    """The most likely token for every audio position from the prompt's last on.

    The end-of-stream token does not stop it: the reference goes on while there is audio.
    """
    logits = decode_forced(methods, audio, prompt, len(prompt))
    out = [int(logits[0, -1].argmax())]
    for position in range(len(prompt), audio.shape[1]):
        embeds = audio[:, position : position + 1] + methods.embed(torch.tensor([out[-1:]]))
        logits = methods.decode(embeds.contiguous(), torch.tensor([position]))
        out.append(int(logits[0, -1].argmax()))
    return out
