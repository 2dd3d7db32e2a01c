"""Every method of an artifact alone, on eager's inputs, so that no fault hides in another."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from voxtral_build.axes import METHODS_OF, Component, Method
from voxtral_build.errors import BuildError
from voxtral_build.quantization import quantizes_activations
from voxtral_build.report import Parity
from voxtral_build.runtime.greedy import (
    Methods,
    decode_forced,
    encode_offline,
    encode_streaming,
)
from voxtral_build.validation.eager import EagerSource
from voxtral_build.validation.parity import parity

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EagerOutputs:
    """What eager makes of the speech: all methods, and the tokens of greedy decoding.

    Attributes:
        mel: (1, num_mel_bins, T_mel) float32, what the encoder was given.
        ids: tokens at the input; the first `prompt` of them are the prompt.
        outputs: by method: (1, T, dim) audio and token embeddings, (1, T, vocab_size).
        unrounded: of the same weights with float32 activations, on the same inputs; of the
            methods that round some.
    """

    mel: Tensor
    ids: Sequence[int]
    prompt: int
    outputs: Mapping[Method, Tensor]
    unrounded: Mapping[Method, Tensor]

    @property
    def said(self) -> list[int]:
        """The tokens that it gives out."""
        return self.outputs["text_decoder"][0, self.prompt - 1 :].argmax(-1).tolist()


def eager_outputs(source: EagerSource, mel: Tensor, prompt: Sequence[int]) -> EagerOutputs:
    """Run the model with the artifact's own quantization.

    Args:
        mel: (1, num_mel_bins, T_mel) float32.
        prompt: the first tokens.
    """
    encoder, decoder, embedding = METHODS_OF[source.variant.mode]
    model = source.model()
    audio = model.audio_embeds(mel)
    ids, logits = model.greedy(audio, prompt)
    log.info("eager: %d tokens", len(ids))
    outputs = {encoder: audio, decoder: logits, embedding: model.embed(torch.tensor([ids]))}
    rounding = rounding_components(source)
    unrounded: dict[Method, Tensor] = {}
    if rounding:
        exact = source.model(unrounded=True)
        if "encoder" in rounding:
            unrounded[encoder] = exact.audio_embeds(mel)
        if "decoder" in rounding:
            unrounded[decoder] = exact.logits(audio, ids)
        log.info("eager without rounding: %s", ", ".join(unrounded))
    return EagerOutputs(mel, ids, len(prompt), outputs, unrounded)


def rounding_components(source: EagerSource) -> set[Component]:
    """Those whose activations are rounded. An embedding looks values up: it rounds nothing."""
    components: tuple[Component, ...] = ("encoder", "decoder")
    return {
        component
        for component in components
        if source.dtype != torch.float32 or quantizes_activations(source.scheme.of(component))
    }


@dataclass(frozen=True)
class Compared:
    """How the methods did.

    Attributes:
        parities: of those that ran.
        faults: why others did not.
        audio: the encoder's output, if it ran.
    """

    parities: Mapping[Method, Parity]
    faults: Mapping[Method, str]
    audio: Tensor | None


def compare_methods(source: EagerSource, methods: Methods, eager: EagerOutputs) -> Compared:
    """Run each of `methods` on eager's inputs.

    The decoder runs twice: the prompt in a call and a position a call, as it is used; and in
    calls of as many positions as it takes, where a ring is written while it is read. The
    worse of the two counts.
    """
    encoder, decoder, embedding = METHODS_OF[source.variant.mode]
    audio = eager.outputs[encoder].to(source.dtype)
    given = replace(methods, embed=lambda _: eager.outputs[embedding])

    def encode() -> Tensor:
        return torch.cat(list(run_encoder(source, methods, eager.mel)), dim=1)

    def decode(first: int) -> Tensor:
        return decode_forced(given, audio, eager.ids, first)

    runs: dict[Method, Callable[[], list[Tensor]]] = {
        encoder: lambda: [encode()],
        embedding: lambda: [methods.embed(torch.tensor([eager.ids]))],
        decoder: lambda: [decode(eager.prompt), decode(len(eager.ids))],
    }
    parities: dict[Method, Parity] = {}
    faults: dict[Method, str] = {}
    heard = None
    for name, run in runs.items():
        try:
            outputs = run()
            candidates = [
                parity(
                    output,
                    eager.outputs[name],
                    eager.unrounded.get(name),
                    logits=name == decoder,
                )
                for output in outputs
            ]
        except BuildError as error:
            faults[name] = " ".join(filter(None, (error.what, error.got)))
            continue
        except RuntimeError as error:  # of shapes that do not fit together
            faults[name] = str(error)
            continue
        parities[name] = max(candidates, key=_difference)
        if name == encoder:
            heard = outputs[0]
        log.info("%s: compared", name)
    return Compared(parities, faults, heard)


def run_encoder(source: EagerSource, methods: Methods, mel: Tensor) -> Iterator[Tensor]:
    """(1, 1, dim) for each token of mel (1, num_mel_bins, T_mel)."""
    mel = mel.to(source.dtype)
    if source.variant.mode == "offline":
        return encode_offline(methods.encode, mel)
    return encode_streaming(methods.encode, mel, source.config())


def _difference(compared: Parity) -> float:
    """To find the worst by; NaN is worse than all."""
    worst = compared.max_abs_difference
    return math.inf if math.isnan(worst) else worst
