"""From a graph with weights to an ExecuTorch program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.export import ExportedProgram

from voxtral_build.backends.base import Backend

if TYPE_CHECKING:
    from executorch.exir import ExecutorchProgramManager


def lower_program(
    method: str, program: ExportedProgram, backend: Backend
) -> ExecutorchProgramManager:
    """Lower one method for one backend.

    Args:
        method: the name it gets in the program.
        program: a graph with its weights bound.
    """
    from executorch.exir import to_edge_transform_and_lower

    backend.prepare(program)
    edge = to_edge_transform_and_lower(
        {method: program},
        partitioner={method: list(backend.partitioners(method))},
        compile_config=backend.compile_config(),
    )
    return edge.to_executorch(backend.executorch_config())
