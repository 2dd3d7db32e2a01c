"""Descriptions of .pte files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.pte_programs import CONSTANTS, delegate, lowered, plan, tensor, write_by_hand
from voxtral_build.errors import PteError
from voxtral_build.pte.inspect import (
    SegmentTotal,
    ValueDescription,
    batched_matmuls,
    describe,
    render,
    undelegated_linears,
)
from voxtral_build.pte.link import link
from voxtral_build.pte.render import human_bytes
from voxtral_build.pte.schema import new, table


def with_kernels(name: str, *operators: str) -> Any:
    """A method that calls each of the operators once, in order."""
    made = plan(name, [tensor([3, 4], dataBufferIdx=1), tensor([2], scalar_type="BFLOAT16")])
    distinct = sorted(set(operators))
    made.operators = [
        new("Operator", name=item.partition(".")[0], overload=item.partition(".")[2])
        for item in distinct
    ]
    made.chains[0].instructions = [
        new(
            "Instruction",
            instrArgsType=table("InstructionArguments").KernelCall,
            instrArgs=new("KernelCall", opIndex=distinct.index(item), args=[]),
        )
        for item in operators
    ]
    made.inputs = [1]
    made.outputs = [0]
    made.nonConstBufferSizes = [0, 100, 28]
    return made


@pytest.fixture
def by_hand(tmp_path: Path) -> Path:
    return write_by_hand(
        tmp_path / "model.pte",
        [
            with_kernels(
                "decode",
                "aten::linear.out",
                "aten::mm.out",
                "aten::addmm.out",
                "aten::bmm.out",
                "aten::linear.out",
                "aten::upsample_bilinear2d.vec_out",
                "quantized_decomposed::mixed_linear.out",
                "aten::sym_size",
            )
        ],
        constants=[b"\0" * 48],
        delegates=[b"not referred to"],
        named={"a": b"1", "b": b"22"},
    )


def test_method(by_hand: Path) -> None:
    description = describe(by_hand)
    method = description.methods["decode"]
    assert method.inputs == (ValueDescription("tensor", "bfloat16", (2,), "static"),)
    assert method.outputs == (ValueDescription("tensor", "float32", (3, 4), "static"),)
    assert method.operators["aten::linear.out"] == 2
    assert method.operators["aten::sym_size"] == 1
    assert method.instructions == 8
    assert method.arena_bytes == (100, 28)
    assert method.planned_bytes == 128
    assert method.constant_bytes == 48
    assert undelegated_linears(method) == 5
    assert batched_matmuls(method) == 1


def test_segments(by_hand: Path) -> None:
    description = describe(by_hand)
    assert description.file_bytes == by_hand.stat().st_size
    assert description.named_data_keys == 2
    assert description.segments == {
        "constant": SegmentTotal(1, 48),
        "unused": SegmentTotal(1, 15),
        "named": SegmentTotal(2, 3),
    }


def test_json(by_hand: Path) -> None:
    description = describe(by_hand)
    assert (
        json.loads(json.dumps(description.as_dict()))["methods"]["decode"]["planned_bytes"] == 128
    )


def test_constants_and_other_kinds(tmp_path: Path) -> None:
    kinds = table("KernelTypes")
    text = new("EValue", valType=kinds.String, val=new("String", stringVal="hello"))
    number = new("EValue", valType=kinds.Int, val=new("Int", intVal=3))
    several = plan("several", [text, number])
    takes_int = plan("takes_int", [number, tensor([1])])
    takes_int.inputs, takes_int.outputs = [0], [1]
    path = write_by_hand(tmp_path / "a.pte", [several, takes_int])
    description = describe(path)
    assert description.constant_methods == {"several": ["hello", 3]}
    assert description.methods["takes_int"].inputs == (ValueDescription("Int"),)


def test_unknown_dtype(tmp_path: Path) -> None:
    value = tensor([2], dataBufferIdx=1)
    value.val.scalarType = 99
    path = write_by_hand(tmp_path / "a.pte", [plan("a", [value])], constants=[b"x" * 8])
    with pytest.raises(PteError, match="UNKNOWN_99"):
        describe(path)
    with pytest.raises(PteError, match="UNKNOWN_99"):
        link([path], tmp_path / "out.pte", {})


def test_render(by_hand: Path) -> None:
    shown = render(describe(by_hand))
    for part in ("method decode", "float32 [3, 4]", "aten::linear.out x 2", "128 B", "2 keys"):
        assert part in shown
    assert max(len(line) for line in shown.splitlines() if "operators" not in line) < 80


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (5 << 30, "5.0 GiB"),
        (5 << 50, "5120.0 TiB"),
    ],
)
def test_human_bytes(size: int, shown: str) -> None:
    assert human_bytes(size) == shown


@pytest.mark.lowering
def test_lowered_program() -> None:
    description = describe(lowered().unlinked)
    assert dict(description.constant_methods) == CONSTANTS
    assert set(description.methods) == set(lowered().units)
    encoder = description.methods["audio_encoder"]
    assert encoder.inputs[0] == ValueDescription("tensor", "float32", (6, 32), "dynamic_bound")
    assert encoder.inputs[1] == ValueDescription("tensor", "int64", (1,), "static")
    assert encoder.delegates == {"XnnpackBackend": 1}
    assert encoder.delegate_calls == 1
    assert encoder.operators == {"aten::embedding.out": 1}
    assert encoder.constant_bytes == 10 * 16 * 4
    assert encoder.planned_bytes > 0
    assert undelegated_linears(encoder) == 0
    assert description.methods["counter"].mutable_bytes == 8 * 4
    assert description.named_data_keys == 2
    assert description.segments["delegate"].count == 3


@pytest.mark.lowering
def test_undelegated_linear_is_seen() -> None:
    (method,) = describe(lowered().undelegated).methods.values()
    assert method.delegates == {}
    assert undelegated_linears(method) == 1


def test_delegates_are_counted(tmp_path: Path) -> None:
    delegates = [delegate(name, "SEGMENT", 1) for name in ("A", "B", "A")]
    path = write_by_hand(tmp_path / "a.pte", [plan("a", [], delegates)], delegates=[b"x"])
    assert describe(path).methods["a"].delegates == {"A": 2, "B": 1}
