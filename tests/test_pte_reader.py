"""Reading .pte heads: what is refused, and that nothing heavy is loaded for it."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pte_programs import delegate, lowered, plan, tensor, write_by_hand
from voxtral_build.errors import PteError
from voxtral_build.pte.inspect import describe
from voxtral_build.pte.link import link
from voxtral_build.pte.program_file import HEADER, HEADER_AT, read
from voxtral_build.pte.program_writer import pack_program
from voxtral_build.pte.schema import new, unpack_program


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return write_by_hand(
        tmp_path / "good.pte",
        [plan("forward", [tensor([4], dataBufferIdx=1)], [delegate("Backend", "SEGMENT", 1)])],
        constants=[b"\1" * 16],
        delegates=[b"delegate"],
        named={"key": b"named"},
    )


def refused(path: Path) -> PteError:
    """The error for `path`, which must tell what, got and what to do."""
    with pytest.raises(PteError) as caught:
        read(path)
    error = caught.value
    assert str(path) in error.what
    assert error.got
    assert error.next_step
    return error


def test_reads_head_and_places(good: Path) -> None:
    file = read(good)
    data = good.read_bytes()
    assert file.file_size == len(data)
    assert file.identifier == b"ET12"
    assert file.segment_base % 128 == 0
    extents = [file.segment(index) for index in range(3)]
    assert [data[e.offset : e.offset + e.size] for e in extents] == [
        b"\1" * 16,
        b"delegate",
        b"named",
    ]
    with pytest.raises(PteError, match="segment is missing"):
        file.segment(3)


def test_missing(tmp_path: Path) -> None:
    assert "No such file" in str(refused(tmp_path / "absent.pte"))


def test_folder(tmp_path: Path) -> None:
    assert "directory" in str(refused(tmp_path))


def test_empty(tmp_path: Path) -> None:
    path = tmp_path / "empty.pte"
    path.touch()
    assert "it is empty" in str(refused(path))


@pytest.mark.parametrize("content", [b"PK\3\4 a zip archive", b"ET12", b"\0" * 100])
def test_other_content(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other.pte"
    path.write_bytes(content)
    refused(path)


def test_other_schema(good: Path) -> None:
    data = bytearray(good.read_bytes())
    data[4:8] = b"ET99"
    good.write_bytes(data)
    error = refused(good)
    assert error.got == "b'ET99'"
    assert error.allowed == "b'ET12'"


def test_cut_short_anywhere(good: Path) -> None:
    data = good.read_bytes()
    for size in range(len(data)):
        good.write_bytes(data[:size])
        refused(good)


@pytest.mark.parametrize(("field", "value"), [(1, 8), (2, 1 << 40), (3, 1 << 40), (4, 1 << 40)])
def test_header_that_lies(good: Path, field: int, value: int) -> None:
    data = bytearray(good.read_bytes())
    header = [*HEADER.unpack_from(data, HEADER_AT)]
    header[field] = value
    HEADER.pack_into(data, HEADER_AT, *header)
    good.write_bytes(data)
    refused(good)


def test_segment_beyond_the_end(good: Path) -> None:
    # A header without the size of all segments, as older writers made it: the segment's
    # own size has to give it away.
    data = bytearray(good.read_bytes())
    header = [*HEADER.unpack_from(data, HEADER_AT)]
    header[1] = HEADER.size - 8
    HEADER.pack_into(data, HEADER_AT, *header)
    good.write_bytes(data)
    read(good)
    good.write_bytes(data[:-1])
    assert "segment 2 ends at byte" in str(refused(good))


@pytest.mark.parametrize(
    "broken_plan",
    [
        plan("forward", [], [delegate("Backend", "SEGMENT", 9)]),
        plan("forward", [], [delegate("Backend", "INLINE", 0)]),
        new("ExecutionPlan", name="forward", values=[], inputs=[0], outputs=[]),
        new("ExecutionPlan", name="forward", inputs=[], outputs=[]),
    ],
)
def test_references_to_nothing(tmp_path: Path, broken_plan: object) -> None:
    refused(write_by_hand(tmp_path / "broken.pte", [broken_plan]))


def test_no_method(tmp_path: Path) -> None:
    assert "no method" in str(refused_without_got(write_by_hand(tmp_path / "none.pte", [])))


def refused_without_got(path: Path) -> PteError:
    with pytest.raises(PteError) as caught:
        read(path)
    return caught.value


def test_damaged_bytes_never_raise_anything_else(good: Path, tmp_path: Path) -> None:
    chance = random.Random(0)
    data = good.read_bytes()
    outcomes = {"read": 0, "refused": 0}
    for _ in range(600):
        damaged = bytearray(data)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        good.write_bytes(damaged)
        try:
            describe(good)
            link([good], tmp_path / "out.pte", {})
            outcomes["read"] += 1
        except PteError:
            outcomes["refused"] += 1
    assert all(outcomes.values())


def test_program_without_data_has_no_header(tmp_path: Path) -> None:
    path = write_by_hand(tmp_path / "bare.pte", [plan("forward")])
    assert path.read_bytes()[8:12] != b"eh00"
    file = read(path)
    assert file.head_size == file.file_size == file.segment_base


def test_round_trip(good: Path) -> None:
    packed = pack_program(read(good).program, b"ET12")
    assert pack_program(unpack_program(packed), b"ET12") == packed


def test_loads_neither_torch_nor_executorch(good: Path) -> None:
    code = """
import json, sys
from pathlib import Path
from voxtral_build.pte.inspect import describe
from voxtral_build.pte.link import link
path = Path(sys.argv[1])
link([path], path.with_name("linked.pte"), {"one": 1})
describe(path.with_name("linked.pte"))
print(json.dumps([name for name in sys.modules if name.split(".")[0] in ("torch", "executorch")]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(good)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[1],
    )
    assert json.loads(done.stdout) == []


@pytest.mark.lowering
def test_reads_what_executorch_writes_beside_it() -> None:
    from executorch.exir._serialize._program import deserialize_pte_binary

    for path in (*lowered().units.values(), lowered().unlinked):
        theirs = deserialize_pte_binary(path.read_bytes()).program
        ours = read(path).program
        assert [plan.name.decode() for plan in ours.executionPlan] == [
            plan.name for plan in theirs.execution_plan
        ]
        packed = pack_program(ours, b"ET12")
        assert pack_program(unpack_program(packed), b"ET12") == packed
