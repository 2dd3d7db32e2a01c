"""What quantizing costs, in time, memory and accuracy: the figures of docs/QUANTIZATION.md.

    python benchmarks/quantize.py speed [DIR] [--runs N]
    python benchmarks/quantize.py accuracy DIR [DIR ...] [--audio WAV] [--tokens greedy|random]
    python benchmarks/quantize.py draws
    python benchmarks/quantize.py sizes DIR [--quant COMPONENT=QUANT ...]
    python benchmarks/quantize.py bytes DIR

DIR is a checkpoint's folder. `speed` holds this project against the call that ExecuTorch's
example makes, `quantize_model_`, on the same tensors: a decoder layer's linears and a slice
of the output projection. Without DIR they are random, in the real model's shapes. `sizes`
is for a full-size checkpoint, `accuracy` and `bytes` for smaller ones.

Tables go to stdout, in Markdown. Nothing is asserted: a slow machine is no failure.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import math
import os
import statistics
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple, dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from voxtral_build import sound
from voxtral_build.audio import log_mel
from voxtral_build.axes import COMPONENTS, Component
from voxtral_build.checkpoint import PARAMS, TOKENIZER, WEIGHTS
from voxtral_build.methods import MethodBuilder
from voxtral_build.model.attention import STANDARD
from voxtral_build.model.config import ModelConfig, RuntimeConfig
from voxtral_build.model.voxtral import VoxtralRealtimeModel
from voxtral_build.quant import Algorithm, Quant, Scheme
from voxtral_build.quantization import quantizable_names, quantize_tensor, quantized_bytes
from voxtral_build.quantized_file import write_component
from voxtral_build.row_blocks import blocks, read_rows
from voxtral_build.runtime.greedy import pad_audio
from voxtral_build.runtime.layerwise import LayerwiseModel
from voxtral_build.settings import Settings
from voxtral_build.steps.synth import SIZES, make_params, write_checkpoint
from voxtral_build.tensor_file import read_header, write_tensors
from voxtral_build.tokenizer import StreamingTokens
from voxtral_build.validation.eager import EagerSource
from voxtral_build.variants import Variant
from voxtral_build.weights import checkpoint_key, parameter_names, read_tensors

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = Settings(max_seq_len=512)
PEER = Quant.parse("8da4w.g32")
SLICE_ROWS = 16384  # of the output projection's 131072
LINEAR_QUANTS = ("4w.g32", "4w.axis", "8w.axis", "8da4w.g32", "8da4w.axis", "8da8w.axis")
QUANTS: dict[Component, tuple[str, ...]] = {
    "encoder": LINEAR_QUANTS,
    "decoder": LINEAR_QUANTS,
    "embedding": ("4w.g32", "4w.axis", "8w.axis"),
}

_Result = TypeVar("_Result")


def main() -> None:
    """Run one of the benchmarks."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    sub = commands.add_parser("speed", help="seconds, memory and error beside the peer's call")
    sub.add_argument("checkpoint", type=Path, nargs="?", help="default: random tensors")
    sub.add_argument("--runs", type=int, default=3, help="the fastest of N counts; default: 3")
    sub.set_defaults(command=speed)
    sub = commands.add_parser("accuracy", help="error of weights and of outputs")
    sub.add_argument("checkpoints", type=Path, nargs="+", help="figures are their mean")
    sub.add_argument("--audio", type=Path, default=ROOT / "tests" / "data" / "jfk_5s.wav")
    sub.add_argument(
        "--tokens",
        choices=("greedy", "random"),
        default="greedy",
        help="the tokens at the decoder's input: the unquantized model's own (default), or "
        "random ones, for a random model, which would repeat one of its own for ever",
    )
    sub.set_defaults(command=accuracy)
    sub = commands.add_parser("draws", help="error on weights of several distributions")
    sub.set_defaults(command=draws)
    sub = commands.add_parser("sizes", help="bytes and error against their closed forms")
    sub.add_argument("checkpoint", type=Path)
    sub.add_argument("--quant", action="append", metavar="COMPONENT=QUANT", help="default: all")
    sub.set_defaults(command=sizes)
    sub = commands.add_parser("bytes", help="whether the CPU's instructions change the result")
    sub.add_argument("checkpoint", type=Path)
    sub.set_defaults(command=bytes_by_instructions)
    args = vars(parser.parse_args())
    args.pop("command")(**args)


# --- speed -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """One way of quantizing, measured in a process of its own.

    Attributes:
        cpu_seconds: of all threads. On a busy machine wall time says less.
        anonymous_mb: peak of the process's anonymous memory while it quantized.
        errors: relative RMS error of each weight.
        sha256, bytes, bits: of the file; bits per weight by weight. Ours only.
    """

    seconds: float
    cpu_seconds: float
    anonymous_mb: float
    errors: Mapping[str, float]
    sha256: str = ""
    bytes: int = 0
    bits: Mapping[str, float] | None = None


def speed(checkpoint: Path | None, runs: int) -> None:
    """Ours, block by block from file to file, beside whole matrices in memory."""
    cores = os.cpu_count() or 1
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if checkpoint is None:
            size = replace(SIZES["full"], layers=1, enc_layers=1, vocab=SLICE_ROWS)
            params = make_params(size)
            write_checkpoint(params, 0, folder)
            whole = ModelConfig.parse(make_params(SIZES["full"]))
        else:
            excerpt(checkpoint, folder)
            whole = ModelConfig.load(checkpoint / PARAMS)
        shapes = quantizable_shapes(meta_model(folder), "decoder")
        ways: dict[tuple[str, int], Callable[[], Measured]] = {}
        for threads in dict.fromkeys((cores, 1)):
            for algorithm in ("hqq", "affine"):
                ways[f"whole matrices, {algorithm}", threads] = partial(
                    measure_whole, folder, algorithm, threads
                )
            for quant in with_algorithms(PEER.slug):
                ways[f"ours, {quant.algorithm}", threads] = partial(
                    measure_ours, folder, "decoder", quant.slug, threads
                )
        # Turn by turn, so that a busy minute of the machine does not hit one of them alone.
        taken = [{key: in_a_process(way) for key, way in ways.items()} for _ in range(runs)]
    best = {key: min((run[key] for run in taken), key=lambda m: m.seconds) for key in ways}
    values = total(shapes)
    decoder = total(quantizable_shapes(meta_model_of(whole), "decoder"))
    print(
        f"{values / 1e6:.1f} M parameters in {len(shapes)} matrices, {PEER.slug}; "
        f"fastest of {runs}.\n`whole matrices, hqq` is the peer's call.\n"
    )
    rows = []
    for (way, threads), measured in best.items():
        peer = best["whole matrices, hqq", threads]
        rate = values / measured.seconds
        rows.append(
            [
                way,
                threads,
                f"{measured.seconds:.2f}",
                f"{measured.cpu_seconds:.2f}",
                f"{rate / 1e6:.1f}",
                f"{peer.seconds / measured.seconds:.1f}",
                f"{peer.cpu_seconds / measured.cpu_seconds:.1f}",
                percent(weighted_rms(measured.errors, shapes)),
                f"{measured.anonymous_mb:.0f}",
                f"{decoder / rate:.0f}",
            ]
        )
    heads = "way, threads, s, CPU s, M/s, peer / this, the same in CPU s, error of weights"
    table([*heads.split(", "), "anonymous, MB", f"EXTRAPOLATED to {decoder / 1e6:.0f} M, s"], rows)


def excerpt(checkpoint: Path, folder: Path) -> None:
    """A checkpoint of the decoder's first layer, and of the first rows of the output."""
    params = json.loads((checkpoint / PARAMS).read_text(encoding="utf-8"))
    params["n_layers"], params["vocab_size"] = 1, min(SLICE_ROWS, params["vocab_size"])
    (folder / PARAMS).write_text(json.dumps(params), encoding="utf-8")
    model, source = meta_model(folder), read_header(checkpoint / WEIGHTS)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    shapes = {
        checkpoint_key(name): tuple(parameters[name].shape)
        for name in parameter_names(model, "decoder")
    }
    announced = {key: (source.tensors[key].dtype, shape) for key, shape in shapes.items()}
    with (
        source.path.open("rb", buffering=0) as file,
        write_tensors(folder / WEIGHTS, announced, {}) as writer,
    ):
        for key, shape in shapes.items():
            parts = (read_rows(file.fileno(), source.tensors[key], rows) for rows in blocks(shape))
            writer.add(key, (part.view(torch.uint8).numpy().tobytes() for part in parts))


def measure_whole(folder: Path, algorithm: str, threads: int) -> Measured:
    """Linears in memory, quantized a matrix at a time: by HQQ, the peer's own call."""
    from executorch.extension.llm.export.quantize import quantize_model_
    from torchao.quantization import quantize_
    from torchao.quantization.granularity import PerGroup
    from torchao.quantization.quant_api import Int8DynamicActivationIntxWeightConfig

    torch.set_num_threads(threads)
    names = list(quantizable_shapes(meta_model(folder), "decoder"))
    tensors = read_tensors(folder, names, torch.float32)
    module = nn.ModuleList(linear(tensors.pop(name)) for name in names)
    # The call says on stdout what it does, and that it is experimental.
    with peak_anonymous() as peak, contextlib.redirect_stdout(None):
        clock = Clock()
        if algorithm == "hqq":
            quantize_model_(module, "8da4w", PEER.group_size)
        else:
            config = Int8DynamicActivationIntxWeightConfig(
                weight_dtype=torch.int4,  # type: ignore[attr-defined]  # not in torch's stubs
                weight_granularity=PerGroup(PEER.group_size),
                intx_choose_qparams_algorithm=algorithm,
            )
            quantize_(module, config)
        taken = clock.read()
    errors = {}
    for name, quantized in zip(names, module, strict=True):
        (exact,) = read_tensors(folder, [name], torch.float32).values()
        errors[name] = relative_rms(quantized.weight.dequantize(), exact)
    return Measured(*taken, peak(), errors)


def linear(weight: Tensor) -> nn.Linear:
    """A linear with that weight."""
    rows, width = weight.shape
    result = nn.Linear(width, rows, bias=False, device="meta")
    result.weight = nn.Parameter(weight, requires_grad=False)
    return result


def measure_ours(folder: Path, component: Component, slug: str, threads: int) -> Measured:
    """What `voxtral-build quantize` does: read, quantize, measure the error, pack, hash, write."""
    model = meta_model(folder)
    with tempfile.TemporaryDirectory() as work:
        path = Path(work) / "weights.safetensors"
        with peak_anonymous() as peak:
            clock = Clock()
            written = write_component(
                path, folder, model, component, Quant.parse(slug), torch.float32, threads
            )
            taken = clock.read()
    return Measured(
        *taken,
        peak(),
        {name: weight.relative_rms_error for name, weight in written.weights.items()},
        written.sha256,
        written.bytes,
        {name: weight.bits_per_weight for name, weight in written.weights.items()},
    )


class Clock:
    """Wall and CPU time since it was made."""

    def __init__(self) -> None:
        self._started = time.perf_counter(), time.process_time()

    def read(self) -> tuple[float, float]:
        wall, cpu = self._started
        return time.perf_counter() - wall, time.process_time() - cpu


@contextlib.contextmanager
def peak_anonymous() -> Iterator[Callable[[], float]]:
    """Sample this process's anonymous memory; gives a function that tells the peak in MB.

    Pages of files do not count: the kernel takes those back when it needs them.
    """
    done, samples = threading.Event(), [0.0]

    def sample() -> None:
        over = False
        while not over:
            over = done.wait(0.005)
            status = Path("/proc/self/status").read_text(encoding="ascii")
            kib = int(status.partition("RssAnon:")[2].split(maxsplit=1)[0])
            samples.append(kib * 1024 / 1e6)

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        yield lambda: max(samples)
    finally:
        done.set()
        sampler.join()


def in_a_process(function: Callable[[], _Result]) -> _Result:
    """Call it in a fresh process, whose memory is that of nothing else."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=be_quiet) as pool:
        return pool.submit(function).result()


def be_quiet() -> None:
    """Keep warnings of libraries out of the tables."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)


# --- accuracy ----------------------------------------------------------------------------


def accuracy(checkpoints: Sequence[Path], audio: Path, tokens: str) -> None:
    """Each component quantized alone, in every way, against the unquantized model."""
    figures: dict[tuple[Component, str], list[Figures]] = {}
    with torch.no_grad():
        for checkpoint in checkpoints:
            comparison = Comparison(checkpoint, audio, tokens)
            for component, slugs in QUANTS.items():
                for slug in [*slugs, *(["8da4w.g128.skip"] if component != "embedding" else [])]:
                    for quant in with_algorithms(slug):
                        print(checkpoint, component, quant.slug, file=sys.stderr)
                        found = comparison.of(component, quant)
                        if found is not None:
                            figures.setdefault((component, quant.slug), []).append(found)
    print(
        f"{len(checkpoints)} checkpoints, {comparison.positions} positions each, {tokens} tokens.\n"
    )
    rows = []
    for (component, slug), found in figures.items():
        mean = Figures(
            *(statistics.fmean(values) for values in zip(*map(astuple, found), strict=True))
        )
        rows.append(
            [
                component,
                slug.replace(".hqq", ""),
                "hqq" if ".hqq" in slug else "affine",
                f"{mean.bits:.2f}",
                percent(mean.weights),
                percent(mean.audio) if component == "encoder" else "",
                percent(mean.logits),
                percent(mean.top1, 1),
            ]
        )
    heads = "component, quantization, algorithm, bits per weight, weights, audio embeddings, logits"
    table([*heads.split(", "), "top-1"], rows)


@dataclass(frozen=True)
class Figures:
    """What quantizing one component did.

    Attributes:
        bits: per weight, with scales.
        weights, audio, logits: relative RMS errors.
        top1: share of positions with the same most likely token.
    """

    bits: float
    weights: float
    audio: float
    logits: float
    top1: float


class Comparison:
    """The unquantized fp32 model in eager over a clip, and models to hold against it."""

    def __init__(self, checkpoint: Path, audio: Path, ids: str):
        config = ModelConfig.load(checkpoint / PARAMS)
        self._checkpoint = checkpoint
        self._builder = MethodBuilder(
            config, RuntimeConfig.resolve(config, SETTINGS, "offline"), STANDARD
        )
        tokens = StreamingTokens.load(checkpoint / TOKENIZER)
        samples = torch.from_numpy(sound.read(audio, config.audio.sampling_rate).samples)
        padded = pad_audio(samples, config, tokens, SETTINGS.delay_tokens)
        self._mel = log_mel(padded, config.audio)
        prompt = tokens.prompt(SETTINGS.delay_tokens)
        # Of the prompt's positions, only the last one's output is ever read.
        self._first = len(prompt) - 1
        self.positions = padded.shape[0] // config.samples_per_token - self._first
        if ids == "greedy":
            model = self._eager({}, {})
            ids_in, _ = model.greedy(model.audio_embeds(self._mel), prompt)
            out = ids_in[len(prompt) :]
        else:
            generator = torch.Generator().manual_seed(0)
            shape = (self.positions - 1,)
            out = torch.randint(config.vocab_size, shape, generator=generator).tolist()
        self._ids = [*prompt, *out]
        self._audio, self._logits = self._outputs({}, {})

    def of(self, component: Component, quant: Quant) -> Figures | None:
        """Errors with one component quantized; the same tokens go in.

        None where it fits no layer, and all were skipped.
        """
        model = self._builder.meta_model()
        with tempfile.TemporaryDirectory() as work:
            path = Path(work) / "weights.safetensors"
            written = write_component(
                path, self._checkpoint, model, component, quant, torch.float32, os.cpu_count() or 1
            )
            if not written.weights:
                return None
            audio, logits = self._outputs({component: quant}, {component: path})
        shapes = quantizable_shapes(model, component)
        weights = written.weights
        quantized = {name: shapes[name] for name in weights}
        bits = sum(w.bits_per_weight * math.prod(shapes[name]) for name, w in weights.items())
        same = logits.argmax(-1) == self._logits.argmax(-1)
        return Figures(
            bits / total(quantized),
            weighted_rms({name: w.relative_rms_error for name, w in weights.items()}, quantized),
            relative_rms(audio, self._audio),
            relative_rms(logits, self._logits),
            float(same.float().mean()),
        )

    def _outputs(
        self, quants: Mapping[Component, Quant], weights: Mapping[Component, Path]
    ) -> tuple[Tensor, Tensor]:
        eager = self._eager(quants, weights)
        audio = eager.audio_embeds(self._mel)
        return audio, eager.logits(audio, self._ids)[:, self._first :]

    def _eager(
        self, quants: Mapping[Component, Quant], weights: Mapping[Component, Path]
    ) -> LayerwiseModel:
        none = Quant.parse("none")
        scheme = Scheme(**{name: quants.get(name, none) for name in COMPONENTS})
        variant = Variant("portable", "fp32", "compared", "offline")
        return EagerSource(self._checkpoint, variant, scheme, weights, SETTINGS).model()


def draws() -> None:
    """Random weights: what tails do to their error, and inputs to the error of outputs."""
    generator = torch.Generator().manual_seed(0)
    shape = (1024, 9216)  # as wide as the decoder's widest linear

    def normal(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=generator)

    gaussian = normal(*shape)
    chi = torch.stack([normal(*shape).square() for _ in range(5)])
    weights = {
        "Gaussian": gaussian,
        "Laplace": torch.empty(shape).exponential_(generator=generator) * gaussian.sign(),
        "Student's t, 5 degrees": gaussian / chi.mean(0).sqrt(),
    }
    inputs = {"mean 0": normal(shape[1], 64), "GELU": functional.gelu(normal(shape[1], 64))}
    slugs = ("8da4w.g32", "8da4w.g128", "8da4w.axis", "8w.axis")
    by_tails, by_inputs = [], []
    for slug in slugs:
        both = with_algorithms(slug)
        for name, weight in weights.items():
            errors = [
                relative_rms(quantize_tensor(weight, quant).dequantize(), weight) for quant in both
            ]
            by_tails.append([slug, name, *map(percent, errors), f"{errors[1] / errors[0]:.3f}"])
        for quant in both:
            quantized = quantize_tensor(gaussian, quant)
            dequantized = quantized.dequantize()
            shift = float((dequantized - gaussian).mean() / quantized.scale.mean())
            outputs = [relative_rms(dequantized @ x, gaussian @ x) for x in inputs.values()]
            by_inputs.append([slug, quant.algorithm, f"{shift:.4f}", *map(percent, outputs)])
    table(["quantization", "weights", "affine", "hqq", "hqq / affine"], by_tails)
    print()
    heads = [f"outputs, inputs {name}" for name in inputs]
    table(["quantization", "algorithm", "mean error of a weight, steps", *heads], by_inputs)


# --- sizes -------------------------------------------------------------------------------


def sizes(checkpoint: Path, quant: Sequence[str] | None) -> None:
    """Every component and quantization (affine): what came out, beside what should."""
    asked = quant or [f"{name}={slug}" for name in COMPONENTS for slug in QUANTS[name]]
    model = meta_model(checkpoint)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    rows = []
    for text in asked:
        component, _, slug = text.partition("=")
        assert component in COMPONENTS, text
        chosen = Quant.parse(slug)
        threads = os.cpu_count() or 1
        measured = in_a_process(partial(measure_ours, checkpoint, component, slug, threads))
        assert measured.bits is not None
        shapes = {name: tuple(parameters[name].shape) for name in measured.bits}
        rest = sum(
            4 * parameters[name].numel()
            for name in parameter_names(model, component)
            if name not in shapes
        )
        formula = rest + sum(
            quantized_bytes(shape, chosen, torch.float32) for shape in shapes.values()
        )
        bits = weighted_mean(measured.bits, shapes)
        expected = {
            name: gaussian_error(chosen.bits, chosen.group_size or shape[1])
            for name, shape in shapes.items()
        }
        error, closed = weighted_rms(measured.errors, shapes), weighted_rms(expected, shapes)
        worst = max(abs(measured.errors[name] / expected[name] - 1) for name in shapes)
        rows.append(
            [
                component,
                slug,
                f"{measured.bytes:,}",
                f"{100 * (measured.bytes / formula - 1):+.4f} %",
                f"{bits:.4f}",
                percent(error, 3),
                percent(closed, 3),
                f"{100 * (error / closed - 1):+.2f} %",
                f"{100 * worst:.2f} %",
                f"{measured.seconds:.0f}",
                f"{measured.anonymous_mb:.0f}",
            ]
        )
        print(" ".join(map(str, rows[-1])), file=sys.stderr)
    heads = "component, quantization, bytes of the file, over the formula, bits per weight, error"
    more = "closed form, differs by, worst weight by, s"
    table([*heads.split(", "), *more.split(", "), "anonymous, MB"], rows)


def gaussian_error(bits: int, group: int) -> float:
    """Relative RMS error of symmetric rounding of Gaussian weights, a scale per group.

    The step is max |w| / q with q = (2^bits - 1) / 2, and rounding spreads errors evenly over
    a step: step^2 / 12. The largest weight of a group, at 7.5 or 127.5 steps, is the
    exception: between two values, it is off by half a step, step^2 / 4.
    """
    q = (2**bits - 1) / 2
    return math.sqrt(mean_squared_maximum(group) / q**2 / 12 * (1 + 2 / group))


def mean_squared_maximum(count: int) -> float:
    """E[max x^2] of `count` standard Gaussians: the integral of 2 x P(max |x| > x)."""
    x = torch.linspace(0, 12, 1_200_001, dtype=torch.float64)
    below = torch.erf(x / math.sqrt(2)) ** count
    return float(torch.trapezoid(2 * x * (1 - below), x))


# --- bytes -------------------------------------------------------------------------------


def bytes_by_instructions(checkpoint: Path) -> None:
    """Quantize with the kernels that torch has for older CPUs, and sum in another order."""
    usual = torch.backends.cpu.get_cpu_capability().lower()
    cores = os.cpu_count() or 1
    cells = [("default", cores), ("avx2", cores), (usual, cores), (usual, 1)]
    rows = []
    for slug in ("4w.g32", "8da4w.g32", "8w.axis"):
        for quant in with_algorithms(slug):
            hashes = []
            for capability, threads in cells:
                os.environ["ATEN_CPU_CAPABILITY"] = capability  # read as a process starts
                way = partial(measure_ours, checkpoint, "decoder", quant.slug, threads)
                hashes.append(in_a_process(way).sha256)
            same = "yes" if len(set(hashes)) == 1 else "no"
            rows.append(
                [slug, quant.algorithm, same, *map(percent, changed_by_order(quant), (4, 4))]
            )
    print(f"decoder; {', '.join(f'{name} with {count} threads' for name, count in cells)}\n")
    heads = "quantization, algorithm, same file, scales changed by order, values changed by order"
    table(heads.split(", "), rows)


def changed_by_order(quant: Quant) -> tuple[float, float]:
    """Shares of scales and of values that differ where each group's weights are reversed.

    That is what wider or narrower vector registers do to a sum: its terms come in another
    order. A maximum does not mind.
    """
    weight = torch.randn(1024, 3072, generator=torch.Generator().manual_seed(0))
    group = quant.group_size or weight.shape[1]

    def turn(values: Tensor) -> Tensor:
        return values.view(len(values), -1, group).flip(-1).reshape(values.shape)

    forward, backward = quantize_tensor(weight, quant), quantize_tensor(turn(weight), quant)
    return (
        float((forward.scale != backward.scale).float().mean()),
        float((forward.qdata != turn(backward.qdata)).float().mean()),
    )


# --- shared ------------------------------------------------------------------------------


def meta_model(folder: Path) -> VoxtralRealtimeModel:
    """The model of a checkpoint, without memory."""
    return meta_model_of(ModelConfig.load(folder / PARAMS))


def meta_model_of(config: ModelConfig) -> VoxtralRealtimeModel:
    """The model of a `params.json`, without memory."""
    runtime = RuntimeConfig.resolve(config, SETTINGS, "offline")
    return MethodBuilder(config, runtime, STANDARD).meta_model()


def quantizable_shapes(model: nn.Module, component: Component) -> dict[str, tuple[int, ...]]:
    """Names and shapes of what a component's quantization applies to."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    return {name: tuple(parameters[name].shape) for name in quantizable_names(model, component)}


def with_algorithms(slug: str) -> list[Quant]:
    """A quantization by both algorithms: affine, then HQQ."""
    quant = Quant.parse(slug)
    return [quant.model_copy(update={"algorithm": name}) for name in get_args(Algorithm)]


def total(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Parameters in all."""
    return sum(map(math.prod, shapes.values()))


def relative_rms(got: Tensor, want: Tensor) -> float:
    """|got - want| / |want|."""
    difference = (got.float() - want.float()).square().sum(dtype=torch.float64)
    return math.sqrt(difference / want.float().square().sum(dtype=torch.float64))


def weighted_mean(values: Mapping[str, float], shapes: Mapping[str, tuple[int, ...]]) -> float:
    """Mean over weights, each as often as it has parameters."""
    return sum(values[name] * math.prod(shapes[name]) for name in values) / total(shapes)


def weighted_rms(errors: Mapping[str, float], shapes: Mapping[str, tuple[int, ...]]) -> float:
    """Root mean square of relative errors, each as often as the weight has parameters."""
    squares = {name: error**2 for name, error in errors.items()}
    return math.sqrt(weighted_mean(squares, shapes))


def percent(value: float, digits: int = 2) -> str:
    return f"{100 * value:.{digits}f} %"


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table in Markdown; columns of figures to the right."""
    rows = [[str(cell) for cell in row] for row in rows]
    right = [all(row[i][-1:] in "%0123456789" for row in rows) for i in range(len(heads))]
    print("| " + " | ".join(heads) + " |")
    print("| " + " | ".join("---:" if numeric else "---" for numeric in right) + " |")
    for row in rows:
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    be_quiet()
    main()
