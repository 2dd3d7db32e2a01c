"""The flatbuffer classes of ExecuTorch's program schema, without ExecuTorch.

The executorch wheel ships Python classes that flatc generated from its `program.fbs`
(`executorch/exir/_serialize/generated/executorch_flatbuffer`). They need flatbuffers
and numpy alone, but importing them under their own name first imports `executorch.exir`
and with it torch's compiler: ten seconds. Here the same files are loaded from the
wheel's folder as a private package, with their absolute imports turned to it, so that
looking into a file stays quick. A process may import `executorch.exir` as well, before
or after: the two sets of classes share nothing.

The generated code is untyped. `Any` stands for its objects here and in the modules that
handle them; field names are those of `program.fbs` in camelCase.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from voxtral_build.errors import HostError

_WHEEL_NAME = "executorch.exir._serialize.generated"
_OWN_NAME = "voxtral_build.pte._generated"
_PACKAGE = f"{_OWN_NAME}.executorch_flatbuffer"


class _RenamingLoader(SourceFileLoader):
    """Compiles a generated module with its imports pointing at the private package."""

    def get_code(self, fullname: str) -> CodeType:
        # Bypasses the inherited bytecode cache: that belongs to the wheel's own names.
        source = self.get_source(fullname) or ""
        renamed = source.replace(_WHEEL_NAME, _OWN_NAME)
        return compile(renamed, self.get_filename(fullname), "exec", dont_inherit=True)


class _GeneratedFinder(MetaPathFinder):
    """Finds the private package, and nothing else, in the wheel's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname == _PACKAGE:
            file, search = self._folder / "__init__.py", [str(self._folder)]
        elif fullname.startswith(f"{_PACKAGE}."):
            file, search = self._folder / f"{fullname.rpartition('.')[2]}.py", None
        else:
            return None
        return importlib.util.spec_from_file_location(
            fullname,
            file,
            loader=_RenamingLoader(fullname, str(file)),
            submodule_search_locations=search,
        )


def _generated_folder() -> Path:
    """The folder of the generated classes in the installed wheel.

    Raises:
        HostError: executorch is not installed, or is a version that lacks them.
    """
    # `executorch` is a namespace package: finding it runs none of its code.
    spec = importlib.util.find_spec("executorch")
    for root in (spec.submodule_search_locations or ()) if spec is not None else ():
        folder = Path(root, "exir", "_serialize", "generated", "executorch_flatbuffer")
        if (folder / "Program.py").is_file():
            return folder
    raise HostError(
        "ExecuTorch's program schema was not found on this machine",
        got="no executorch package" if spec is None else "an executorch without generated classes",
        allowed="executorch 1.5 or newer",
        next_step="install this project's dependencies into the running Python",
    )


@cache
def _generated_package() -> ModuleType:
    finder = _GeneratedFinder(_generated_folder())
    parent = ModuleType(_OWN_NAME)
    parent.__path__ = []
    sys.modules[_OWN_NAME] = parent
    # The package's __init__ imports every module, so the finder is needed only once.
    sys.meta_path.insert(0, finder)
    try:
        package = importlib.import_module(_PACKAGE)
    finally:
        sys.meta_path.remove(finder)
    for module in [value for value in vars(package).values() if isinstance(value, ModuleType)]:
        _name_classes(module)
    return package


def _name_classes(module: ModuleType) -> None:
    """Let the names of child tables in a generated module mean their classes.

    The readers call them as classes, but flatc's imports for the object API come later in
    the file and bind the same names to the modules.
    """
    for name, value in list(vars(module).items()):
        if isinstance(value, ModuleType) and isinstance(getattr(value, name, None), type):
            setattr(module, name, getattr(value, name))


def table(name: str) -> Any:
    """The read-only flatbuffer class or enum `name` of `program.fbs`, such as "Program"."""
    return getattr(getattr(_generated_package(), name), name)


def new(name: str, /, **fields: Any) -> Any:
    """A mutable object of the table `name`, such as "Int", with `fields` set.

    Raises:
        AttributeError: the table has no such field (the generated classes would take it).
    """
    created = getattr(getattr(_generated_package(), name), f"{name}T")()
    for field, value in fields.items():
        if not hasattr(created, field):
            raise AttributeError(f"{name} has no field {field}")
        setattr(created, field, value)
    return created


def builder(size: int) -> Any:
    """An empty `flatbuffers.Builder` with room for `size` bytes; it grows as needed."""
    return importlib.import_module("flatbuffers").Builder(size)


def unpack_program(head: bytes) -> Any:
    """The `ProgramT` whose flatbuffer is `head`.

    Raises whatever the generated code raises on bytes that are no flatbuffer:
    struct.error, IndexError, ValueError, TypeError and others.
    """
    return _generated_package().Program.ProgramT.InitFromPackedBuf(head)
