"""Hold a checkpoint against the model, read it once, and write down what is in it."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from voxtral_build.checkpoint import FILES, PARAMS, TOKENIZER, WEIGHTS
from voxtral_build.errors import CheckpointError
from voxtral_build.files import sha256, write_text
from voxtral_build.scan import read_through
from voxtral_build.tensor_file import TensorFile
from voxtral_build.weights import check, component_of, model_name

log = logging.getLogger(__name__)


def run(*, checkpoint: Path, output: Path) -> None:
    """Check every key, shape, dtype and value, and write `inventory.json`.

    What the headers tell comes first, in a second or two; then the weights are read once,
    in blocks, by two threads.

    Raises:
        CheckpointError: names the file, and the tensors at fault.
    """
    with _unchanged([checkpoint / name for name in FILES]):
        _, file = check(checkpoint)
        log.info("%s: every key, shape and dtype is the model's", file.path)
        hashes = {
            PARAMS: sha256(checkpoint / PARAMS),
            WEIGHTS: read_through(file),
            TOKENIZER: sha256(checkpoint / TOKENIZER),
        }
        files = {
            name: {"bytes": (checkpoint / name).stat().st_size, "sha256": digest}
            for name, digest in hashes.items()
        }
    inventory = {"files": files, **_contents(file)}
    write_text(output, json.dumps(inventory, indent=1) + "\n")


def _contents(file: TensorFile) -> dict[str, object]:
    """Each tensor, and what they come to in each component."""
    tensors = []
    totals: dict[str, dict[str, int]] = {}
    for key, info in file.tensors.items():
        name = model_name(key)
        assert name is not None  # check() has refused unknown keys
        component = component_of(name)
        tensors.append(
            {
                "key": key,
                "name": name,
                "component": component,
                "shape": list(info.shape),
                "dtype": info.dtype,
                "offset": info.begin,
                "bytes": info.nbytes,
            }
        )
        total = totals.setdefault(component, {"tensors": 0, "parameters": 0, "bytes": 0})
        total["tensors"] += 1
        total["parameters"] += math.prod(info.shape)
        total["bytes"] += info.nbytes
    for of, total in sorted(totals.items()):
        log.info(
            "%s: %d tensors, %.3f M parameters",
            of,
            total["tensors"],
            total["parameters"] / 1e6,
        )
    return {"components": totals, "tensors": tensors}


@contextmanager
def _unchanged(paths: Iterable[Path]) -> Iterator[None]:
    """Refuse what was read of files that somebody wrote to meanwhile."""
    before = {path: _state(path) for path in paths}
    try:
        yield
    finally:  # also where a fault was found: it may be of a file half written
        for path, state in before.items():
            if _state(path) != state:
                raise CheckpointError(
                    f"{path} changed while it was read",
                    got="another size or time of change than before",
                    allowed="a file that nothing writes to",
                    next_step="wait until it is complete, and run again",
                )


def _state(path: Path) -> tuple[int, ...] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns
