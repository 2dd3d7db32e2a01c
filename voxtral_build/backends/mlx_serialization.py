"""The generated Python files of ExecuTorch's MLX backend, which the Linux wheel lacks.

The wheel ships what they are generated from (`backends/mlx/serialization/schema.fbs`), the
generator (`generate.py`) and flatc. They are made once into a cache folder of ours, to the
byte as the macOS wheel has them; nothing is written into site-packages. `install` puts them
where `executorch.backends.mlx` imports them from.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import types
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from voxtral_build.errors import HostError

_MLX = "executorch.backends.mlx"
_PACKAGE = f"{_MLX}.serialization"
_BINDINGS = f"{_PACKAGE}._generated.mlx_delegate"
_SCHEMA = "mlx_graph_schema.py"
# Changes where the content of the folder does.
_FORMAT = "1"


@cache
def _executorch() -> Path | None:
    """The installed executorch, found without importing it."""
    spec = importlib.util.find_spec("executorch")
    places = spec.submodule_search_locations if spec else None
    return Path(next(iter(places))) if places else None


def _shipped() -> Path | None:
    root = _executorch()
    return root / "backends" / "mlx" / "serialization" if root else None


def missing() -> str | None:
    """What of the generator's parts this installation lacks; None: the files can be made."""
    root, folder = _executorch(), _shipped()
    if root is None or folder is None:
        return "executorch"
    if (folder / _SCHEMA).exists():
        return None
    parts = (folder / "generate.py", folder / "schema.fbs", _flatc(root))
    absent = [str(part.relative_to(root)) for part in parts if not part.exists()]
    return f"{', '.join(absent)} of the executorch wheel" if absent else None


def install() -> None:
    """Make `executorch.backends.mlx` importable in this process.

    Raises:
        HostError: the wheel has neither the generated files nor what they are made from.
    """
    if _PACKAGE in sys.modules:
        return
    lacking = missing()
    shipped = _shipped()
    if lacking or shipped is None:
        raise HostError(
            "programs for MLX can't be made here",
            got=f"a host that lacks {lacking}",
            next_step="install the executorch wheel that requirements.txt names",
        )
    if (shipped / _SCHEMA).exists():  # a wheel that has them, or a build from source
        return
    folder = _generated(shipped)
    # The wheel's own __init__ refuses to load without the files beside it.
    package = types.ModuleType(_PACKAGE)
    package.__path__ = [str(folder), str(shipped)]
    spec = importlib.util.spec_from_file_location(
        f"{_MLX}._generated_inspector", folder / "_generated_inspector.py"
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{folder} cannot be imported from")
    sys.modules[_PACKAGE] = package
    inspector = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(inspector)
    sys.modules[spec.name] = inspector


def cache_folder() -> Path:
    """Where generated files are kept: `$XDG_CACHE_HOME/voxtral-build`, or ~/.cache's."""
    base = os.environ.get("XDG_CACHE_HOME")
    root = Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache"
    return root / "voxtral-build"


def _generated(shipped: Path) -> Path:
    """The folder of generated files, made whole or not at all.

    Processes that make it at the same time each make their own; the first to finish keeps
    its name, and the others' are thrown away.
    """
    digest = hashlib.sha256(_FORMAT.encode())
    for name in ("schema.fbs", "generate.py"):
        digest.update((shipped / name).read_bytes())
    key = f"mlx-executorch-{version('executorch')}-{digest.hexdigest()[:16]}"
    folder = cache_folder() / key
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{key}.", dir=folder.parent))
    except OSError as error:
        raise HostError(
            f"{folder.parent} cannot be written",
            got=error.strerror,
            next_step="set XDG_CACHE_HOME to a folder that can",
        ) from error
    try:
        _generate(shipped, temporary)
        temporary.chmod(0o755)
        try:
            temporary.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _generate(shipped: Path, folder: Path) -> None:
    """Write the Python files. The generator's own `main` writes C++ from absent templates."""
    generator = _load_generator(shipped)
    schema = generator.parse_fbs(shipped / "schema.fbs")
    for name, text in (
        (_SCHEMA, generator.generate_python_schema(schema)),
        ("_generated_serializers.py", generator.generate_python_serializers(schema)),
        ("_generated_inspector.py", generator.generate_inspector(schema)),
    ):
        (folder / name).write_text(text, encoding="utf-8")

    bindings = folder / "_generated"
    made = subprocess.run(
        [_flatc(shipped.parents[2]), "--python", "-o", bindings, shipped / "schema.fbs"],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        raise HostError(
            "flatc could not generate the bindings of MLX's schema",
            got=(made.stderr or made.stdout).strip(),
            next_step="install the executorch wheel that requirements.txt names",
        )
    for file in bindings.rglob("*.py"):
        # flatc's imports suppose its folder on sys.path.
        text = file.read_text(encoding="utf-8").replace("from mlx_delegate.", f"from {_BINDINGS}.")
        file.write_text(text, encoding="utf-8")
    kinds = (schema.tables, schema.enums, schema.structs, schema.unions)
    names = sorted(item.name for kind in kinds for item in kind)
    (bindings / "__init__.py").write_text(
        "".join(f"from {_BINDINGS}.{name} import {name}\n" for name in names), encoding="utf-8"
    )


def _load_generator(shipped: Path) -> Any:
    name = f"_voxtral_build_mlx_generator_{threading.get_ident()}"
    spec = importlib.util.spec_from_file_location(name, shipped / "generate.py")
    if spec is None or spec.loader is None:
        raise ImportError(f"{shipped / 'generate.py'} cannot be imported")
    generator = importlib.util.module_from_spec(spec)
    sys.modules[name] = generator  # dataclasses look their module up
    try:
        spec.loader.exec_module(generator)
    finally:
        del sys.modules[name]
    return generator


def _flatc(executorch: Path) -> Path:
    return executorch / "data" / "bin" / ("flatc.exe" if os.name == "nt" else "flatc")
