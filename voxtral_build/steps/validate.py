"""Run an artifact over speech, in a process of its own, and compare it with eager.

Four questions, and the report answers each with figures: does every method compute what
the model with the same quantization computes (given the same inputs), does the whole give
the same tokens, how far is that from the model in float32, and how fast. The eager model of
the comparison shares neither kernels nor caches with the artifact: it runs on PyTorch's own
attention.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from voxtral_build.artifact_files import MANIFEST, MODEL
from voxtral_build.audio import log_mel
from voxtral_build.backends import BACKENDS
from voxtral_build.checkpoint import PARAMS, TOKENIZER
from voxtral_build.clips import Clip, read_clips
from voxtral_build.errors import BuildError, ValidationError
from voxtral_build.files import sha256, write_text
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
from voxtral_build.quantization import dequantize, quantizes_activations
from voxtral_build.quantized_file import load_tensors
from voxtral_build.runtime.artifact import Artifact
from voxtral_build.runtime.greedy import (
    Function,
    Methods,
    by_position,
    decode_forced,
    decode_greedy,
    encode_offline,
    encode_streaming,
    pad_audio,
)
from voxtral_build.runtime.parity import BF16_GATE, QUANTIZED_GATE, Parity, cosine
from voxtral_build.runtime.program import Program
from voxtral_build.runtime.reference import Reference
from voxtral_build.runtime.words import WordErrors, transcripts
from voxtral_build.speech import read_speech
from voxtral_build.text import Vocabulary
from voxtral_build.tokenizer import StreamingTokens
from voxtral_build.weights import TORCH_DTYPES

log = logging.getLogger(__name__)

# Of the tokens of a run in which each goes back in. Methods that pass alone and differ
# together disturb each other; a near tie that falls the other way is no fault.
MIN_TOKEN_AGREEMENT = 0.9


@dataclass(frozen=True)
class EagerModel:
    """The artifact's model in eager: its three methods, and where its weights come from."""

    builder: MethodBuilder
    checkpoint: Path
    scheme: Scheme
    weights: Mapping[Component, Path]
    dtype: torch.dtype

    def methods(self, *, unrounded: bool = False) -> Methods:
        """Fresh methods (caches empty).

        Args:
            unrounded: the same weights, with all activations and caches in float32.
        """
        methods = METHODS_OF[self.builder.runtime.mode]
        model = self.builder.meta_model()
        tensors: dict[str, Tensor] = {}
        for component in COMPONENTS:
            quant = self.scheme.of(component)
            weights = self.weights.get(component)
            tensors |= load_tensors(self.checkpoint, weights, model, component, quant, self.dtype)
        dtype = self.dtype
        if unrounded:
            dtype = torch.float32
            tensors = {name: tensor.to(dtype) for name, tensor in dequantize(tensors).items()}
        encode, decode, embed = self.builder.build(methods, tensors, dtype)
        bound = self.builder.runtime.decode_bound
        return Methods(_taking_any(encode, dtype), embed, _taking_any(decode, dtype), bound)


def _taking_any(function: Function, dtype: torch.dtype) -> Function:
    """Casts the first input, the mel frames or embeddings."""
    return lambda inputs, *rest: function(inputs.to(dtype), *rest)


def run(
    *,
    artifact: Path,
    checkpoint: Path,
    variant: Variant,
    scheme: Scheme,
    weights: Mapping[Component, Path],
    settings: Settings,
    audio: Sequence[Path],
    reference: Path,
    clips: Path | None,
    output: Path,
) -> None:
    """Validate `artifact` and write its report.

    Args:
        reference: what the `reference` step made of the same audio.
        clips: a set of recordings to transcribe, as a user would, and to count errors in; or
            None.

    The report of a failed artifact is written beside `output`, with the ending
    `.failed.json`, so that its figures can be read while nothing takes it for validated.

    Raises:
        BuildError: the reference is of audio, a delay or a model of other sizes.
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
    samples = read_speech(audio, config.audio.sampling_rate)
    padded = pad_audio(samples, config, tokens, settings.delay_tokens)
    token_count = padded.shape[0] // config.samples_per_token
    if token_count > settings.max_seq_len and variant.mode == "offline":
        raise BuildError(
            "the validation audio is longer than the artifact can take",
            got=f"{token_count} tokens with padding",
            allowed=f"max_seq_len {settings.max_seq_len}",
            next_step="raise max_seq_len in config/matrix.yaml",
        )
    float32 = Reference.load(reference)
    if float32.audio.shape != (token_count, config.dim):
        raise BuildError(
            f"{reference} is no reference of this audio",
            got=f"{list(float32.audio.shape)} tokens and dimensions",
            allowed=f"{[token_count, config.dim]}",
            next_step="make it again with `voxtral-build reference`",
        )
    mel = log_mel(padded, config.audio).to(eager.dtype)
    prompt = tokens.prompt(settings.delay_tokens)
    with torch.no_grad():
        report = _measure(artifact, variant, eager, mel, prompt, float32)
    report["words"] = None if clips is None else _words(artifact, read_clips(clips))
    report["manifest_sha256"] = sha256(artifact / MANIFEST)
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
    artifact: Path,
    variant: Variant,
    eager: EagerModel,
    mel: Tensor,
    prompt: list[int],
    float32: Reference,
) -> dict[str, Any]:
    path = artifact / MODEL
    description = describe(path)
    config = eager.builder.config
    encoder, _, _ = METHODS_OF[variant.mode]

    def encode(methods: Methods) -> Iterator[Tensor]:
        if variant.mode == "offline":
            return encode_offline(methods.encode, mel)
        return encode_streaming(methods.encode, mel, config)

    started = time.perf_counter()
    program = Program(path)
    artifact_methods = Methods(
        program.method(encoder),
        program.method("token_embedding"),
        program.method("text_decoder"),
        eager.builder.runtime.decode_bound,
    )
    embeds = artifact_methods.embed(torch.tensor([[0]])) + next(encode(artifact_methods))
    artifact_methods.decode(embeds, torch.tensor([0]))
    load_s = time.perf_counter() - started
    log.info("every method has answered after %.2f s", load_s)

    reference = eager.methods()
    reference_audio = torch.cat(list(encode(reference)), dim=1)
    reference_out = decode_greedy(reference, by_position(reference_audio), prompt)
    ids = [*prompt, *reference_out[:-1]]
    inputs = ForcedInputs(encode, reference_audio, reference.embed, ids, len(prompt))
    log.info("eager reference: %d tokens", len(ids))

    # Each method alone, on eager's inputs, so that one fault does not hide in another.
    got, want = inputs.outputs(encoder, artifact_methods), inputs.outputs(encoder, reference)
    unrounded = _unrounded_outputs(eager, encoder, inputs)
    parities = {
        name: Parity.of(got[name], want[name], unrounded.get(name), name == "text_decoder")
        for name in got
    }

    # All of them together, as they run live.
    started = time.perf_counter()
    out = decode_greedy(artifact_methods, encode(artifact_methods), prompt)
    total_s = time.perf_counter() - started
    steps = reference_audio.shape[1]
    seconds = steps * config.samples_per_token / config.audio.sampling_rate
    agreement = _agreement(out, reference_out)
    log.info("%d tokens in %.2f s, %.1f %% as eager's", steps, total_s, 100 * agreement)

    forced = decode_forced(
        artifact_methods,
        float32.audio.unsqueeze(0).to(eager.dtype),
        float32.ids.tolist(),
        len(prompt),
    )[0, len(prompt) - 1 :]
    likeliest = float32.top_ids[:, 0].tolist()
    vocabulary = Vocabulary.load(artifact / TOKENIZER)

    gate = QUANTIZED_GATE if eager.dtype == torch.float32 else BF16_GATE
    failures = [text for name, parity in parities.items() for text in parity.failures(name, gate)]
    if agreement < MIN_TOKEN_AGREEMENT:
        failures.append(f"token_agreement {agreement:.3g}, at least {MIN_TOKEN_AGREEMENT}")
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
        "token_agreement": agreement,
        # What quantization and dtype cost: against the model itself.
        "against_float32": {
            "audio_cosine": cosine(got[encoder], float32.audio.unsqueeze(0)),
            "top1_agreement": float32.top1_agreement(forced),
            "divergence": float32.divergence(forced),
            "token_agreement": _agreement(out, likeliest),
        },
        "text": vocabulary.text(out),
        "text_float32": vocabulary.text(likeliest),
        "methods": methods,
    }


def _words(folder: Path, clips: Sequence[Clip]) -> dict[str, Any]:
    """Word errors of the artifact's whole folder: its preprocessor and tokenizer, too."""
    texts = list(transcripts(Artifact.load(folder), clips))
    total = sum((WordErrors.of(clip.text, text) for clip, text in texts), WordErrors())
    log.info("%d words said, word error rate %s", total.spoken, total.rate)
    return {
        **asdict(total),
        "rate": total.rate,
        "clips": {clip.path.name: {"spoken": clip.text, "written": text} for clip, text in texts},
    }


def _agreement(tokens: Sequence[int], others: Sequence[int]) -> float:
    """Share of positions with the same token."""
    return sum(a == b for a, b in zip(tokens, others, strict=True)) / len(tokens)


@dataclass(frozen=True)
class ForcedInputs:
    """What every method is given when it is compared: eager's audio, embeddings and tokens.

    Attributes:
        encode: runs an encoder over the clip.
        audio: (1, T, dim) audio embeddings.
        embed: the token embedding before the decoder.
        ids: the tokens at the input; the first `prompt` of them are the prompt.
    """

    encode: Callable[[Methods], Iterator[Tensor]]
    audio: Tensor
    embed: Function
    ids: Sequence[int]
    prompt: int

    def outputs(self, encoder: Method, methods: Methods) -> dict[Method, Tensor]:
        """What the three methods make of it."""
        decoder = replace(methods, embed=self.embed)
        return {
            encoder: torch.cat(list(self.encode(methods)), dim=1),
            "token_embedding": methods.embed(torch.tensor([self.ids])),
            "text_decoder": decode_forced(decoder, self.audio, self.ids, self.prompt),
        }


def _unrounded_outputs(
    eager: EagerModel, encoder: Method, inputs: ForcedInputs
) -> dict[Method, Tensor]:
    """What the methods that round their activations would give if those were float32.

    An embedding looks values up: it rounds nothing, and is held to them exactly.
    """
    quants: dict[Method, Quant] = {
        encoder: eager.scheme.encoder,
        "text_decoder": eager.scheme.decoder,
    }
    rounding = [
        name
        for name, quant in quants.items()
        if quantizes_activations(quant) or eager.dtype != torch.float32
    ]
    if not rounding:
        return {}
    outputs = inputs.outputs(encoder, eager.methods(unrounded=True))
    return {name: outputs[name] for name in rounding}
