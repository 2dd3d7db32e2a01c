"""What a backend is: one file each, which is all that the project knows of it.

A backend's file imports neither torch nor ExecuTorch at its top: a matrix is checked
against all of them in a fraction of a second.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from voxtral_build.backends.capability import Capability
from voxtral_build.errors import BuildError
from voxtral_build.gates import Outcome

if TYPE_CHECKING:
    from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig
    from torch.export import ExportedProgram

    from voxtral_build.model.attention import AttentionFamily


class Backend(ABC):
    """One compilation target of ExecuTorch.

    Attributes:
        name: in the matrix, in paths and on the command line.
        description: what it is, in a line.
        capability: what can be built for it, and where.
        delegated: what must end in a delegate. A unit where something of it does not is a
            failure, however well it runs.
        delegate: the name by which a runtime knows its delegate; None where all is kernels.
        data_file: whether its units keep data outside of their `.pte`: each then has a `.ptd`
            beside it, and so has what is linked of them.
    """

    name: ClassVar[str]
    description: ClassVar[str]
    capability: ClassVar[Capability]
    delegated: ClassVar[Literal["nothing", "linears", "everything"]]
    delegate: ClassVar[str | None]
    data_file: ClassVar[bool] = False

    def missing(self) -> str | None:
        """What this machine lacks to lower for it, to follow that word; None if it can.

        Takes no time.
        """
        return None

    def family(self) -> AttentionFamily:
        """The cache and attention classes that its graphs are exported with."""
        from voxtral_build.model.attention import FAMILIES

        return FAMILIES[self.capability.attention]

    def prepare(self, program: ExportedProgram) -> None:  # noqa: B027  # most need nothing
        """Rewrite a graph with its weights, in place, into the form that the backend takes."""

    def pack(self, program: ExportedProgram, packing_format: str) -> None:
        """Rewrite quantized linears, in place, to read weights of another format than plain.

        Comes before `prepare`.

        Raises:
            BuildError: the backend does not have the format.
        """
        raise BuildError(
            f"{self.name} cannot pack weights so",
            got=packing_format,
            allowed=["plain", *self.capability.packing],
            next_step="take a quantization without that packing_format",
        )

    @abstractmethod
    def partitioners(self, method: str) -> Sequence[Any]:
        """ExecuTorch partitioners in the order they are asked."""

    def compile_config(self) -> EdgeCompileConfig:
        """How a graph becomes ExecuTorch's edge dialect."""
        from executorch.exir import EdgeCompileConfig

        # The custom ops are outside the edge dialect's verifier, and all tensors are
        # contiguous: clones that only fix a dim order would be copies for nothing.
        return EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=True)

    def executorch_config(self) -> ExecutorchBackendConfig:
        """How a lowered unit becomes a program."""
        from executorch.exir import ExecutorchBackendConfig
        from executorch.exir.passes import MemoryPlanningPass

        return ExecutorchBackendConfig(
            extract_delegate_segments=True,
            # Folds the quantized embedding's ops into one kernel that reads packed weights.
            do_quant_fusion_and_const_prop=True,
            # Inputs stay in the caller's memory: the arena need not hold them a second time.
            memory_planning_pass=MemoryPlanningPass(alloc_graph_input=False),
        )

    def inspect(self, method: str, model: Path, program: ExportedProgram) -> list[Outcome]:
        """Read back what was written of a method, and hold it against the graph.

        For a delegate that no host at hand can run, this is what stands in for running it.

        Args:
            model: a `.pte` that has the method, alone or among others.
            program: the method's graph with its weights.
        """
        return []
