"""Data of a program that lie in a .ptd file: their names, and whether they are all there.

A program finds such data by name: a tensor by its name in the model (`decoder.norm.weight`),
a delegate by whatever its backend chose. Of tensors that have no such name, because
ExecuTorch's passes made them, it makes one by counting, and counts anew in each unit. Such a
name is local to its unit, as a linker has it: joined, two units would mean different data by
it. (ExecuTorch itself, given several methods, takes one of them for all, without an error.)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from voxtral_build.errors import PteError
from voxtral_build.pte.data_file import DataFile
from voxtral_build.pte.flat_tensor import TensorLayout
from voxtral_build.pte.program_file import ProgramFile, is_external, tensor_bytes, tensors, text

_LOCAL = re.compile(r"_(prop_|lifted_)?tensor_constant\d+")


def qualify_local_names(file: ProgramFile, data: DataFile) -> DataFile:
    """Put the unit's first method before names that are local to the unit.

    Changes the program in place and returns its data under the new names.
    """
    first = text(file.program.executionPlan[0].name)
    names = {}
    for plan in file.program.executionPlan:
        for tensor in external_tensors(plan):
            name = external_name(tensor)
            if _LOCAL.fullmatch(name):
                names[name] = tensor.extraTensorInfo.fullyQualifiedName = f"{first}.{name}"
    return data.renamed(names)


def external_tensors(plan: Any) -> list[Any]:
    """A method's tensors whose data lie in another file."""
    return [tensor for tensor in tensors(plan) if is_external(tensor)]


def external_name(tensor: Any) -> str:
    """The name by which a tensor's data are found."""
    return text(tensor.extraTensorInfo.fullyQualifiedName)


def external_bytes(plan: Any) -> int:
    """Bytes of a method's tensors in another file; those that share data count once."""
    found = {external_name(tensor): tensor_bytes(tensor) for tensor in external_tensors(plan)}
    return sum(found.values())


def missing_data(file: ProgramFile, data: DataFile | None) -> Iterator[str]:
    """What a program asks of its data file in vain.

    Only tensors are seen: what a delegate asks for is between it and its backend.
    """
    entries = {} if data is None else data.entries
    for plan in file.program.executionPlan:
        for tensor in external_tensors(plan):
            name, where = external_name(tensor), f"of {text(plan.name)}"
            if name not in entries:
                yield f"{name} {where}: missing"
            elif entries[name].layout != (wanted := _layout(tensor)):
                yield f"{name} {where}: {entries[name].layout}, not {wanted}"


def check_data(file: ProgramFile, data: DataFile | None) -> None:
    """Refuse a program that its data file does not complete.

    Raises:
        PteError: names the first data that are missing or not what they should be.
    """
    faults = list(missing_data(file, data))
    if faults:
        raise PteError(
            f"the data outside of {file.path} are not those that it asks for",
            got=f"{faults[0]} ({len(faults)} in all); "
            + ("no data file" if data is None else f"data file {data.path}"),
            allowed="the .ptd file that was written with it",
            next_step="lower the unit again; both files are written together",
        )


def _layout(tensor: Any) -> TensorLayout:
    def numbers(values: Any) -> tuple[int, ...]:
        return tuple(int(value) for value in (() if values is None else values))

    return TensorLayout(int(tensor.scalarType), numbers(tensor.sizes), numbers(tensor.dimOrder))
