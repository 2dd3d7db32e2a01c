"""Run an artifact over speech, in a process of its own, and hold it against the model.

Four questions. Is it what was asked for: files, methods, constants, delegates, bytes? Does
every method compute what the model with the same quantization computes in eager, given the
same inputs, and all together the same tokens? How far is that from the model in float32, in
probabilities and in words? How fast is it, and in how much memory? Every answer is a figure in
the report; where there is a bound on it, a gate.

Of a delegate that no runtime at hand runs, only the first is asked: what was written is read
back and held against the graph and its weights. Such an artifact is inspected, not validated.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from voxtral_build.artifact_files import FAILED_REPORT, MANIFEST, MODEL
from voxtral_build.audio import log_mel
from voxtral_build.axes import COMPONENT_OF, METHODS_OF, Component
from voxtral_build.checkpoint import TOKENIZER
from voxtral_build.clips import read_clips
from voxtral_build.errors import BuildError, ValidationError
from voxtral_build.files import sha256
from voxtral_build.gates import REQUIRED, Figure, Gate, Outcome, check, condition
from voxtral_build.pte.inspect import describe
from voxtral_build.quant import Scheme
from voxtral_build.report import (
    AgainstFloat32,
    MethodReport,
    Parity,
    Report,
    Speech,
    WordReport,
)
from voxtral_build.runtime.artifact import Artifact
from voxtral_build.runtime.greedy import decode_forced, decode_greedy, pad_audio
from voxtral_build.runtime.reference import SPEECH, Reference, load_references
from voxtral_build.settings import Settings
from voxtral_build.speech import read_speech
from voxtral_build.tokenizer import StreamingTokens
from voxtral_build.validation.contents import (
    check_data,
    check_files,
    check_program,
    method_reports,
)
from voxtral_build.validation.eager import EagerSource
from voxtral_build.validation.methods import (
    EagerOutputs,
    compare_methods,
    eager_outputs,
    rounding_components,
    run_encoder,
)
from voxtral_build.validation.parity import cosine, relative_difference
from voxtral_build.validation.preprocessing import preprocessor_difference
from voxtral_build.validation.readback import missing_runtime, read_back
from voxtral_build.validation.recordings import word_report
from voxtral_build.validation.speed import measured_speed
from voxtral_build.variants import Variant

log = logging.getLogger(__name__)


def run(
    *,
    artifact: Path,
    checkpoint: Path,
    variant: Variant,
    scheme: Scheme,
    weights: Mapping[Component, Path],
    settings: Settings,
    gates: Sequence[Gate],
    audio: Sequence[Path],
    reference: Path,
    clips: Path | None,
    output: Path,
) -> None:
    """Validate `artifact` and write its report.

    Args:
        gates: bounds for this variant, see `matrix.Matrix.gates_of`.
        audio: recordings that make, one after the other, the speech to compare methods on.
        reference: what the `reference` step made of the same audio and clips.
        clips: a set of recordings to transcribe, as a user would, and to count errors in; or
            None.

    The report of a failed artifact is written beside `output` as report.failed.json, so that
    its figures can be read while nothing takes it for validated.

    Raises:
        BuildError: no artifact, or the reference is of audio, a delay or a model of other sizes.
        ValidationError: names the gates that failed, the figures and the bounds.
    """
    for name in (MODEL, MANIFEST):
        if not (artifact / name).is_file():
            raise BuildError(
                f"{artifact} is no artifact: {name} is missing",
                allowed="a folder that link wrote",
                next_step="link it: `snakemake --forcerun link`",
            )
    source = EagerSource(checkpoint, variant, scheme, weights, settings)
    recordings = load_references(reference)
    speech = _Speech.read(source, audio, recordings)
    with torch.no_grad():
        report = _Validation(artifact, source, gates, speech, recordings, clips).report(audio[0])
    failed = output.with_name(FAILED_REPORT)
    if report.failures:
        output.unlink(missing_ok=True)  # of an earlier artifact
        report.write(failed)
        raise ValidationError(
            f"{variant.slug} is not what it should be",
            got="\n           ".join(map(str, report.failures)),
            next_step=f"read {failed}",
        )
    failed.unlink(missing_ok=True)
    report.write(output)


@dataclass(frozen=True)
class _Speech:
    """What methods are compared on.

    Attributes:
        padded: (N,) samples, with the silence around them.
        mel: (1, num_mel_bins, T_mel) float32.
        prompt: the first tokens.
        float32: what the model itself makes of it.
        seconds: without the silence.
    """

    padded: Tensor
    mel: Tensor
    prompt: list[int]
    float32: Reference
    seconds: float

    @classmethod
    def read(
        cls, source: EagerSource, audio: Sequence[Path], references: Mapping[str, Reference]
    ) -> _Speech:
        config, settings = source.config(), source.settings
        tokens = StreamingTokens.load(source.checkpoint / TOKENIZER)
        samples = read_speech(audio, config.audio.sampling_rate)
        padded = pad_audio(samples, config, tokens, settings.delay_tokens)
        count = padded.shape[0] // config.samples_per_token
        if count > settings.max_seq_len and source.variant.mode == "offline":
            raise BuildError(
                "the validation audio is longer than the artifact can take",
                got=f"{count} tokens with padding",
                allowed=f"max_seq_len {settings.max_seq_len}",
                next_step="raise max_seq_len in config/matrix.yaml",
            )
        float32 = references.get(SPEECH)
        if float32 is None or float32.audio.shape != (count, config.dim):
            raise BuildError(
                "the reference is not of this audio",
                got=f"{list(float32.audio.shape)} tokens and dimensions" if float32 else "none",
                allowed=f"{[count, config.dim]}",
                next_step="make it again with `voxtral-build reference`",
            )
        return cls(
            padded,
            log_mel(padded, config.audio),
            tokens.prompt(settings.delay_tokens),
            float32,
            samples.shape[0] / config.audio.sampling_rate,
        )


@dataclass
class _Validation:
    """One artifact's validation; `report` runs it.

    What can't be measured leaves its figure out, and a condition says why: the rest is
    measured all the same, so that a report names all that is wrong.
    """

    folder: Path
    source: EagerSource
    gates: Sequence[Gate]
    speech: _Speech
    references: Mapping[str, Reference]
    clips: Path | None
    conditions: list[Outcome] = field(default_factory=list)
    figures: dict[Figure, dict[str, float]] = field(default_factory=dict)

    def report(self, bench_audio: Path) -> Report:
        path = self.folder / MODEL
        self.conditions += check_files(self.folder, self.source)
        methods: dict[str, MethodReport] = {}
        with self._attempt("readable", "It has to be a program of this ExecuTorch's version."):
            description = describe(path)
            self.conditions += check_program(description, self.source)
            self.conditions += check_data(self.folder)
            methods = method_reports(self.folder, description, self.source)
            self.figures["size_ratio"] = {
                name: method.weight_bytes / method.promised_weight_bytes
                for name, method in methods.items()
            }
        difference = against = speech = words = speed = artifact = None
        not_run = missing_runtime(self.source)
        if not_run is not None:
            log.info("%s: read back, not run", not_run)
            self.conditions += read_back(path, self.source)
        else:
            with self._attempt("loads", "A user's process has to load the folder as it is."):
                artifact = Artifact.load(self.folder)
        if artifact is not None:
            difference = self._preprocessor(artifact)
            eager = eager_outputs(self.source, self.speech.mel, self.speech.prompt)
            parities, heard = self._methods(artifact, eager)
            encoder = METHODS_OF[self.source.variant.mode][0]
            frames = self.source.config().downsample_factor
            for name in parities.keys() & methods.keys():
                positions = len(eager.ids) * (frames if name == encoder else 1)
                update = {"parity": parities[name], "positions": positions}
                methods[name] = methods[name].model_copy(update=update)
            if len(parities) == len(METHODS_OF[self.source.variant.mode]):
                assert heard is not None
                speech, against = self._whole(artifact, eager, heard)
                with self._attempt("transcribes", "It is made to."):
                    words = self._words(artifact)
                artifact = None  # of a large one, two at a time are too many
                with self._attempt("runs_alone", "Without eager beside it, as users run it."):
                    speed = measured_speed(self.folder, bench_audio)
        if words is not None:
            self.figures["word_error_rate"] = {"": words.rate}
            self.figures["word_error_increase"] = {"": words.rate - words.rate_float32}
        if speed is not None:
            self.figures["real_time_factor"] = {"": speed.real_time_factor}
            self.figures["step_ms_p95"] = {"": speed.step_ms_p95}
            self.figures["load_s"] = {"": speed.load_s}
            self.figures["peak_rss_mb"] = {"": speed.peak_rss_bytes / 1e6}
        outcomes = [*self.conditions, *check(self.gates, self.figures)]
        if not_run is None:
            outcomes += self._unmeasured()
        right = "validated" if not_run is None else "inspected"
        return Report(
            variant=self.source.variant.slug,
            status=right if all(outcome.passed for outcome in outcomes) else "failed",
            not_run=not_run,
            gates=outcomes,
            manifest_sha256=sha256(self.folder / MANIFEST),
            model_bytes=path.stat().st_size,
            methods=methods,
            preprocessor_difference=difference,
            speech=speech,
            against_float32=against,
            words=words,
            speed=speed,
        )

    def _attempt(self, gate: str, reason: str) -> _Attempt:
        return _Attempt(gate, reason, self.conditions)

    def _preprocessor(self, artifact: Artifact) -> float | None:
        difference = None
        with self._attempt("preprocessor.runs", "Nothing is heard without it."):
            difference = preprocessor_difference(
                artifact, self.source.config(), self.speech.padded, self.speech.mel
            )
            self.figures["preprocessor_difference"] = {"": difference}
        return difference

    def _methods(
        self, artifact: Artifact, eager: EagerOutputs
    ) -> tuple[Mapping[str, Parity], Tensor | None]:
        """Parities by method, and the audio embeddings."""
        compared = compare_methods(self.source, artifact.methods, eager)
        rounding = rounding_components(self.source)
        for figure in ("relative_difference", "noise_ratio", "draw_ratio"):
            self.figures[figure] = {}
        for name in METHODS_OF[self.source.variant.mode]:
            fault = compared.faults.get(name)
            reason = "Loaded and run on the speech, its kernels all there."
            self.conditions.append(condition(f"{name}.runs", fault is None, reason, fault))
            if fault is not None:
                continue
            one = compared.parities[name]
            if COMPONENT_OF[name] in rounding:
                assert one.noise_ratio is not None
                assert one.draw_ratio is not None
                self.figures["noise_ratio"][name] = one.noise_ratio
                self.figures["draw_ratio"][name] = one.draw_ratio
            else:
                self.figures["relative_difference"][name] = relative_difference(one)
        return {str(name): one for name, one in compared.parities.items()}, compared.audio

    def _whole(
        self, artifact: Artifact, eager: EagerOutputs, heard: Tensor
    ) -> tuple[Speech, AgainstFloat32]:
        """All methods together, as they run live; and on the model's own audio and tokens."""
        prompt, float32 = self.speech.prompt, self.speech.float32
        said = decode_greedy(
            artifact.methods, run_encoder(self.source, artifact.methods, self.speech.mel), prompt
        )
        agreement = _agreement(said, eager.said)
        log.info("%d tokens, %.1f %% as eager's", len(said), 100 * agreement)
        logits = decode_forced(
            artifact.methods,
            float32.audio.unsqueeze(0).to(self.source.dtype),
            float32.ids.tolist(),
            len(prompt),
        )[0, len(prompt) - 1 :]
        against = AgainstFloat32(
            audio_cosine=cosine(heard, float32.audio.unsqueeze(0)),
            top1_agreement=float32.top1_agreement(logits),
            divergence=float32.divergence(logits),
            token_agreement=_agreement(said, float32.said),
        )
        self.figures["token_agreement"] = {"": agreement}
        self.figures["audio_cosine"] = {"": against.audio_cosine}
        self.figures["top1_agreement"] = {"": against.top1_agreement}
        self.figures["divergence"] = {"": against.divergence}
        return (
            Speech(
                audio_s=self.speech.seconds,
                text=artifact.vocabulary.text(said),
                text_float32=artifact.vocabulary.text(float32.said),
                token_agreement=agreement,
            ),
            against,
        )

    def _words(self, artifact: Artifact) -> WordReport | None:
        if self.clips is None:
            return None
        return word_report(artifact, read_clips(self.clips), self.references)

    def _unmeasured(self) -> list[Outcome]:
        """A failure for each figure that every artifact has to have, and this one has not.

        Where a condition failed, that says why; otherwise nothing may be missing.
        """
        if not all(outcome.passed for outcome in self.conditions):
            return []
        excused = set() if self.clips else {"word_error_increase"}
        return [
            condition(figure, False, "What is not measured is not known.", "not measured")
            for figure in REQUIRED
            if figure not in self.figures and figure not in excused
        ]


@dataclass(frozen=True)
class _Attempt:
    """A context whose mistakes are an artifact's, and so a condition that fails."""

    gate: str
    reason: str
    conditions: list[Outcome]

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        fault = None
        if isinstance(error, BuildError):
            fault = " ".join(filter(None, (error.what, error.got)))
        elif error is not None:
            return False
        self.conditions.append(condition(self.gate, fault is None, self.reason, fault))
        return fault is not None


def _agreement(tokens: Sequence[int], others: Sequence[int]) -> float:
    """Share of positions with the same token."""
    return sum(a == b for a, b in zip(tokens, others, strict=True)) / len(tokens)
