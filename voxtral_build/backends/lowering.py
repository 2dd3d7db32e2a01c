"""From a graph with weights to an ExecuTorch program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.export import ExportedProgram

from voxtral_build.backends.base import Backend, executorch_config

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
    from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower

    backend.prepare(program)
    edge = to_edge_transform_and_lower(
        {method: program},
        partitioner={method: list(backend.partitioners())},
        # The custom ops are outside the edge dialect's verifier, and all tensors are
        # contiguous: clones that only fix a dim order would be copies for nothing.
        compile_config=EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=True),
    )
    return edge.to_executorch(executorch_config())
