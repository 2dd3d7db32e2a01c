"""Small programs for the tests of `voxtral_build.pte`: written by hand, and lowered."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from voxtral_build.pte.constant_method import constant_plan
from voxtral_build.pte.extents import Extent
from voxtral_build.pte.program_writer import write_program
from voxtral_build.pte.schema import new, table
from voxtral_build.pte.segments import Segment

CONSTANTS: dict[str, int | float | bool] = {
    "sample_rate": 16000,
    "use_kv_cache": True,
    "a_scale": 0.5,
    "offset": -3,
}


def tensor(sizes: Sequence[int], *, scalar_type: str = "FLOAT", **fields: Any) -> Any:
    """An EValue holding a contiguous tensor."""
    value = new(
        "Tensor",
        scalarType=getattr(table("ScalarType"), scalar_type),
        sizes=list(sizes),
        dimOrder=list(range(len(sizes))),
        **fields,
    )
    return new("EValue", valType=table("KernelTypes").Tensor, val=value)


def plan(name: str, values: Sequence[Any] = (), delegates: Sequence[Any] = ()) -> Any:
    """A method without instructions."""
    made = constant_plan(name, 0)
    made.values = list(values)
    made.outputs = list(range(len(values)))
    made.delegates = list(delegates)
    return made


def delegate(backend: str, location: str, index: int) -> Any:
    """A delegate whose data are at `index` of the segments or of the inline data."""
    return new(
        "BackendDelegate",
        id=backend,
        processed=new(
            "BackendDelegateDataReference",
            location=getattr(table("DataLocation"), location),
            index=index,
        ),
        compileSpecs=[],
    )


def write_by_hand(
    path: Path,
    plans: Sequence[Any],
    *,
    constants: Sequence[bytes] = (),
    delegates: Sequence[bytes | Extent] = (),
    named: Mapping[str, bytes] | None = None,
    inline: Sequence[bytes] = (),
    alignment: int = 128,
    version: int = 0,
) -> Path:
    """Write a .pte: segment 0 the constants (16-aligned), then delegates, then named data.

    `alignment` is that of the segments, in bytes.
    """
    blob_path = path.with_suffix(".blob")
    blob = bytearray()

    def extent(data: bytes | Extent) -> Extent:
        if isinstance(data, Extent):
            return data
        blob.extend(data)
        return Extent(blob_path, len(blob) - len(data), len(data))

    pieces: list[tuple[int, Extent]] = []
    end = 0
    for data in constants:
        place = -(-end // 16) * 16
        pieces.append((place, extent(data)))
        end = place + len(data)
    segments = [Segment(tuple(pieces), alignment)]
    segments += [Segment(((0, extent(data)),), alignment) for data in delegates]
    keys = []
    for key, data in (named or {}).items():
        keys.append(new("NamedData", key=key, segmentIndex=len(segments)))
        segments.append(Segment(((0, extent(data)),), alignment))
    blob_path.write_bytes(blob)
    program = new(
        "Program",
        version=version,
        executionPlan=list(plans),
        constantBuffer=[],
        backendDelegateData=[new("BackendDelegateInlineData", data=data) for data in inline],
        constantSegment=new(
            "SubsegmentOffsets", segmentIndex=0, offsets=[0, *(place for place, _ in pieces)]
        ),
        namedData=keys,
    )
    write_program(path, program, b"ET12", segments)
    blob_path.unlink()
    return path


@dataclass(frozen=True)
class Lowered:
    """Programs lowered with ExecuTorch, once for all tests of a run.

    Attributes:
        units: method name to a file with this method alone.
        unlinked: all methods and `CONSTANTS` in one build.
        undelegated: `text_decoder` without a delegate.
        inline: `twin` with its delegate's data in the head, not in a segment.
        inputs: method name to the inputs of successive calls.
    """

    units: dict[str, Path]
    unlinked: Path
    undelegated: Path
    inline: Path
    inputs: dict[str, list[tuple[Any, ...]]]


@cache
def lowered() -> Lowered:
    """Lower the programs; takes half a minute."""
    import torch
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
    from executorch.exir.passes import MemoryPlanningPass
    from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass

    class Linear(torch.nn.Module):
        """A linear, which XNNPACK takes, and a table in the .pte, which it leaves."""

        def __init__(self, linear: torch.nn.Linear, scale: torch.Tensor) -> None:
            super().__init__()
            self.linear = linear
            self.register_buffer("table", scale)

        def forward(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
            return self.linear(x).tanh() + torch.ops.aten.embedding(self.table, index)

    class Counter(torch.nn.Module):
        """A mutable buffer with an initial value."""

        def __init__(self, start: float) -> None:
            super().__init__()
            self.register_buffer("state", torch.full((1, 8), start))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.state.add_(x)
            return torch.sin(self.state)

    torch.manual_seed(0)
    shared = torch.nn.Linear(32, 16)
    scales = torch.randn(7, 16)
    rows = torch.export.Dim("rows", min=1, max=6)
    generator = torch.Generator().manual_seed(1)

    def random(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, generator=generator)

    index = torch.tensor([3])
    modules: dict[str, tuple[torch.nn.Module, tuple[Any, ...], Any]] = {
        # Not in the order of their names, which is that of the plans.
        "text_decoder": (Linear(shared, scales).eval(), (random(1, 32), index), None),
        "audio_encoder": (
            Linear(shared, torch.cat([scales, random(3, 16)])).eval(),
            (random(4, 32), index),
            {"x": {0: rows}, "index": None},
        ),
        "counter": (Counter(2.0), (random(1, 8),), None),
        "other_counter": (Counter(5.0), (random(1, 8),), None),
        "twin": (Linear(shared, scales).eval(), (random(1, 32), index), None),
    }
    exported = {
        name: torch.export.export(module, inputs, dynamic_shapes=shapes, strict=True)
        for name, (module, inputs, shapes) in modules.items()
    }
    folder = Path(tempfile.mkdtemp(prefix="pte-programs-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)

    def build(
        names: Sequence[str],
        path: Path,
        *,
        delegated: bool = True,
        segments: bool = True,
        constants: Any = None,
    ) -> Path:
        edge = to_edge_transform_and_lower(
            {name: exported[name] for name in names},
            partitioner=[XnnpackPartitioner()] if delegated else None,
            constant_methods=constants,
        )
        config = ExecutorchBackendConfig(
            extract_delegate_segments=segments,
            passes=[InitializedMutableBufferPass(["state"])],
            memory_planning_pass=MemoryPlanningPass(alloc_graph_input=True),
        )
        with path.open("wb") as output:
            edge.to_executorch(config).write_to_file(output)
        return path

    return Lowered(
        units={name: build([name], folder / f"{name}.pte") for name in modules},
        unlinked=build(list(modules), folder / "unlinked.pte", constants=CONSTANTS),
        undelegated=build(["text_decoder"], folder / "undelegated.pte", delegated=False),
        inline=build(["twin"], folder / "inline.pte", segments=False),
        inputs={
            "text_decoder": [(random(1, 32), index)],
            "twin": [(random(1, 32), index)],
            "audio_encoder": [(random(2, 32), index), (random(6, 32), torch.tensor([9]))],
            "counter": [(random(1, 8),), (random(1, 8),)],
            "other_counter": [(random(1, 8),), (random(1, 8),)],
        },
    )
