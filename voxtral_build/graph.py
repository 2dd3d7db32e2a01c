"""Graphs without weights: exporting, saving, and binding weights later.

A graph depends on `params.json`, the settings and the quantization's layout only. It is
exported once from tensors without content, and gets its weights where it is lowered.
"""

from __future__ import annotations

from pathlib import Path

import sympy
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram

from voxtral_build.errors import BuildError
from voxtral_build.files import whole_file
from voxtral_build.matrix import COMPONENT_OF, Method, Quant
from voxtral_build.methods import MethodBuilder
from voxtral_build.quantization import placeholders


def export_method(
    builder: MethodBuilder, method: Method, quant: Quant, dtype: torch.dtype
) -> ExportedProgram:
    """Export a method strictly, from tensors without content."""
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


def module_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer of a method by its name in the graph."""
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }


def strip_weights(program: ExportedProgram) -> ExportedProgram:
    """Replace every weight and runtime buffer of a graph by an empty tensor, in place."""
    for table in (program.state_dict, program.constants):
        for name, value in table.items():
            if not isinstance(value, Tensor):
                continue
            empty = torch.empty(0, dtype=value.dtype)
            is_parameter = isinstance(value, nn.Parameter)
            table[name] = nn.Parameter(empty, requires_grad=False) if is_parameter else empty
    return program


def bind_weights(program: ExportedProgram, module: nn.Module) -> ExportedProgram:
    """Give a graph the weights and runtime buffers of a built method, in place.

    Raises:
        BuildError: the graph asks for a tensor that the method does not have.
    """
    tensors = module_tensors(module)
    for table in (program.state_dict, program.constants):
        for name in table:
            if name not in tensors and isinstance(table[name], Tensor) and table[name].numel():
                continue  # a constant of the graph itself, such as a literal tensor
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
