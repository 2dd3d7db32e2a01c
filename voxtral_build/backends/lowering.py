"""From a graph with weights to an ExecuTorch program."""

from __future__ import annotations

import operator
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from torch.export import ExportedProgram

from voxtral_build.backends.base import Backend
from voxtral_build.errors import BuildError
from voxtral_build.files import whole_file
from voxtral_build.pte.data_file import DATA_SUFFIX, join_data, read_data

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


def write_unit(lowered: ExecutorchProgramManager, output: Path, backend: Backend) -> None:
    """Write a lowered method to `output`; for a backend with data files, its own beside it.

    ExecuTorch writes a data file for each tag that data were given, such as
    `aoti_cuda_blob`. A unit has one, of its own name.

    Raises:
        BuildError: there are data outside of the program, and its backend has no data files.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".data-") as folder:
        lowered.write_tensor_data_to_file(folder)
        written = sorted(Path(folder).iterdir())
        if backend.data_file:
            _write_data(written, output.with_suffix(DATA_SUFFIX))
        elif written:
            raise BuildError(
                f"{output.name} keeps data outside of itself",
                got=", ".join(path.name for path in written),
                allowed=f"no data file: that is what the backend {backend.name} says of its units",
                next_step="set data_file in the backend's class",
            )
    with whole_file(output) as temporary, temporary.open("wb") as file:
        lowered.write_to_file(file)


def _write_data(written: list[Path], output: Path) -> None:
    """One data file from those that ExecuTorch wrote, which may be none."""
    if len(written) == 1:
        with whole_file(output) as temporary:
            shutil.move(written[0], temporary)
    else:
        join_data([read_data(path) for path in written], output)
