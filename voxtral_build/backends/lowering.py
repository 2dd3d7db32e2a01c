"""From a graph with weights to an ExecuTorch program."""

from __future__ import annotations

import operator
from collections import Counter
from typing import TYPE_CHECKING

from torch.export import ExportedProgram

from voxtral_build.backends.base import Backend
from voxtral_build.errors import BuildError

if TYPE_CHECKING:
    from executorch.exir import ExecutorchProgramManager


def lower_program(
    method: str, program: ExportedProgram, backend: Backend, packing_format: str = "plain"
) -> ExecutorchProgramManager:
    """Lower one method for one backend.

    Args:
        method: the name it gets in the program.
        program: a graph with its weights bound.
        packing_format: how the backend keeps quantized weights.

    Raises:
        BuildError: the backend has to take all of it, and did not.
    """
    from executorch.exir import to_edge_transform_and_lower

    if packing_format != "plain":
        backend.pack(program, packing_format)
    backend.prepare(program)
    edge = to_edge_transform_and_lower(
        {method: program},
        partitioner={method: list(backend.partitioners(method))},
        compile_config=backend.compile_config(),
    )
    if backend.delegated == "everything":
        _check_whole(method, edge.exported_program(method), backend)
    return edge.to_executorch(backend.executorch_config())


def _check_whole(method: str, program: ExportedProgram, backend: Backend) -> None:
    """Refuse a method that is not one delegate alone."""
    calls = Counter(
        getattr(node.target, "__name__", str(node.target))
        for node in program.graph.nodes
        if node.op == "call_function" and node.target is not operator.getitem
    )
    delegates = calls.pop("executorch_call_delegate", 0)
    if delegates != 1 or calls:
        left = ", ".join(f"{count} {name}" for name, count in sorted(calls.items()))
        raise BuildError(
            f"{backend.name} did not take all of {method}",
            got=f"{delegates} delegates" + (f", and outside of them {left}" if left else ""),
            allowed="one delegate, and nothing outside of it",
            next_step="choose another quantization for its component",
        )
