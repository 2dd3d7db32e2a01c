"""On a host with an NVIDIA GPU: what the tests on CPUs have to take on faith.

    python -m tests.gpu.check_cuda [FOLDER]

In three steps, each on a one-layer model, unquantized and with packed 4w linears:

1. `tile_pack` against PyTorch's own packing, which runs on a GPU only;
2. the prepared graphs on the GPU, by PyTorch's kernels, against eager on the CPU;
3. lowering by AOTInductor into FOLDER, a `.pte` and a `.ptd` a method, and, where the runtime
   of this Python has the CUDA delegate, running them against eager.

Two minutes, most of them AOTInductor's. Ends with 1 where a figure is out of bounds.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.export.passes import move_to_device_pass

from tests.models import (
    NONE,
    ONE_LAYER,
    OVER_TIME,
    SETTINGS,
    bound,
    checkpoint,
    eager,
    over_time,
)
from voxtral_build.backends import BACKENDS
from voxtral_build.backends.cuda_graph import tile_pack
from voxtral_build.backends.lowering import lower_program
from voxtral_build.model.attention import STANDARD
from voxtral_build.quant import Quant
from voxtral_build.runtime.program import has_delegate

CUDA = BACKENDS["cuda"]
DTYPE = torch.bfloat16
QUANTS = [NONE, Quant.parse("4w.g32.tile_packed_to_4d")]
BOUND = 0.05  # |difference| / |output|, of two computations in bf16


def main(folder: Path) -> int:
    if (missing := CUDA.missing()) is not None:
        print(f"this machine lacks {missing}")
        return 1
    failures = [*check_packing(), *check_graphs(), *check_lowering(folder)]
    print("\n".join(["", *failures]) if failures else "\nall is as it should be")
    return bool(failures)


def check_packing() -> list[str]:
    """Also a width that is a multiple of 128 and not of 1024, as torchao would have it."""
    failures = []
    for rows, width in ((8, 128), (64, 1280), (3072, 9216)):
        values = torch.randint(-8, 8, (rows, width), dtype=torch.int8)
        nibbles = (values + 8).to(torch.uint8)
        pairs = (nibbles[:, ::2] << 4 | nibbles[:, 1::2]).contiguous().cuda()
        theirs = torch.ops.aten._convert_weight_to_int4pack(pairs, 8).cpu()
        same = torch.equal(tile_pack(values), theirs)
        print(f"packing {rows} x {width}: {'equal' if same else 'DIFFERENT'}")
        if not same:
            failures.append(f"packing {rows} x {width} differs from PyTorch's")
    return failures


def prepared(method: Any, mode: Any, quant: Quant, *, packs: bool) -> Any:
    program = bound(checkpoint(ONE_LAYER), method, mode, STANDARD, quant, DTYPE)
    if packs and quant.packing_format != "plain":
        CUDA.pack(program, quant.packing_format)
    return program


def compare(what: str, method: Any, mode: Any, quant: Quant, step: Any) -> list[str]:
    module = eager(checkpoint(ONE_LAYER), method, mode, SETTINGS, STANDARD, quant.values, DTYPE)
    expected = over_time(method, module, DTYPE)
    error = float((over_time(method, step, DTYPE) - expected).norm() / expected.norm())
    print(f"{what} {method} {mode} {quant.slug}: {error:.4f}")
    if error <= BOUND:
        return []
    return [f"{what} {method} {mode} {quant.slug}: off by {error:.4f}, more than {BOUND}"]


def check_graphs() -> list[str]:
    failures = []
    for quant in QUANTS:
        for method, mode in OVER_TIME:
            program = prepared(method, mode, quant, packs=True)
            CUDA.prepare(program)
            # As the backend does: without torchao's tensor class, and on the device.
            program = move_to_device_pass(program.run_decompositions({}), "cuda:0")
            graph = program.module(check_guards=False)

            def step(*inputs: torch.Tensor, graph: Any = graph) -> torch.Tensor:
                return graph(*(tensor.cuda() for tensor in inputs)).cpu()

            failures += compare("graph", method, mode, quant, step)
    return failures


def check_lowering(folder: Path) -> list[str]:
    failures = []
    runs = has_delegate(str(CUDA.delegate))
    if not runs:
        print("this Python's ExecuTorch has no CUDA delegate: programs are lowered, and not run")
    for quant in QUANTS:
        for method, mode in OVER_TIME:
            place = folder / f"{method}-{mode}-{quant.slug}"
            place.mkdir(parents=True)
            program = prepared(method, mode, quant, packs=False)
            lowered = lower_program(method, program, CUDA, quant.packing_format)
            model = place / "model.pte"
            with model.open("wb") as file:
                lowered.write_to_file(file)
            lowered.write_tensor_data_to_file(str(place))
            sizes = {path.name: path.stat().st_size for path in sorted(place.iterdir())}
            print(f"lowered {place.name}: {sizes}")
            data = [path for path in place.iterdir() if path.suffix == ".ptd"]
            if len(data) != 1:
                failures.append(f"{place.name}: {len(data)} .ptd files, not one")
            elif runs:
                failures += compare("program", method, mode, quant, load(model, data[0], method))
    return failures


def load(model: Path, data: Path, method: str) -> Any:
    from executorch.extension.pybindings.portable_lib import _load_for_executorch

    module = _load_for_executorch(str(model), str(data))
    return lambda *inputs: module.run_method(method, inputs)[0].clone()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else temporary)))
