"""Run an artifact over real speech, in a process of its own, and compare it with eager.

Three questions, and the report answers each with figures: does every method compute what
the model computes (given the same inputs), does the whole give the same tokens, and how
fast. The eager model of the comparison shares neither kernels nor caches with the
artifact: it runs on PyTorch's own attention.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from voxtral_build.audio import log_mel, read_wav
from voxtral_build.backends import BACKENDS
from voxtral_build.checkpoint import PARAMS, TOKENIZER
from voxtral_build.errors import BuildError, ValidationError
from voxtral_build.files import write_text
from voxtral_build.matrix import (
    COMPONENTS,
    METHODS_OF,
    Component,
    Method,
    Quant,
    Scheme,
    Settings,
    Variant,
)
from voxtral_build.methods import MethodBuilder
from voxtral_build.model.attention import STANDARD
from voxtral_build.model.config import ModelConfig, RuntimeConfig
from voxtral_build.pte.inspect import describe, undelegated_linears
from voxtral_build.quantization import dequantize, load_tensors, quantizes_activations
from voxtral_build.runtime.greedy import (
    Function,
    Methods,
    decode_forced,
    decode_greedy,
    encode_offline,
    encode_streaming,
    pad_audio,
)
from voxtral_build.runtime.parity import Parity
from voxtral_build.runtime.program import Program
from voxtral_build.steps.link import MODEL
from voxtral_build.tokenizer import StreamingTokens
from voxtral_build.weights import TORCH_DTYPES

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EagerModel:
    """The artifact's model in eager: its three methods, and where its weights come from."""

    builder: MethodBuilder
    checkpoint: Path
    scheme: Scheme
    weights: Mapping[Component, Path]
    dtype: torch.dtype

    def methods(self, *, float_activations: bool = False) -> Methods:
        """Fresh methods (caches empty).

        Args:
            float_activations: dequantize the weights first, so that no activation is
                quantized.
        """
        methods = METHODS_OF[self.builder.runtime.mode]
        model = self.builder.meta_model()
        tensors: dict[str, Tensor] = {}
        for component in COMPONENTS:
            quant = self.scheme.of(component)
            weights = self.weights.get(component)
            tensors |= load_tensors(self.checkpoint, weights, model, component, quant, self.dtype)
        if float_activations:
            tensors = dequantize(tensors)
        encode, decode, embed = self.builder.build(methods, tensors, self.dtype)
        return Methods(encode, embed, decode, self.builder.runtime.decode_bound)


def run(
    *,
    artifact: Path,
    checkpoint: Path,
    variant: Variant,
    scheme: Scheme,
    weights: Mapping[Component, Path],
    settings: Settings,
    audio: Sequence[Path],
    output: Path,
) -> None:
    """Validate `artifact` and write its report.

    The report of a failed artifact is written beside `output`, with the ending
    `.failed.json`, so that its figures can be read while nothing takes it for validated.

    Raises:
        ValidationError: names the gates that failed, the figures and the bounds.
    """
    config = ModelConfig.load(checkpoint / PARAMS)
    runtime = RuntimeConfig.resolve(config, settings, variant.mode)
    tokens = StreamingTokens.load(artifact / TOKENIZER)
    eager = EagerModel(
        MethodBuilder(config, runtime, STANDARD),
        checkpoint,
        scheme,
        weights,
        TORCH_DTYPES[variant.dtype],
    )
    samples = torch.cat([read_wav(path, config.audio) for path in audio])
    padded = pad_audio(samples, config, tokens, settings.delay_tokens)
    token_count = padded.shape[0] // config.samples_per_token
    if token_count > settings.max_seq_len and variant.mode == "offline":
        raise BuildError(
            "the validation audio is longer than the artifact can take",
            got=f"{token_count} tokens with padding",
            allowed=f"max_seq_len {settings.max_seq_len}",
            next_step="raise max_seq_len in config/matrix.yaml",
        )
    mel = log_mel(padded, config.audio).to(eager.dtype)
    prompt = tokens.prompt(settings.delay_tokens)
    with torch.no_grad():
        report = _measure(artifact, variant, eager, mel, prompt)
    report["audio_s"] = samples.shape[0] / config.audio.sampling_rate
    failed = output.with_suffix(".failed.json")
    text = json.dumps(report, indent=1) + "\n"
    if report["failures"]:
        output.unlink(missing_ok=True)  # of an earlier artifact
        write_text(failed, text)
        raise ValidationError(
            f"{variant.slug} is not what it should be",
            got="\n           ".join(report["failures"]),
            next_step=f"read {failed}",
        )
    failed.unlink(missing_ok=True)
    write_text(output, text)


def _measure(
    artifact: Path, variant: Variant, eager: EagerModel, mel: Tensor, prompt: list[int]
) -> dict[str, Any]:
    path = artifact / MODEL
    description = describe(path)
    started = time.perf_counter()
    program = Program(path)
    encoder, _, _ = METHODS_OF[variant.mode]
    loaded = Methods(
        program.method(encoder),
        program.method("token_embedding"),
        program.method("text_decoder"),
        eager.builder.runtime.decode_bound,
    )
    load_s = time.perf_counter() - started
    log.info("loaded in %.2f s", load_s)

    config = eager.builder.config

    def encode(function: Function) -> Tensor:
        if variant.mode == "offline":
            return encode_offline(function, mel)
        return encode_streaming(function, mel, config)

    reference = eager.methods()
    reference_audio = encode(reference.encode)
    reference_out = decode_greedy(reference, reference_audio, prompt)
    ids = [*prompt, *reference_out[:-1]]
    reference_logits = decode_forced(reference, reference_audio, ids, len(prompt))
    log.info("eager reference: %d tokens", len(ids))

    # Each method alone, on eager's inputs, so that one fault does not hide in another.
    by_method = {
        encoder: (encode(loaded.encode), reference_audio),
        "token_embedding": (
            loaded.embed(torch.tensor([ids])),
            reference.embed(torch.tensor([ids])),
        ),
        "text_decoder": (
            decode_forced(
                replace(loaded, embed=reference.embed),
                reference_audio,
                ids,
                len(prompt),
            ),
            reference_logits,
        ),
    }
    without = _float_activation_outputs(eager, encoder, encode, reference_audio, ids, len(prompt))
    parities = {
        name: Parity.of(got, want, without.get(name), logits=name == "text_decoder")
        for name, (got, want) in by_method.items()
    }

    started = time.perf_counter()
    audio = encode(loaded.encode)
    encoded_s = time.perf_counter() - started
    out = decode_greedy(loaded, audio, prompt)
    total_s = time.perf_counter() - started
    seconds = mel.shape[-1] * config.audio.hop_length / config.audio.sampling_rate
    steps = audio.shape[1]
    log.info("%d tokens in %.2f s (encoder %.2f s)", steps, total_s, encoded_s)

    agreed = sum(got == want for got, want in zip(out, reference_out, strict=True))
    failures = [text for name, parity in parities.items() for text in parity.failures(name)]
    methods: dict[str, Any] = {}
    for name, parity in parities.items():
        method = description.methods[name]
        linears = undelegated_linears(method)
        if BACKENDS[variant.backend].delegates_linears and linears:
            failures.append(f"{name}: {linears} linears are not delegated, allowed 0")
        methods[name] = {
            **asdict(parity),
            "delegates": sum(method.delegates.values()),
            "undelegated_linears": linears,
            "planned_bytes": method.planned_bytes,
        }
    return {
        "variant": variant.slug,
        "status": "failed" if failures else "validated",
        "failures": failures,
        "size_bytes": path.stat().st_size,
        "load_s": load_s,
        "ms_per_step": 1000 * total_s / steps,
        "real_time_factor": total_s / seconds,
        "token_agreement": agreed / len(reference_out),
        "methods": methods,
    }


def _float_activation_outputs(
    eager: EagerModel, encoder: Method, encode: Any, audio: Tensor, ids: list[int], prompt: int
) -> dict[str, Tensor]:
    """What the methods with quantized activations give when activations stay float."""
    quants: dict[Method, Quant] = {
        encoder: eager.scheme.encoder,
        "text_decoder": eager.scheme.decoder,
    }
    dynamic = [name for name, quant in quants.items() if quantizes_activations(quant)]
    if not dynamic:
        return {}
    methods = eager.methods(float_activations=True)
    embed = eager.methods().embed
    outputs: dict[str, Tensor] = {}
    if encoder in dynamic:
        outputs[encoder] = encode(methods.encode)
    if "text_decoder" in dynamic:
        methods = replace(methods, embed=embed)
        outputs["text_decoder"] = decode_forced(methods, audio, ids, prompt)
    return outputs
