"""What each variant takes: weights, caches, conv state and planned memory, in bytes.

Everything is there twice: by formulas that need nothing but `params.json` and the settings,
so that the real model's sizes are known before it is downloaded, and as measured in the
program where one is built. `docs/FOOTPRINT.md` holds the two against each other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from voxtral_build.artifact_files import DATA, MODEL
from voxtral_build.axes import Component, Dtype, Method
from voxtral_build.checkpoint import PARAMS
from voxtral_build.errors import ConfigError
from voxtral_build.matrix import Matrix
from voxtral_build.metadata import constant_methods
from voxtral_build.methods import MethodBuilder
from voxtral_build.model.attention import STANDARD
from voxtral_build.model.config import CONV_STRIDES, ModelConfig, RuntimeConfig
from voxtral_build.pte.inspect import describe
from voxtral_build.pte.memory import methods_memory
from voxtral_build.quant import Quant
from voxtral_build.quantization import component_size
from voxtral_build.settings import CheckpointSource, Settings
from voxtral_build.steps.synth import SIZES, make_params
from voxtral_build.variants import Unit
from voxtral_build.weights import TORCH_DTYPES

_DISTANCE_BYTES = 4  # int32: what masks are made from

Status = Literal["measured", "not built", "other build"]


@dataclass(frozen=True)
class Sizes:
    """What one method takes, in bytes.

    Attributes:
        weights: its component's parameters with their scales. Measured: all its constants,
            its named data and its delegates' own data.
        kv_caches: keys and values of all layers.
        conv_state: frames that the streaming encoder's convolutions carry over.
        activation: the largest tensor that memory is planned for besides.
        planned: its arena. By the formula the three above, which is a lower bound: in the
            arena other tensors lie beside them.
    """

    weights: int
    kv_caches: int
    conv_state: int
    activation: int
    planned: int


@dataclass(frozen=True)
class MethodFootprint:
    """One method.

    Attributes:
        quant: of its component.
        activation: which tensor is the largest, by the formula.
        measured: None where there is no program to measure.
    """

    quant: str
    activation: str
    formula: Sizes
    measured: Sizes | None


@dataclass(frozen=True)
class Footprint:
    """One variant.

    Attributes:
        status: other build: there is a program, but of another model or other settings.
        file_bytes: of the measured program, and of what it keeps outside of itself.
        methods: by name, in the order of `METHODS_OF`.
    """

    variant: str
    status: Status
    file_bytes: int | None
    methods: Mapping[Method, MethodFootprint]


def source_config(source: CheckpointSource) -> ModelConfig:
    """The model that a matrix builds; a synthetic one's needs no file.

    Raises:
        CheckpointError: the folder's params.json is missing or wrong.
        ConfigError: it is on the Hub.
    """
    if source.synth is not None:
        return ModelConfig.parse(make_params(SIZES[source.synth.size]))
    if source.path is None:
        raise ConfigError(
            "the model's params.json is on the Hub",
            got=f"checkpoint.repo {source.repo}",
            next_step="fetch it with `snakemake build/inventory.json`, then give "
            "`--params build/checkpoint/params.json`",
        )
    return ModelConfig.load(source.path.expanduser() / PARAMS)


def footprints(
    matrix: Matrix, config: ModelConfig, settings: Settings, artifacts: Path
) -> list[Footprint]:
    """The footprint of every variant.

    Args:
        matrix: the variants and their schemes.
        config: of the matrix's model or another.
        settings: the matrix's or others.
        artifacts: the folder of built variants.

    Raises:
        ConfigError: a group size does not fit a layer.
        PteError: an artifact is no readable program.
    """
    weights = _weight_bytes(config)
    result = []
    for variant in matrix.variants:
        runtime = RuntimeConfig.resolve(config, settings, variant.mode)
        status, file_bytes, measured = _measure(
            artifacts / variant.slug / MODEL, constant_methods(config, runtime)
        )
        methods = {}
        for unit in matrix.units(variant):
            name, formula = _by_formula(unit, config, runtime, weights)
            methods[unit.method] = MethodFootprint(
                unit.quant.slug, name, formula, measured.get(unit.method)
            )
        result.append(Footprint(variant.slug, status, file_bytes, methods))
    return result


# --- formulas ----------------------------------------------------------------------------


def decoder_cache_bytes(config: ModelConfig, runtime: RuntimeConfig, dtype: Dtype) -> int:
    """layers x keys and values x slots x heads x head size; slots: `_decoder_slots`."""
    heads = config.n_kv_heads * config.head_dim
    return config.n_layers * 2 * _decoder_slots(runtime) * heads * TORCH_DTYPES[dtype].itemsize


def encoder_cache_bytes(config: ModelConfig, runtime: RuntimeConfig, dtype: Dtype) -> int:
    """layers x keys and values x 2 windows x heads x head size; streaming only."""
    encoder = config.encoder
    heads = encoder.n_heads * encoder.head_dim
    return encoder.n_layers * 2 * 2 * runtime.max_enc_len * heads * TORCH_DTYPES[dtype].itemsize


def conv_state_bytes(config: ModelConfig, runtime: RuntimeConfig, dtype: Dtype) -> int:
    """channels x frames of left context, of both convolutions; streaming only."""
    frames = [runtime.conv_left_padding(stride) for stride in CONV_STRIDES]
    values = config.audio.num_mel_bins * frames[0] + config.encoder.dim * frames[1]
    return values * TORCH_DTYPES[dtype].itemsize


def largest_activation(
    method: Method, config: ModelConfig, runtime: RuntimeConfig, dtype: Dtype
) -> tuple[str, int]:
    """Name and bytes of the largest tensor in the largest call.

    Of those that no delegate can keep to itself: the output, and what attention reads.
    """
    size = TORCH_DTYPES[dtype].itemsize
    tokens = runtime.decode_bound if method == "text_decoder" else runtime.max_seq_len
    frames = config.downsample_factor * tokens
    ring = 2 * runtime.max_enc_len
    decoder_heads = config.n_heads * config.head_dim
    encoder_heads = config.encoder.n_heads * config.encoder.head_dim
    sizes = {
        "token_embedding": {"embeddings": tokens * config.dim * size},
        "text_decoder": {
            "logits": tokens * config.vocab_size * size,
            "mask": tokens * _decoder_slots(runtime) * _DISTANCE_BYTES,
            "queries": tokens * decoder_heads * size,
        },
        "audio_encoder": {
            "mask": frames * frames * _DISTANCE_BYTES,
            "queries": frames * encoder_heads * size,
        },
        "encode_audio_chunk": {
            "mask": config.downsample_factor * ring * _DISTANCE_BYTES,
            "queries": config.downsample_factor * encoder_heads * size,
        },
    }[method]
    windows = {
        "audio_encoder": runtime.offline_encoder_window,
        "text_decoder": runtime.offline_decoder_window,
    }
    if runtime.mode == "offline" and windows.get(method) is None:
        sizes.pop("mask", None)  # the kernel's own causal rule serves
    name = max(sizes, key=sizes.__getitem__)
    return name, sizes[name]


def _decoder_slots(runtime: RuntimeConfig) -> int:
    """Offline a flat cache of `max_seq_len`, streaming a ring of two windows."""
    return runtime.max_seq_len if runtime.mode == "offline" else 2 * runtime.sliding_window


def _weight_bytes(config: ModelConfig) -> Callable[[Component, Quant, Dtype], int]:
    """A function that tells a component's bytes; the model is laid out once, without memory."""
    # Mode, settings and family play no part: caches and attention hold no parameters.
    runtime = RuntimeConfig.resolve(config, Settings(), "offline")
    model = MethodBuilder(config, runtime, STANDARD).meta_model()

    @functools.cache
    def count(component: Component, quant: Quant, dtype: Dtype) -> int:
        return component_size(model, component, quant, TORCH_DTYPES[dtype]).bytes

    return count


def _by_formula(
    unit: Unit,
    config: ModelConfig,
    runtime: RuntimeConfig,
    weights: Callable[[Component, Quant, Dtype], int],
) -> tuple[str, Sizes]:
    """The name of a unit's largest activation, and its sizes."""
    cache = conv = 0
    if unit.method == "text_decoder":
        cache = decoder_cache_bytes(config, runtime, unit.dtype)
    elif unit.method == "encode_audio_chunk":
        cache = encoder_cache_bytes(config, runtime, unit.dtype)
        conv = conv_state_bytes(config, runtime, unit.dtype)
    name, activation = largest_activation(unit.method, config, runtime, unit.dtype)
    return name, Sizes(
        weights=weights(unit.component, unit.quant, unit.dtype),
        kv_caches=cache,
        conv_state=conv,
        activation=activation,
        planned=cache + conv + activation,
    )


# --- measurements ------------------------------------------------------------------------


def _measure(
    program: Path, constants: Mapping[str, int]
) -> tuple[Status, int | None, dict[str, Sizes]]:
    """Status, file size and sizes by method of a program.

    Args:
        program: the `.pte`.
        constants: what its constant methods return if it is of the model and settings asked for.
    """
    if not program.is_file():
        return "not built", None, {}
    description = describe(program)
    if description.constant_methods != constants:
        return "other build", None, {}
    data = program.with_name(DATA)
    memory = methods_memory(program, data if data.is_file() else None)
    sizes = {}
    for name, method in description.methods.items():
        # Keys and values have four dimensions, the frames before a convolution three.
        state = {True: 0, False: 0}
        for tensor in memory[name].state:
            state[len(tensor.sizes) == 4] += tensor.nbytes
        sizes[name] = Sizes(
            weights=memory[name].data_bytes,
            kv_caches=state[True],
            conv_state=state[False],
            activation=memory[name].largest_activation,
            planned=method.planned_bytes,
        )
    outside = data.stat().st_size if data.is_file() else 0
    return "measured", description.file_bytes + outside, sizes
