"""Linking: methods, data and alignment of the result, and that it runs as an unlinked build."""

from __future__ import annotations

import hashlib
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.pte_programs import CONSTANTS, delegate, lowered, plan, tensor, write_by_hand
from voxtral_build.errors import PteError
from voxtral_build.pte.data_file import DataEntry, DataFile, join_data
from voxtral_build.pte.extents import Extent
from voxtral_build.pte.flat_tensor import TensorLayout
from voxtral_build.pte.inspect import describe
from voxtral_build.pte.link import link
from voxtral_build.pte.program_file import ProgramFile, offsets, read, tensors
from voxtral_build.pte.program_writer import pack_program
from voxtral_build.pte.schema import new, table


def content(extent: Extent) -> bytes:
    return b"".join(bytes(chunk) for chunk in extent.chunks())


def linked(tmp_path: Path, units: Sequence[Path], **constants: Any) -> ProgramFile:
    output = tmp_path / "linked.pte"
    link(units, output, constants)
    return read(output)


def constant_bytes(file: ProgramFile, method: int, size: int) -> list[bytes]:
    """The first `size` bytes of each constant of a method."""
    segment = file.segment(file.program.constantSegment.segmentIndex)
    places = offsets(file.program.constantSegment)
    return [
        content(Extent(file.path, segment.offset + places[value.dataBufferIdx], size))
        for value in tensors(file.program.executionPlan[method])
        if value.dataBufferIdx
    ]


def delegate_bytes(file: ProgramFile) -> list[bytes]:
    """The data of every delegate, in the order of the plans."""
    found = []
    for method in file.program.executionPlan:
        for item in method.delegates:
            if item.processed.location == table("DataLocation").SEGMENT:
                found.append(content(file.segment(item.processed.index)))
            else:
                found.append(bytes(file.program.backendDelegateData[item.processed.index].data))
    return found


def test_methods_by_name_then_constants(tmp_path: Path) -> None:
    units = [write_by_hand(tmp_path / f"{name}.pte", [plan(name)]) for name in ("b", "c", "a")]
    file = linked(tmp_path, units, z=1, y=True)
    assert [p.name for p in file.program.executionPlan] == [b"a", b"b", b"c", b"z", b"y"]
    again = tmp_path / "again.pte"
    link(units[::-1], again, {"z": 1, "y": True})
    assert again.read_bytes() == file.path.read_bytes()


def test_constant_methods_of_units_are_kept(tmp_path: Path) -> None:
    unit = write_by_hand(tmp_path / "a.pte", [plan("z", [tensor([2])])])
    first = linked(tmp_path, [unit], inner=7)
    moved = first.path.rename(tmp_path / "first.pte")
    linked(tmp_path, [moved], outer=2.5)
    description = describe(tmp_path / "linked.pte")
    assert list(description.methods) == ["z"]
    assert description.constant_methods == {"inner": 7, "outer": 2.5}


def test_constants_are_renumbered_and_shared(tmp_path: Path) -> None:
    one, two, three = (bytes([n]) * 20 for n in (1, 2, 3))
    a = write_by_hand(
        tmp_path / "a.pte",
        [plan("a", [tensor([5], dataBufferIdx=i) for i in (2, 1)] + [tensor([5])])],
        constants=[one, two],
    )
    b = write_by_hand(
        tmp_path / "b.pte",
        [plan("b", [tensor([5], dataBufferIdx=i) for i in (1, 2)])],
        constants=[three, one],
    )
    file = linked(tmp_path, [a, b])
    assert constant_bytes(file, 0, 20) == [two, one]
    assert constant_bytes(file, 1, 20) == [three, one]
    places = offsets(file.program.constantSegment)
    assert len(places) == 4
    assert all(place % 16 == 0 for place in places)


def test_unused_and_external_tensors_keep_their_index(tmp_path: Path) -> None:
    external = new(
        "ExtraTensorInfo",
        fullyQualifiedName="weights.0",
        location=table("TensorDataLocation").EXTERNAL,
    )
    units = [
        write_by_hand(
            tmp_path / f"{name}.pte",
            [
                plan(
                    name,
                    [tensor([5], dataBufferIdx=3, extraTensorInfo=external), tensor([5])],
                )
            ],
            constants=[name.encode() * 20],
        )
        for name in "ab"
    ]
    weights = DataEntry(Extent(units[0], 0, 20), 128, TensorLayout(6, (5,), (0,)))
    data = tmp_path / "both.ptd"
    join_data([DataFile(data, {"weights.0": weights})], data)
    output = tmp_path / "linked.pte"
    link(units, output, {}, dict.fromkeys(units, data))
    file = read(output)
    for method in file.program.executionPlan:
        kept, unused = tensors(method)
        assert kept.dataBufferIdx == 3
        assert kept.extraTensorInfo.fullyQualifiedName == b"weights.0"
        assert unused.dataBufferIdx == 0
    assert offsets(file.program.constantSegment) == [0]


def test_a_last_segment_that_is_empty(tmp_path: Path) -> None:
    unit = write_by_hand(tmp_path / "a.pte", [plan("a")], named={"data": b"1", "nothing": b""})
    file = linked(tmp_path, [unit])
    assert [file.segment(index).size for index in range(3)] == [0, 1, 0]


def test_equal_delegates_are_stored_once(tmp_path: Path) -> None:
    units = [
        write_by_hand(
            tmp_path / f"{name}.pte",
            [plan(name, [], [delegate("X", "SEGMENT", 1), delegate("X", "SEGMENT", 2)])],
            delegates=[b"the same in both", name.encode() * 16],
        )
        for name in "ab"
    ]
    file = linked(tmp_path, units)
    assert delegate_bytes(file) == [b"the same in both", b"a" * 16, b"the same in both", b"b" * 16]
    assert len(file.program.segments) == 4  # the constant segment and three blobs


def test_inline_delegates(tmp_path: Path) -> None:
    units = [
        write_by_hand(
            tmp_path / f"{name}.pte",
            [plan(name, [], [delegate("X", "INLINE", 1)])],
            inline=[b"unused", name.encode() * 33],
            named={name: b"data, so that there is a header"},
        )
        for name in "ab"
    ]
    file = linked(tmp_path, units)
    assert delegate_bytes(file) == [b"a" * 33, b"b" * 33]
    raw = file.path.read_bytes()
    assert all(raw.index(name * 33) % 128 == 0 for name in (b"a", b"b"))


def test_named_data_merge(tmp_path: Path) -> None:
    shared = b"weights " * 20
    a = write_by_hand(tmp_path / "a.pte", [plan("a")], named={"w": shared, "only a": b"A"})
    b = write_by_hand(tmp_path / "b.pte", [plan("b")], named={"w": shared, "alias": shared})
    file = linked(tmp_path, [b, a])
    named = {item.key: content(file.segment(item.segmentIndex)) for item in file.program.namedData}
    assert named == {b"w": shared, b"only a": b"A", b"alias": shared}
    assert file.path.read_bytes().count(shared) == 1


def test_named_data_that_differ(tmp_path: Path) -> None:
    units = [
        write_by_hand(
            tmp_path / f"{name}.pte", [plan(name)], named={"the.key": name.encode() * 100}
        )
        for name in "ab"
    ]
    output = tmp_path / "out.pte"
    output.write_bytes(b"as it was")
    with pytest.raises(PteError, match=r"the\.key") as caught:
        link(units, output, {})
    assert all(str(unit) in str(caught.value) for unit in units)
    assert output.read_bytes() == b"as it was"
    assert not list(tmp_path.glob(".*"))


def test_strict_alignment_is_kept(tmp_path: Path) -> None:
    a = write_by_hand(tmp_path / "a.pte", [plan("a")], named={"a1": b"1" * 5, "a2": b"2" * 5})
    b = write_by_hand(
        tmp_path / "b.pte",
        [plan("b")],
        named={"b1": b"3" * 5, "b2": b"4" * 5},
        constants=[b"5"],
        alignment=1024,
    )
    file = linked(tmp_path, [a, b])
    places = {
        item.key: file.program.segments[item.segmentIndex].offset for item in file.program.namedData
    }
    assert all(place % 128 == 0 for place in places.values())
    assert places[b"b1"] % 1024 == places[b"b2"] % 1024 == 0


def test_duplicate_methods(tmp_path: Path) -> None:
    units = [write_by_hand(tmp_path / f"{n}.pte", [plan("forward")]) for n in "ab"]
    with pytest.raises(PteError, match="'forward'") as caught:
        link(units, tmp_path / "out.pte", {})
    assert all(str(unit) in str(caught.value) for unit in units)
    with pytest.raises(PteError, match="'forward'"):
        link(units[:1], tmp_path / "out.pte", {"forward": 1})


def test_nothing_to_link(tmp_path: Path) -> None:
    with pytest.raises(PteError, match="nothing to link"):
        link([], tmp_path / "out.pte", {"one": 1})


def test_other_schema_version(tmp_path: Path) -> None:
    units = [write_by_hand(tmp_path / f"{v}.pte", [plan(f"method{v}")], version=v) for v in (0, 1)]
    with pytest.raises(PteError, match="different ExecuTorch schemas"):
        link(units, tmp_path / "out.pte", {})


@pytest.mark.parametrize("value", [1 << 63, "text", None, [1]])
def test_constants_that_cannot_be_stored(tmp_path: Path, value: Any) -> None:
    unit = write_by_hand(tmp_path / "a.pte", [plan("a")])
    with pytest.raises(PteError, match="'bad'"):
        link([unit], tmp_path / "out.pte", {"bad": value})


def test_tensor_past_its_segment(tmp_path: Path) -> None:
    unit = write_by_hand(
        tmp_path / "a.pte", [plan("a", [tensor([6], dataBufferIdx=1)])], constants=[b"x" * 20]
    )
    with pytest.raises(PteError, match="past the end of the constant data"):
        link([unit], tmp_path / "out.pte", {})


def test_memory_does_not_grow_with_the_data(tmp_path: Path) -> None:
    size = 96 << 20
    units = []
    for name in "ab":
        sparse = tmp_path / f"{name}.bin"
        with sparse.open("wb") as file:
            file.truncate(size - 1)
            file.seek(size - 1)
            file.write(name.encode())  # alike but for the last byte: both must be read
        method = plan(name, [], [delegate("X", "SEGMENT", 1)])
        units.append(
            write_by_hand(tmp_path / f"{name}.pte", [method], delegates=[Extent(sparse, 0, size)])
        )
    output = tmp_path / "out.pte"
    tracemalloc.start()
    try:
        link(units, output, {})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20
    file = read(output)
    digests = [
        file.segment(method.delegates[0].processed.index).sha256()
        for method in file.program.executionPlan
    ]
    assert digests == [
        hashlib.sha256((tmp_path / f"{name}.bin").read_bytes()).digest() for name in "ab"
    ]


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("linked") / "model.pte"
    link(list(lowered().units.values()), output, CONSTANTS)
    return output


@pytest.mark.lowering
def test_runs_as_the_unlinked_build(joined: Path) -> None:
    import executorch.kernels.quantized  # noqa: F401 - registers kernels
    import torch
    from executorch.runtime import Runtime, Verification

    runtime = Runtime.get()
    programs = [
        runtime.load_program(path, verification=Verification.InternalConsistency)
        for path in (lowered().unlinked, joined)
    ]
    assert programs[0].method_names == programs[1].method_names
    for name, calls in lowered().inputs.items():
        methods = [program.load_method(name) for program in programs]
        # Several calls: the counters go on from the initial values of their buffers.
        for inputs in calls:
            want, got = (method.execute(inputs) for method in methods)
            assert len(want) == len(got) == 1
            assert want[0].shape == got[0].shape
            assert want[0].dtype == got[0].dtype
            assert torch.equal(want[0], got[0])
            assert torch.count_nonzero(got[0])
    for name, value in CONSTANTS.items():
        for program in programs:
            (returned,) = program.load_method(name).execute([])
            assert type(returned) is type(value)
            assert returned == value


@pytest.mark.lowering
def test_same_head_as_the_unlinked_build(joined: Path) -> None:
    ours, theirs = read(joined), read(lowered().unlinked)
    assert [s.size for s in ours.program.segments] == [s.size for s in theirs.program.segments]
    for index in range(len(ours.program.segments)):
        assert content(ours.segment(index)) == content(theirs.segment(index))
    # Segments may lie further apart in the linked file; all else is alike to the byte.
    ours.program.segments = theirs.program.segments
    assert pack_program(ours.program, b"ET12") == pack_program(theirs.program, b"ET12")


@pytest.mark.lowering
def test_no_larger_than_padding(joined: Path) -> None:
    padding = 1024 * len(read(joined).program.segments)
    assert joined.stat().st_size <= lowered().unlinked.stat().st_size + padding


@pytest.mark.lowering
def test_same_bytes_again(joined: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.pte"
    link(list(reversed(lowered().units.values())), again, CONSTANTS)
    assert again.read_bytes() == joined.read_bytes()


@pytest.mark.lowering
def test_inline_delegate_runs(tmp_path: Path) -> None:
    import executorch.kernels.quantized  # noqa: F401 - registers kernels
    import torch
    from executorch.runtime import Runtime, Verification

    assert read(lowered().inline).program.backendDelegateData
    output = tmp_path / "model.pte"
    link([lowered().inline, lowered().units["text_decoder"]], output, {})
    program = Runtime.get().load_program(output, verification=Verification.InternalConsistency)
    (call,) = lowered().inputs["twin"]
    inline, in_segment = (
        program.load_method(name).execute(call)[0] for name in ("twin", "text_decoder")
    )
    assert torch.equal(inline, in_segment)
