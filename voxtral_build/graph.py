"""Graphs without weights: exporting, saving, and binding weights later.

A graph depends on `params.json`, the settings and the quantization's layout only. It is
exported once from tensors without content, and gets its weights where it is lowered.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sympy
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export import ExportedProgram

from voxtral_build.axes import COMPONENT_OF, Method
from voxtral_build.errors import BuildError
from voxtral_build.files import whole_file
from voxtral_build.methods import MethodBuilder
from voxtral_build.quant import Quant
from voxtral_build.quantization import placeholders


def export_method(
    builder: MethodBuilder, method: Method, quant: Quant, dtype: torch.dtype
) -> ExportedProgram:
    """Export a method strictly, from tensors without content."""
    # Fake tensors have shape, dtype and device, and no memory: the tracer clones every
    # parameter and cache, which at full size would be 12 GB for a graph of 8 MB.
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = builder.meta_model()
        tensors = placeholders(model, COMPONENT_OF[method], quant, dtype)
        (module,) = builder.build([method], tensors, dtype)
    with torch.no_grad():
        # strict: without it, `.item()` is a sample's value, baked in, and the decoder has
        # no memory (https://github.com/pytorch/executorch/issues/17524).
        return torch.export.export(
            module,
            builder.example_inputs(method, dtype),
            dynamic_shapes=builder.dynamic_shapes(method),
            strict=True,
        )


def _bound_tables(program: ExportedProgram) -> Iterator[tuple[dict[str, Any], str]]:
    """Where the graph keeps each parameter and buffer of its method: (table, name).

    Literal tensors of the graph itself are not among them.
    """
    signature = program.graph_signature
    for name in (*signature.parameters, *signature.buffers):
        # Buffers that no checkpoint holds are with the constants.
        yield program.state_dict if name in program.state_dict else program.constants, name


def strip_weights(program: ExportedProgram) -> ExportedProgram:
    """Replace every weight and runtime buffer of a graph by an empty tensor, in place."""
    for table, name in _bound_tables(program):
        empty = torch.empty(0, dtype=table[name].dtype)
        is_parameter = isinstance(table[name], nn.Parameter)
        table[name] = nn.Parameter(empty, requires_grad=False) if is_parameter else empty
    return program


def bind_weights(program: ExportedProgram, module: nn.Module) -> ExportedProgram:
    """Give a graph the weights and runtime buffers of a built method, in place.

    Raises:
        BuildError: the graph asks for a tensor that the method does not have.
    """
    tensors = {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
    for table, name in _bound_tables(program):
        if name not in tensors:
            raise BuildError(
                f"the graph asks for {name}, which the method does not have",
                next_step="export the graph again: it was made by another version",
            )
        table[name] = tensors[name]
    return program


def save_graph(program: ExportedProgram, path: Path) -> None:
    """Save a graph, whole or not at all."""
    with whole_file(path) as temporary, temporary.open("wb") as file:
        torch.export.save(program, file)


def load_graph(path: Path) -> ExportedProgram:
    """Load a graph that `save_graph` wrote."""
    with path.open("rb") as file:
        program = torch.export.load(file)
    _forget_ranges_of_expressions(program)
    return program


def _forget_ranges_of_expressions(program: ExportedProgram) -> None:
    """Mend what torch 2.13's loader does to a derived size such as 8 * tokens.

    It enters the expression beside the symbols, as if it were one, and decompositions then
    fail on it. Nothing is lost: the expression's range follows from its symbol's.
    """
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, FakeTensor) and value.fake_mode.shape_env is not None:
            ranges = value.fake_mode.shape_env.var_to_range
            for key in [key for key in ranges if not isinstance(key, sympy.Symbol)]:
                del ranges[key]
            return
