"""State and data of the methods of .pte files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.pte_programs import delegate, plan, tensor, write_by_hand
from voxtral_build.errors import PteError
from voxtral_build.pte.memory import MethodMemory, StateTensor, methods_memory
from voxtral_build.pte.schema import new, table


def planned(sizes: list[int], **fields: Any) -> Any:
    return tensor(sizes, allocationInfo=new("AllocationDetails", memoryId=1), **fields)


def call(operator: int, *arguments: int) -> Any:
    return new(
        "Instruction",
        instrArgsType=table("InstructionArguments").KernelCall,
        instrArgs=new("KernelCall", opIndex=operator, args=list(arguments)),
    )


@pytest.fixture
def step() -> Any:
    """A method with a cache that is written twice, a convolution's state, and scratch."""
    values = [
        tensor([1, 4, 2, 8]),  # an input: no memory is planned for it
        planned([1, 16, 2, 8]),
        planned([1, 128, 2], scalar_type="BFLOAT16"),
        planned([5, 100]),
        planned([1, 128, 2], scalar_type="BFLOAT16"),
        tensor([1000], dataBufferIdx=1),  # a constant
    ]
    made = plan("step", values, [delegate("X", "SEGMENT", 1), delegate("X", "INLINE", 0)])
    made.operators = [
        new("Operator", name="llama::update_cache_with_indices", overload="out"),
        new("Operator", name="aten::copy_", overload=""),
        new("Operator", name="aten::_to_copy", overload="out"),
    ]
    made.chains[0].instructions = [
        call(0, 0, 1, 3, 3),
        call(2, 0, 3),
        call(1, 2, 4, 2),
        call(0, 0, 1, 3, 3),
    ]
    return made


def test_state_and_data(tmp_path: Path, step: Any) -> None:
    other = plan("other", [tensor([1])], [delegate("X", "SEGMENT", 2)])
    other.inputs = [0]
    path = write_by_hand(
        tmp_path / "model.pte",
        [step, other],
        constants=[b"\0" * 4000],
        delegates=[b"head, key of mine, tail", b"shared key and nothing else"],
        inline=[b"shared key"],
        named={"key of mine": b"1" * 10, "shared key": b"2" * 200, "nobody's": b"3"},
    )
    cache, conv = StateTensor((1, 16, 2, 8), 1024), StateTensor((1, 128, 2), 512)
    assert methods_memory(path) == {
        "step": MethodMemory((cache, conv), 2000, 210, 23 + 10, 4000),
        "other": MethodMemory((), 0, 200, 27, 0),
    }


def test_data_that_are_named_nowhere(tmp_path: Path, step: Any) -> None:
    path = write_by_hand(
        tmp_path / "a.pte", [step], constants=[b"\0" * 4000], delegates=[b"12345"], inline=[b"1"]
    )
    memory = methods_memory(path)["step"]
    assert (memory.named_bytes, memory.delegate_bytes) == (0, 6)


def test_what_cannot_be_measured(tmp_path: Path, step: Any) -> None:
    step.values[3].val.scalarType = 99
    path = write_by_hand(
        tmp_path / "a.pte", [step], constants=[b"\0" * 4000], delegates=[b"1"], inline=[b"1"]
    )
    with pytest.raises(PteError, match="UNKNOWN_99"):
        methods_memory(path)
