"""Data files: read and written against ExecuTorch's own serializer, joined, linked and run."""

from __future__ import annotations

import random
import shutil
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.pte_programs import plan, tensor, write_by_hand
from voxtral_build.errors import BuildError, PteError
from voxtral_build.pte.data_file import (
    HEADER,
    DataEntry,
    DataFile,
    join_data,
    read_data,
)
from voxtral_build.pte.extents import Extent
from voxtral_build.pte.flat_tensor import TensorLayout
from voxtral_build.pte.link import link
from voxtral_build.pte.memory import methods_memory
from voxtral_build.pte.program_file import read, tensors
from voxtral_build.pte.schema import new, table
from voxtral_build.verify import verify

# Data of a delegate; or what a tensor is, and its data.
Content = bytes | tuple[TensorLayout, bytes]


def write_theirs(path: Path, content: Mapping[str, Content], alignment: int = 128) -> Path:
    """Write a .ptd with ExecuTorch's serializer."""
    from executorch.exir._serialize.data_serializer import DataEntry, DataPayload
    from executorch.exir.scalar_type import ScalarType
    from executorch.exir.tensor_layout import TensorLayout as TheirLayout
    from executorch.extension.flat_tensor.serialize.serialize import (
        FlatTensorConfig,
        FlatTensorSerializer,
    )

    buffers: list[bytes] = []
    entries = {}
    for key, item in content.items():
        own, data = item if isinstance(item, tuple) else (None, item)
        if data not in buffers:
            buffers.append(data)
        layout = own and TheirLayout(
            ScalarType(own.scalar_type), list(own.sizes), list(own.dim_order)
        )
        entries[key] = DataEntry(buffers.index(data), 1, layout)
    serializer = FlatTensorSerializer(FlatTensorConfig(alignment))
    path.write_bytes(bytes(serializer.serialize(DataPayload(buffers, entries))))
    return path


def read_theirs(path: Path) -> tuple[dict[str, Content], int]:
    """What ExecuTorch's serializer reads, and how many segments there are."""
    from executorch.extension.flat_tensor.serialize.serialize import FlatTensorSerializer

    payload = FlatTensorSerializer().deserialize(path.read_bytes())
    content: dict[str, Content] = {}
    for key, entry in payload.named_data.items():
        data = bytes(payload.buffers[entry.buffer_index])
        theirs = entry.tensor_layout
        content[key] = data
        if theirs is not None:
            layout = TensorLayout(
                int(theirs.scalar_type), tuple(theirs.sizes), tuple(theirs.dim_order)
            )
            content[key] = layout, data
    return content, len(payload.buffers)


def content_of(file: DataFile) -> dict[str, Content]:
    found: dict[str, Content] = {}
    for key, entry in file.entries.items():
        data = b"".join(bytes(chunk) for chunk in entry.extent.chunks())
        found[key] = data if entry.layout is None else (entry.layout, data)
    return found


NORM = TensorLayout(6, (3, 2), (1, 0)), bytes(range(24))  # 6: float32
CONTENT: dict[str, Content] = {
    "decoder.norm.weight": NORM,
    "cuda_fqn_weight:cuda:ümlaut": b"of a delegate",
    "alias": b"of a delegate",
    "scalar": (TensorLayout(0, (), ()), b"1"),
    "nothing": b"",
}
OTHERS: dict[str, Content] = {"decoder.norm.weight": NORM, "b": b"B" * 300}


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two files that ExecuTorch wrote; one name and its data are in both."""
    folder = tmp_path_factory.mktemp("theirs")
    return write_theirs(folder / "a.ptd", CONTENT), write_theirs(folder / "b.ptd", OTHERS, 1024)


@pytest.fixture
def good(theirs: tuple[Path, Path], tmp_path: Path) -> Path:
    return Path(shutil.copy(theirs[0], tmp_path / "good.ptd"))


def refused(path: Path) -> PteError:
    """The error for `path`, which must tell what, got and what to do."""
    with pytest.raises(PteError) as caught:
        read_data(path)
    error = caught.value
    assert str(path) in error.what
    assert error.got
    assert error.next_step
    return error


# --- reading ---


def test_reads_what_executorch_writes(theirs: tuple[Path, Path]) -> None:
    first, second = (read_data(path) for path in theirs)
    assert content_of(first) == CONTENT
    assert list(first.entries) == list(CONTENT)
    assert content_of(second) == OTHERS
    assert second.entries["b"].alignment >= 1024
    assert second.base_alignment >= 1024


def test_missing_or_a_folder(tmp_path: Path) -> None:
    assert "No such file" in str(refused(tmp_path / "absent.ptd"))
    assert "directory" in str(refused(tmp_path))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is empty"),
        (b"FT", "it is cut short"),
        (b"version https://git-lfs.github.com/spec/v1\n", "do not name"),
        (b"\0" * 100, "do not name"),
        (b"\0\0\0\0FT01" + b"\0" * 60, "it has no header"),
    ],
)
def test_other_content(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "other.ptd"
    path.write_bytes(content)
    assert reason in str(refused(path))


def test_a_program_is_no_data_file(tmp_path: Path) -> None:
    error = refused(write_by_hand(tmp_path / "a.pte", [plan("a")], named={"k": b"data"}))
    assert error.got == "b'ET12'"
    assert error.allowed == "b'FT01'"


def test_cut_short_anywhere(good: Path) -> None:
    data = good.read_bytes()
    for size in range(len(data)):
        good.write_bytes(data[:size])
        refused(good)


@pytest.mark.parametrize(
    ("field", "value"), [(1, 8), (2, 1 << 40), (3, 1 << 40), (4, 1 << 40), (4, 0), (5, 1 << 40)]
)
def test_header_that_lies(good: Path, field: int, value: int) -> None:
    data = bytearray(good.read_bytes())
    header = [*HEADER.unpack_from(data, 8)]
    header[field] = value
    HEADER.pack_into(data, 8, *header)
    good.write_bytes(data)
    refused(good)


def test_a_newer_version(theirs: tuple[Path, Path], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("voxtral_build.pte.data_file.VERSION", 1)
    path = tmp_path / "newer.ptd"
    join_data([read_data(theirs[0])], path)
    assert len(read_data(path).entries) == len(CONTENT)
    monkeypatch.undo()
    error = refused(path)
    assert (error.got, error.allowed) == ("1", "up to 0")


@pytest.mark.parametrize(
    "layout",
    [TensorLayout(6, (7,), (0,)), TensorLayout(99, (1,), (0,)), TensorLayout(6, (2, 2), (0,))],
)
def test_data_that_are_not_their_tensor(
    theirs: tuple[Path, Path], tmp_path: Path, layout: TensorLayout
) -> None:
    entry = read_data(theirs[0]).entries["decoder.norm.weight"]  # 24 bytes
    path = tmp_path / "wrong.ptd"
    join_data([DataFile(path, {"w": DataEntry(entry.extent, 128, layout)})], path)
    assert "'w'" in str(refused(path))


def test_damaged_bytes_never_raise_anything_else(good: Path, tmp_path: Path) -> None:
    chance = random.Random(0)
    data = good.read_bytes()
    head = read_data(good).entries["decoder.norm.weight"].extent.offset
    outcomes = {"read": 0, "refused": 0}
    for _ in range(1000):
        damaged = bytearray(data)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(head)] = chance.randrange(256)
        good.write_bytes(damaged)
        try:
            join_data([read_data(good)], tmp_path / "out.ptd")
            outcomes["read"] += 1
        except PteError:
            outcomes["refused"] += 1
    assert all(outcomes.values())


# --- joining ---


def test_executorch_reads_what_was_joined(theirs: tuple[Path, Path], tmp_path: Path) -> None:
    path = tmp_path / "joined.ptd"
    join_data([read_data(file) for file in theirs], path)
    content, segments = read_theirs(path)
    assert content == CONTENT | OTHERS
    assert list(content) == [*CONTENT, "b"]
    assert segments == 5  # two names of one content, and a name in both files
    assert content_of(read_data(path)) == content


def test_alignment_is_kept(theirs: tuple[Path, Path], tmp_path: Path) -> None:
    path = tmp_path / "joined.ptd"
    join_data([read_data(file) for file in theirs], path)
    data = path.read_bytes()
    assert data.index(b"B" * 300) % 1024 == 0
    assert data.index(b"of a delegate") % 128 == 0


def test_same_bytes_again(theirs: tuple[Path, Path], tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("one", "two", "three")]
    for path in paths[:2]:
        join_data([read_data(file) for file in theirs], path)
    join_data([read_data(paths[0])], paths[2])
    assert paths[0].read_bytes() == paths[1].read_bytes() == paths[2].read_bytes()


@pytest.mark.parametrize(
    "other", [(NORM[0], b"\1" * 24), (TensorLayout(6, (2, 3), (1, 0)), NORM[1]), NORM[1], b"B"]
)
def test_a_name_that_stands_for_two_contents(
    theirs: tuple[Path, Path], tmp_path: Path, other: Content
) -> None:
    path = write_theirs(tmp_path / "other.ptd", {"decoder.norm.weight": other})
    output = tmp_path / "joined.ptd"
    output.write_bytes(b"as it was")
    with pytest.raises(PteError, match=r"decoder\.norm\.weight") as caught:
        join_data([read_data(theirs[0]), read_data(path)], output)
    assert all(str(file) in str(caught.value) for file in (theirs[0], path))
    assert output.read_bytes() == b"as it was"
    assert not list(tmp_path.glob(".*"))


def test_nothing_to_join(tmp_path: Path) -> None:
    path = tmp_path / "empty.ptd"
    join_data([], path)
    assert read_theirs(path) == ({}, 0)
    assert read_data(path).entries == {}


def test_memory_does_not_grow_with_the_data(tmp_path: Path) -> None:
    size = 96 << 20
    files = []
    for name in "ab":
        sparse = tmp_path / f"{name}.bin"
        with sparse.open("wb") as file:
            file.truncate(size - 1)
            file.seek(size - 1)
            file.write(name.encode())  # alike but for the last byte: both must be read
        files.append(DataFile(sparse, {name: DataEntry(Extent(sparse, 0, size), 128, None)}))
    tracemalloc.start()
    try:
        join_data(files, tmp_path / "out.ptd")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20
    joined = read_data(tmp_path / "out.ptd")
    assert [entry.extent.sha256() for entry in joined.entries.values()] == [
        Extent(tmp_path / f"{name}.bin", 0, size).sha256() for name in "ab"
    ]


# --- linking ---


MATRIX = TensorLayout(6, (2, 3), (0, 1))


def outside(name: str) -> Any:
    """A float32 tensor of (2, 3), whose data are outside."""
    info = new(
        "ExtraTensorInfo",
        fullyQualifiedName=name,
        location=table("TensorDataLocation").EXTERNAL,
    )
    return tensor([2, 3], extraTensorInfo=info)


def unit(folder: Path, method: str, names: Mapping[str, bytes], **kwargs: Any) -> Path:
    """A unit whose tensors of (2, 3) are all outside, and its data file."""
    path = write_by_hand(folder / f"{method}.pte", [plan(method, [*map(outside, names)])], **kwargs)
    entries = {}
    for index, (name, data) in enumerate(names.items()):
        blob = folder / f"{method}{index}.bin"
        blob.write_bytes(data)
        entries[name] = DataEntry(Extent(blob, 0, len(data)), 128, MATRIX)
    data_path = path.with_suffix(".ptd")
    join_data([DataFile(data_path, entries)], data_path)
    return path


def with_data(*units: Path) -> dict[Path, Path]:
    return {path: path.with_suffix(".ptd") for path in units}


ONE, TWO, THREE = (bytes([n]) * 24 for n in (1, 2, 3))


def test_names_that_are_local_to_a_unit(tmp_path: Path) -> None:
    a = unit(tmp_path, "a", {"w": ONE, "_prop_tensor_constant0": TWO})
    b = unit(tmp_path, "b", {"w": ONE, "_prop_tensor_constant0": THREE})
    output = tmp_path / "model.pte"
    link([b, a], output, {}, with_data(a, b))
    found = content_of(read_data(output.with_suffix(".ptd")))
    assert found == {
        "w": (MATRIX, ONE),
        "a._prop_tensor_constant0": (MATRIX, TWO),
        "b._prop_tensor_constant0": (MATRIX, THREE),
    }
    names = [
        [value.extraTensorInfo.fullyQualifiedName.decode() for value in tensors(method)]
        for method in read(output).program.executionPlan
    ]
    assert names == [["w", "a._prop_tensor_constant0"], ["w", "b._prop_tensor_constant0"]]
    again = tmp_path / "again.pte"
    link([a, b], again, {}, with_data(b, a))
    for suffix in (".pte", ".ptd"):
        assert again.with_suffix(suffix).read_bytes() == output.with_suffix(suffix).read_bytes()


def test_a_name_of_the_model_with_two_contents(tmp_path: Path) -> None:
    a, b = unit(tmp_path, "a", {"w": ONE}), unit(tmp_path, "b", {"w": TWO})
    with pytest.raises(PteError, match="'w'") as caught:
        link([a, b], tmp_path / "model.pte", {}, with_data(a, b))
    assert all(str(path) in str(caught.value) for path in with_data(a, b).values())
    assert not list(tmp_path.glob("*model*"))


def test_a_unit_without_its_data(tmp_path: Path) -> None:
    a, b = unit(tmp_path, "a", {"w": ONE}), unit(tmp_path, "b", {"v": TWO})
    for data in ({}, with_data(b), {a: b.with_suffix(".ptd"), **with_data(b)}):
        with pytest.raises(PteError) as caught:
            link([a, b], tmp_path / "model.pte", {}, data)
        assert "w of a: missing" in str(caught.value)
        assert str(a) in caught.value.what


def test_data_of_another_shape(tmp_path: Path) -> None:
    a = unit(tmp_path, "a", {"w": ONE})
    entry = read_data(a.with_suffix(".ptd")).entries["w"]
    other = tmp_path / "other.ptd"
    wrong = DataEntry(entry.extent, 128, TensorLayout(6, (3, 2), (0, 1)))
    join_data([DataFile(other, {"w": wrong})], other)
    with pytest.raises(PteError, match=r"w of a: .*3, 2.* not .*2, 3"):
        link([a], tmp_path / "model.pte", {}, {a: other})


def test_a_name_inside_and_outside(tmp_path: Path) -> None:
    a, b = unit(tmp_path, "a", {"w": ONE}), unit(tmp_path, "b", {}, named={"w": ONE})
    with pytest.raises(PteError, match="'w' are in a program and in a data file"):
        link([a, b], tmp_path / "model.pte", {}, with_data(a))


def test_memory_counts_what_is_outside(tmp_path: Path) -> None:
    a = unit(tmp_path, "a", {"w": ONE, "v": TWO})
    assert methods_memory(a, a.with_suffix(".ptd"))["a"].data_bytes == 48


# --- real units ---


def outside_backend(backend: Any) -> Any:
    """The same backend, with the weights of kernels and of delegates outside."""

    class Outside(type(backend)):  # type: ignore[misc]
        data_file: ClassVar[bool] = True

        def prepare(self, program: Any) -> None:
            super().prepare(program)
            for node in program.graph.find_nodes(op="placeholder"):
                node.meta.setdefault("custom", {})["delegate_constant_tag"] = "weights"

        def executorch_config(self) -> Any:
            config = super().executorch_config()
            config.external_constants = True
            return config

    return Outside()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, factory: Any) -> Any:
    """An artifact with a data file, validated, and its factory."""
    from tests.factory import Factory
    from voxtral_build.backends import BACKENDS
    from voxtral_build.variants import Variant

    variant = Variant("xnnpack", "fp32", "none", "streaming")
    own = Factory(tmp_path_factory.mktemp("outside"))
    for name in ("graph", "preprocessor"):
        setattr(own, name, getattr(factory, name))  # which are of no backend
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(BACKENDS, "xnnpack", outside_backend(BACKENDS["xnnpack"]))
        folder = own.artifact(variant)
        own.validate(variant, folder / "report.json", reference=factory.reference)
    return own, variant, folder


@pytest.fixture
def folder(built: Any, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built[2], tmp_path / built[1].slug))


@pytest.mark.lowering
def test_it_runs_as_without_a_data_file_bit_for_bit(built: Any, factory: Any) -> None:
    import torch

    from tests.models import random_embeds, random_mel, stream_decode, stream_encode
    from voxtral_build.runtime.program import Program

    _, variant, folder = built
    whole = Program(factory.artifact(variant) / "model.pte")
    parted = Program(folder / "model.pte", folder / "model.ptd")
    mel, embeds, ids = random_mel(200), random_embeds(60, 96), torch.arange(64).unsqueeze(0)
    runs: dict[str, Callable[[Any], Any]] = {
        "encode_audio_chunk": lambda method: stream_encode(method, mel),
        "text_decoder": lambda method: stream_decode(method, embeds, 16),
        "token_embedding": lambda method: method(ids),
    }
    for name, run in runs.items():
        expected, got = run(whole.method(name)), run(parted.method(name))
        assert torch.count_nonzero(expected)
        assert torch.equal(expected, got), name


@pytest.mark.lowering
def test_every_weight_is_outside_and_once(built: Any, factory: Any) -> None:
    own, variant, folder = built
    content, segments = read_theirs(folder / "model.ptd")
    assert segments == len(set(map(_bytes, content.values())))
    units = [read_theirs(path)[0] for path in own.folder.glob("*.ptd")]
    assert len(units) == 3
    given = {_bytes(item) for unit in units for item in unit.values()}
    assert given == set(map(_bytes, content.values()))
    parted = methods_memory(folder / "model.pte", folder / "model.ptd")
    whole = methods_memory(factory.artifact(variant) / "model.pte")
    for name, memory in whole.items():
        assert parted[name].data_bytes == memory.data_bytes
    assert (folder / "model.pte").stat().st_size < 100_000


def _bytes(content: Content) -> bytes:
    return content[1] if isinstance(content, tuple) else content


@pytest.mark.lowering
def test_lowering_again_gives_the_same_bytes(
    built: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.factory import SCHEMES
    from voxtral_build.backends import BACKENDS

    own, variant, _ = built
    monkeypatch.setitem(BACKENDS, "xnnpack", outside_backend(BACKENDS["xnnpack"]))
    (embed,) = (u for u in variant.units(SCHEMES["none"]) if u.method == "token_embedding")
    own.lower(embed, tmp_path / "again.pte")
    for suffix in (".pte", ".ptd"):
        expected = own.unit(embed).with_suffix(suffix).read_bytes()
        assert (tmp_path / "again.pte").with_suffix(suffix).read_bytes() == expected
    # A backend that does not tell of its data file: nothing could be linked of its unit.
    monkeypatch.setattr(type(BACKENDS["xnnpack"]), "data_file", False)
    with pytest.raises(BuildError, match="keeps data outside"):
        own.lower(embed, tmp_path / "untold" / "unit.pte")
    assert not list((tmp_path / "untold").iterdir())


@pytest.mark.lowering
def test_manifest_and_verify(built: Any) -> None:
    folder = built[2]
    manifest = verify(folder)
    assert list(manifest.files)[:2] == ["model.pte", "model.ptd"]
    parts = [name for name in manifest.dependencies if name.startswith("units/")]
    assert sorted(Path(name).suffix for name in parts) == [".ptd"] * 3 + [".pte"] * 3


def of_another_checkpoint(folder: Path, built: Any) -> None:
    """Names and sizes of all data are the same, and the file's are."""
    path = folder / "model.ptd"
    size = path.stat().st_size
    content = bytearray(path.read_bytes())
    place = read_data(path).entries["decoder.norm.weight"].extent.offset
    content[place : place + 384] = bytes(384)
    path.write_bytes(content)
    assert path.stat().st_size == size
    assert read_data(path).entries.keys() == read_data(built[2] / "model.ptd").entries.keys()


FAULTS: dict[str, tuple[Callable[[Path, Any], Any], str]] = {
    "missing": (lambda folder, _: (folder / "model.ptd").unlink(), "model.ptd missing"),
    "zero-length": (lambda folder, _: (folder / "model.ptd").write_bytes(b""), "0 bytes"),
    "truncated": (
        lambda folder, _: _change(folder / "model.ptd", lambda data: data[:-1]),
        "bytes, as manifest.json",
    ),
    "wrong magic": (
        lambda folder, _: _change(folder / "model.ptd", lambda data: b"\0\0\0\0ET12" + data[8:]),
        "sha256",
    ),
    "another checkpoint's": (of_another_checkpoint, "sha256"),
    # The other half of the pair: the program is small, and so checked by hash as well.
    "another program": (
        lambda folder, _: _change(folder / "model.pte", lambda data: data[:-1] + b"x"),
        "model.pte is not the file",
    ),
}


def _change(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


@pytest.mark.lowering
@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_data_file_is_refused_before_anything_runs(
    built: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    from voxtral_build.runtime import artifact

    def never(*_: Any) -> None:
        raise AssertionError("a program was loaded")

    spoil, expected = FAULTS[fault]
    artifact.Artifact.load(folder)
    spoil(folder, built)
    monkeypatch.setattr(artifact, "Program", never)
    with pytest.raises(BuildError) as caught:
        artifact.Artifact.load(folder)
    error = caught.value
    assert expected in str(error)
    assert error.got
    assert error.allowed
    assert error.next_step
    with pytest.raises(BuildError, match=r"model\.pt[de]"):
        verify(folder)


@pytest.mark.lowering
def test_validation_finds_a_wrong_data_file(built: Any, folder: Path, factory: Any) -> None:
    from voxtral_build.errors import ValidationError
    from voxtral_build.report import Report

    own, variant, _ = built
    of_another_checkpoint(folder, built)
    with pytest.raises(ValidationError):
        own.validate(variant, folder / "report.json", artifact=folder, reference=factory.reference)
    report = Report.load(folder / "report.failed.json")
    assert [outcome.gate for outcome in report.failures] == ["files", "loads"]
