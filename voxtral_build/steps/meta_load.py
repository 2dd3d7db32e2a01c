"""Hold a checkpoint against the model, and write down what is in it."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path

from voxtral_build.files import write_text
from voxtral_build.weights import check, component_of, model_name

log = logging.getLogger(__name__)


def run(*, checkpoint: Path, output: Path) -> None:
    """Check every key, shape and dtype, and write `inventory.json`. No tensor is read.

    Raises:
        CheckpointError: names the tensors at fault.
    """
    _, file = check(checkpoint)
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
    inventory = {"components": totals, "tensors": tensors}
    write_text(output, json.dumps(inventory, indent=1) + "\n")
    for of, total in sorted(totals.items()):
        log.info(
            "%s: %d tensors, %.3f M parameters",
            of,
            total["tensors"],
            total["parameters"] / 1e6,
        )
