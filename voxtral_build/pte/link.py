"""Joining one-method .pte files into one: the linker of the factory.

A unit is a .pte with one method, or several. Linking appends the execution plans,
concatenates the constants, keeps equal data once, and renumbers what the plans refer to.
The plans stand in the order of an unlinked build of all methods: the methods sorted by
name, then the constant methods. Data go from disk to disk in small pieces, so linking
gigabytes takes the memory of the heads alone. The same inputs give the same bytes.

Alignment is kept as `segments` tells; that of tensors in a constant segment likewise, by the
offsets of them all, at most at 128.

A unit may keep data outside of its .pte, in a .ptd file. Those of all units are joined into
one, beside the .pte that they are linked into.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from voxtral_build.errors import PteError
from voxtral_build.pte.constant_method import constant_plan, is_constant_plan
from voxtral_build.pte.data_file import DATA_SUFFIX, DataFile, join_data, read_data
from voxtral_build.pte.extents import NamedExtents, UniqueExtents
from voxtral_build.pte.external import check_data, qualify_local_names
from voxtral_build.pte.program_file import ProgramFile, read, text
from voxtral_build.pte.program_writer import write_program
from voxtral_build.pte.schema import new, table
from voxtral_build.pte.segments import Segment, kept_alignment, whole_segments
from voxtral_build.pte.subsegments import CONSTANT, MUTABLE, SubsegmentMerger, refuse_inline


def link(
    units: Sequence[Path],
    output: Path,
    constant_methods: Mapping[str, int | float | bool],
    data_files: Mapping[Path, Path] | None = None,
) -> None:
    """Join the .pte files `units` into the .pte file `output`.

    Args:
        units: files with one or several methods; their order does not matter.
        output: written whole or not at all; where there are data files, its own is written
            beside it first, of the same name with the suffix .ptd.
        constant_methods: metadata, name to value, as `to_edge(constant_methods=...)`
            takes them; their order is kept.
        data_files: the .ptd files of units that have one, by unit.

    Raises:
        PteError: a unit is no usable .pte or its data file no usable .ptd, two methods have
            one name, the units were written with different schemas, a named data key stands
            for different bytes in two units, data that a unit keeps outside are not in its
            data file, or a constant's value cannot be stored.
    """
    files = [read(unit) for unit in units]
    data = {unit: read_data(path) for unit, path in (data_files or {}).items()}
    for file in files:
        check_data(file, data.get(file.path))
    _check_units(files)
    methods = _ordered_methods(files)
    _check_names([*((text(plan.name), str(file.path)) for file, plan in methods),
                  *((name, "the constant methods") for name in constant_methods)])  # fmt: skip
    # Units in the order of their first method: the order in which they are given is moot.
    ranked = list(dict.fromkeys(id(file) for file, _ in methods))
    ordered_files = sorted(files, key=lambda file: ranked.index(id(file)))
    own_data = [
        qualify_local_names(file, data[file.path]) for file in ordered_files if file.path in data
    ]

    merged = new(
        "Program",
        version=files[0].program.version,
        executionPlan=[plan for _, plan in methods],
        constantBuffer=[],
        backendDelegateData=[],
    )
    segments: list[Segment] = []
    _merge_tensors(methods, merged, segments)
    _merge_delegates(methods, merged, segments)
    _merge_named_data(ordered_files, merged, segments)
    merged.executionPlan += [constant_plan(*item) for item in constant_methods.items()]
    if own_data:
        _check_two_places(merged, own_data)
        join_data(own_data, output.with_suffix(DATA_SUFFIX))
    write_program(
        output,
        merged,
        files[0].identifier,
        segments,
        base_alignment=max(kept_alignment(file.segment_base) for file in files),
    )


def _check_units(files: Sequence[ProgramFile]) -> None:
    if not files:
        raise PteError(
            "there is nothing to link",
            got="no units",
            allowed="one .pte or more",
            next_step="name the units to join",
        )
    schemas = {(file.identifier, file.program.version): file.path for file in files}
    if len(schemas) > 1:
        raise PteError(
            "the units were written with different ExecuTorch schemas",
            got=", ".join(
                f"{path}: {identifier.decode('latin-1')} version {version}"
                for (identifier, version), path in schemas.items()
            ),
            allowed="units of one ExecuTorch version",
            next_step="lower all units again with the installed ExecuTorch",
        )
    for file in files:
        refuse_inline(file)


def _ordered_methods(files: Sequence[ProgramFile]) -> list[tuple[ProgramFile, Any]]:
    """Every plan with its file: methods by name, then the units' own constant methods."""
    plans = [(file, plan) for file in files for plan in file.program.executionPlan]
    return sorted(plans, key=lambda item: (is_constant_plan(item[1]), text(item[1].name)))


def _check_names(names: Sequence[tuple[str, str]]) -> None:
    """Refuse a name that two methods have; `names` are (name, where it stands)."""
    seen: dict[str, str] = {}
    for name, place in names:
        if not name:
            raise PteError(f"a method of {place} has no name", allowed="a non-empty name")
        if name in seen:
            raise PteError(
                f"two methods are called {name!r}",
                got=f"one in {seen[name]}, one in {place}",
                allowed="every method name once",
                next_step="leave one of the two out",
            )
        seen[name] = place


def _segment_alignment(file: ProgramFile, index: int) -> int:
    return kept_alignment(int(file.program.segments[index].offset))


def _check_two_places(merged: Any, data: Sequence[DataFile]) -> None:
    """Refuse a name that stands in the .pte and in a .ptd: no runtime loads such a pair."""
    outside = {key: file.path for file in data for key in file.entries}
    for entry in merged.namedData:
        key = text(entry.key)
        if key in outside:
            raise PteError(
                f"the named data {key!r} are in a program and in a data file",
                got=f"a program that has them, and {outside[key]}",
                allowed="one place per key",
                next_step="lower all units with their weights in the same place",
            )


def _merge_tensors(
    methods: Sequence[tuple[ProgramFile, Any]], merged: Any, segments: list[Segment]
) -> None:
    """Put all constants in one segment and all initial values of buffers in another."""
    constants, mutables = SubsegmentMerger(CONSTANT), SubsegmentMerger(MUTABLE)
    for file, plan in methods:
        constants.add_plan(file, plan)
        mutables.add_plan(file, plan)
    # The constant segment stands even when empty: its first offset is a placeholder.
    constant_segment, offsets = constants.segment()
    merged.constantSegment = new("SubsegmentOffsets", segmentIndex=0, offsets=offsets)
    segments.append(constant_segment)
    if not mutables.is_empty:
        mutable_segment, offsets = mutables.segment()
        merged.mutableDataSegments = [
            new("SubsegmentOffsets", segmentIndex=len(segments), offsets=offsets)
        ]
        segments.append(mutable_segment)


def _merge_delegates(
    methods: Sequence[tuple[ProgramFile, Any]], merged: Any, segments: list[Segment]
) -> None:
    """Append the delegates' data; equal blobs in segments are kept once, as ExecuTorch does."""
    unique = UniqueExtents()
    in_segment = table("DataLocation").SEGMENT
    first = len(segments)
    for file, plan in methods:
        for delegate in plan.delegates or ():
            index = delegate.processed.index
            if delegate.processed.location == in_segment:
                alignment = _segment_alignment(file, index)
                delegate.processed.index = first + unique.add(file.segment(index), alignment)
            else:
                delegate.processed.index = len(merged.backendDelegateData)
                merged.backendDelegateData.append(file.program.backendDelegateData[index])
    segments += whole_segments(unique)


def _merge_named_data(files: Sequence[ProgramFile], merged: Any, segments: list[Segment]) -> None:
    """Append the named data: each key once, and equal bytes once for all their keys."""
    data = NamedExtents()
    for file in files:
        for entry in file.program.namedData or ():
            alignment = _segment_alignment(file, entry.segmentIndex)
            data.add(text(entry.key), file.segment(entry.segmentIndex), alignment)
    merged.namedData = [
        new("NamedData", key=key, segmentIndex=len(segments) + index)
        for key, (index, _) in data.keys.items()
    ]
    segments += whole_segments(data.unique)
