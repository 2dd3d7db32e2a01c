"""What an output was made from: the code of a step, and tool versions."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def step_sources(step: str, package: Path = PACKAGE, *, without: Iterable[str] = ()) -> list[Path]:
    """The files of the package that a step may run, found without importing anything.

    A workflow that only knows a step's command would not notice an edit of a module that
    the step imports.

    Args:
        step: a module's name in `steps`.
        package: the package's folder; it may be any package that has `steps`.
        without: modules that the step imports and, for what it is to do, does not run, such
            as `backends.xnnpack`; what they alone import is left out with them.

    Returns:
        The step, and what it and its imports import, at the top of a module or within a
        function; sorted. Relative to the working directory where they are below it, so
        that a workflow whose folder is moved is still up to date; absolute elsewhere.
    """
    found: set[Path] = set()
    left_out = {package.joinpath(*module.split(".")).with_suffix(".py") for module in without}
    queue = list(_files((package.name, "steps", step), package))
    while queue:
        path = queue.pop()
        if path not in found and path not in left_out:
            found.add(path)
            queue += _imports(path, package)
    return _located(found)


def data_files(folder: str, package: Path = PACKAGE) -> list[Path]:
    """What lies in a folder of the package beside code, such as templates.

    Args:
        folder: below the package.

    Returns:
        As `step_sources` does.
    """
    return _located(path for path in (package / folder).iterdir() if path.is_file())


def _located(paths: Iterable[Path]) -> list[Path]:
    here = Path.cwd()
    return sorted(path.relative_to(here) if path.is_relative_to(here) else path for path in paths)


def _imports(path: Path, package: Path) -> Iterator[Path]:
    """Files of `package` that importing and running `path` reads."""
    tree = ast.parse(path.read_bytes(), filename=str(path))
    parts = (package.name, *path.relative_to(package).with_suffix("").parts)
    inside = parts if path.name == "__init__.py" else parts[:-1]
    inside = tuple(part for part in inside if part != "__init__")
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files(tuple(alias.name.split(".")), package)
        elif isinstance(node, ast.ImportFrom):
            base = inside[: len(inside) + 1 - node.level] if node.level else ()
            base += tuple(node.module.split(".")) if node.module else ()
            yield from _files(base, package)
            for alias in node.names:  # `from package import module`
                yield from _files((*base, alias.name), package)


def _files(module: tuple[str, ...], package: Path) -> Iterator[Path]:
    """The module's file, and the `__init__.py` of every package on the way to it."""
    if module[0] != package.name:
        return
    folder = package
    for part in module[1:]:
        if (folder / "__init__.py").is_file():
            yield folder / "__init__.py"
        if (folder / f"{part}.py").is_file():
            yield folder / f"{part}.py"
            return
        folder = folder / part
    if (folder / "__init__.py").is_file():
        yield folder / "__init__.py"


def tool_versions(*distributions: str) -> str:
    """`name==version` of installed distributions, joined by blanks; nothing is imported.

    A distribution that is not installed is told as `name==missing`: a dry run needs none.
    """
    return " ".join(f"{name}=={_version(name)}" for name in distributions)


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "missing"
