"""What a backend is, the attention families to choose from, and how a program is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from voxtral_build.model.attention import CUSTOM_SDPA, STANDARD, AttentionFamily

if TYPE_CHECKING:
    from executorch.exir import ExecutorchBackendConfig
    from torch.export import ExportedProgram

# By the name that `matrix.CAPABILITIES` gives a backend's graphs.
FAMILIES: dict[str, AttentionFamily] = {family.name: family for family in (CUSTOM_SDPA, STANDARD)}


class Backend(Protocol):
    """One compilation target of ExecuTorch.

    Attributes:
        delegates_linears: whether every linear must end in a delegate; a unit with one
            that does not is a failure, however well it runs.
    """

    delegates_linears: bool

    def prepare(self, program: ExportedProgram) -> None:
        """Rewrite a graph, in place, into the form that the backend takes."""
        ...

    def partitioners(self) -> Sequence[Any]:
        """ExecuTorch partitioners in the order they are asked."""
        ...


def executorch_config() -> ExecutorchBackendConfig:
    """How a lowered unit becomes a program, the same for all CPU backends."""
    from executorch.exir import ExecutorchBackendConfig
    from executorch.exir.passes import MemoryPlanningPass

    return ExecutorchBackendConfig(
        extract_delegate_segments=True,
        # Folds the quantized embedding's ops into one kernel that reads packed weights.
        do_quant_fusion_and_const_prop=True,
        # Inputs stay in the caller's memory: the arena need not hold them a second time.
        memory_planning_pass=MemoryPlanningPass(alloc_graph_input=False),
    )
