"""From a checkpoint's tensors to the model's parameters.

`KEY_PREFIXES` is the one place that knows both names. `check` holds a checkpoint against
a model built on the meta device, so that a wrong one fails in a second and by name,
before anything is loaded; `load_component` then assigns tensors, without copying a
model's worth of memory first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from torch import nn

from voxtral_build.axes import Component
from voxtral_build.checkpoint import PARAMS, REPOSITORY, TOKENIZER, WEIGHTS, require_files
from voxtral_build.errors import CheckpointError
from voxtral_build.model.attention import STANDARD
from voxtral_build.model.config import ModelConfig, RuntimeConfig
from voxtral_build.model.voxtral import VoxtralRealtimeModel
from voxtral_build.settings import Settings
from voxtral_build.tensor_file import TensorFile, TensorInfo, read_header
from voxtral_build.tokenizer import check_tokenizer

_MM = "mm_streams_embeddings.embedding_module."
KEY_PREFIXES = {  # checkpoint -> model
    f"{_MM}whisper_encoder.conv_layers.": "encoder.conv_layers.",
    f"{_MM}whisper_encoder.transformer.layers.": "encoder.layers.",
    f"{_MM}whisper_encoder.transformer.norm.": "encoder.norm.",
    f"{_MM}audio_language_projection.0.": "adapter.w_in.",
    f"{_MM}audio_language_projection.2.": "adapter.w_out.",
    f"{_MM}tok_embeddings.": "decoder.tok_embeddings.",
    "layers.": "decoder.layers.",
    "norm.": "decoder.norm.",
}
# The output projection has no tensor of its own: it is the embedding's.
TIED = {"decoder.output.weight": "decoder.tok_embeddings.weight"}

TORCH_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_COMPONENT_PREFIXES: dict[Component, tuple[str, ...]] = {
    "encoder": ("encoder.", "adapter."),
    "decoder": ("decoder.layers.", "decoder.norm.", "decoder.output."),
    "embedding": ("decoder.tok_embeddings.",),
}


def model_name(key: str) -> str | None:
    """The model's name of a checkpoint key, or None where there is none."""
    return _translate(key, KEY_PREFIXES.items())


def checkpoint_key(name: str) -> str:
    """The checkpoint's key of a parameter of the model.

    Raises:
        KeyError: no parameter of the model is called so.
    """
    name = TIED.get(name, name)
    key = _translate(name, ((model, ckpt) for ckpt, model in KEY_PREFIXES.items()))
    if key is None:
        raise KeyError(name)
    return key


def _translate(name: str, prefixes: Iterable[tuple[str, str]]) -> str | None:
    for before, after in prefixes:
        if name.startswith(before):
            return after + name.removeprefix(before)
    return None


def component_of(name: str) -> Component:
    """Which component a parameter of the model is quantized and compiled with."""
    return next(
        component
        for component, prefixes in _COMPONENT_PREFIXES.items()
        if name.startswith(prefixes)
    )


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Checkpoint key -> shape, for every tensor the model takes, in the model's order."""
    runtime = RuntimeConfig.resolve(config, Settings(), "offline")
    with torch.device("meta"):
        # Any family will do: attention and caches hold no parameters. This one needs no
        # ExecuTorch import.
        model = VoxtralRealtimeModel(config, runtime, STANDARD)
    return {
        checkpoint_key(name): tuple(tensor.shape)
        for name, tensor in model.state_dict().items()
        if name not in TIED
    }


def check(folder: Path) -> tuple[ModelConfig, TensorFile]:
    """Hold a checkpoint's files, and every key, shape and dtype, against the model.

    Raises:
        CheckpointError: names the file at fault, and each tensor that is missing, unknown,
            or of another shape or dtype.
    """
    require_files(folder)
    config = ModelConfig.load(folder / PARAMS)
    file = read_header(folder / WEIGHTS)
    expected = _expected_of(config, folder / PARAMS, len(file.tensors))
    faults = [f"missing: {key} {list(expected[key])}" for key in expected.keys() - file.tensors]
    faults += [f"unknown: {key}" for key in file.tensors.keys() - expected]
    for key in expected.keys() & file.tensors:
        faults += _faults_of(key, file.tensors[key], expected[key])
    if faults:
        faults.sort()
        shown = "\n           ".join(faults[:10])
        more = f"\n           and {len(faults) - 10} more" if len(faults) > 10 else ""
        next_step = "check that both files come from the same revision"
        if expected.keys().isdisjoint(file.tensors):
            next_step = f"take {WEIGHTS} from {REPOSITORY}: no name is one of Mistral's"
        raise CheckpointError(
            f"{file.path} does not hold the model that {folder / PARAMS} describes",
            got=f"{len(faults)} wrong of {len(expected)} expected tensors\n           "
            + shown
            + more,
            allowed="exactly the expected tensors, floating point, in the expected shapes",
            next_step=next_step,
        )
    check_tokenizer(folder / TOKENIZER, config.vocab_size)
    return config, file


def _expected_of(config: ModelConfig, params: Path, available: int) -> dict[str, tuple[int, ...]]:
    """`expected_tensors` of a `params.json` that may be absurd."""
    layers = config.encoder.n_layers + config.n_layers
    if layers > available:  # a million layers take minutes to lay out
        raise CheckpointError(
            f"{params} and the weights are of different models",
            got=f"{layers:,} layers and {available:,} tensors",
            allowed="several tensors a layer",
            next_step="check that both files come from the same revision",
        )
    try:
        return expected_tensors(config)
    except (RuntimeError, TypeError) as error:  # torch's, of a size beyond 64 bits
        raise CheckpointError(
            f"{params} describes a tensor larger than can be",
            got="a shape beyond 64 bits",
            next_step=f"compare it with params.json of {REPOSITORY}",
        ) from error


def _faults_of(key: str, info: TensorInfo, shape: tuple[int, ...]) -> list[str]:
    if info.shape != shape:
        return [f"misshapen: {key} {list(info.shape)}, expected {list(shape)}"]
    if info.dtype not in ("BF16", "F32", "F16"):
        return [f"wrong dtype: {key} {info.dtype}, expected BF16, F32 or F16"]
    return []


def read_tensors(folder: Path, names: Iterable[str], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Read parameters by the model's names, cast to `dtype`."""
    with safe_open(str(folder / WEIGHTS), framework="pt") as file:
        return {name: file.get_tensor(checkpoint_key(name)).to(dtype) for name in names}


def parameter_names(model: nn.Module, component: Component) -> list[str]:
    """The model's names of one component's parameters, in the model's order."""
    names = (name for name, _ in model.named_parameters(remove_duplicate=False))
    return [name for name in names if component_of(name) == component]


def load_component(
    model: nn.Module, component: Component, tensors: Mapping[str, torch.Tensor]
) -> None:
    """Assign one component's tensors to a model on the meta device, without copying them.

    Embedding and output projection become parameters of their own, so that they can be
    quantized apart; see `restore_tie`.

    Args:
        model: `VoxtralRealtimeModel`.
        tensors: by the model's names; shapes as the model's, any dtype or tensor subclass.

    Raises:
        KeyError: a parameter of the component has no tensor.
    """
    state = {
        name: nn.Parameter(tensors[name], requires_grad=False)
        for name in parameter_names(model, component)
    }
    # strict=False speaks of the other components only: this one is complete by now.
    model.load_state_dict(state, strict=False, assign=True)


def restore_tie(model: VoxtralRealtimeModel) -> None:
    """Let output projection and embedding share one tensor again, as the checkpoint has it.

    Only where both are loaded and neither is quantized: quantized, they are apart for good.
    """
    output, embedding = model.decoder.output, model.decoder.tok_embeddings
    # A quantized weight is a subclass of Tensor; on the meta device nothing is loaded.
    plain = all(type(module.weight.data) is torch.Tensor for module in (output, embedding))
    if plain and not output.weight.is_meta and not embedding.weight.is_meta:
        output.weight = embedding.weight
