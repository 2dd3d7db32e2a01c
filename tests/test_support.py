"""What the table of backends says is true: what it offers works, and what it refuses does not."""

from __future__ import annotations

import itertools
import json

import pytest
import torch
from torch import nn

from tests.factory import SCHEMES
from voxtral_build import support
from voxtral_build.backends import BACKENDS
from voxtral_build.backends.lowering import lower_program
from voxtral_build.errors import BuildError
from voxtral_build.pte.inspect import describe, undelegated_linears
from voxtral_build.quant import EMBEDDING_TYPES, LINEAR_TYPES, QUANT_TYPES, Quant
from voxtral_build.quantization import quantize_tensor
from voxtral_build.runtime.program import Program, has_delegate
from voxtral_build.weights import TORCH_DTYPES

HERE = [name for name, backend in BACKENDS.items() if backend.missing() is None]
# Of a backend, everything that a component can be: type and groups. Not what is for another by
# definition, whatever happens to become of it.
QUANTS = [
    Quant(type=name, group_size=size)
    for name in QUANT_TYPES
    if name != "fpa4w"
    for size in ([0] if name == "none" else [0, 32])
]


def module(quant, dtype, kind):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(128, 128, generator=generator).to(dtype)
    one = nn.Embedding(128, 128) if kind == "embedding" else nn.Linear(128, 128, bias=False)
    tensor = weight if quant.type == "none" else quantize_tensor(weight, quant)
    one.weight = nn.Parameter(tensor, requires_grad=False)
    x = (
        torch.arange(7).unsqueeze(0)
        if kind == "embedding"
        else torch.randn(1, 7, 128, generator=generator)
    )
    return nn.Sequential(one).eval(), x if kind == "embedding" else x.to(dtype)


def fault(backend, quant, dtype, kind, path):
    """Why one layer cannot be had so, or None."""
    name = {"linear": "text_decoder", "embedding": "token_embedding"}[kind]
    one, x = module(quant, TORCH_DTYPES[dtype], kind)
    program = torch.export.export(one, (x,), strict=True)
    try:
        with path.open("wb") as file:
            lower_program(name, program, backend).write_to_file(file)
    except Exception as error:  # ExecuTorch raises whatever it comes across
        return f"lowering: {error}"
    method = describe(path).methods[name]
    if backend.delegated == "everything" and method.operators:
        return f"not delegated: {method.operators}"
    if backend.delegated == "linears" and undelegated_linears(method):
        return "not delegated"
    if backend.delegate is not None and not has_delegate(backend.delegate):
        if backend.delegated == "everything":
            return None  # that it took everything is as much as one layer can tell
        graph = torch.export.export(one, (x,), strict=True)
        wrong = [o.gate for o in backend.inspect(name, path, graph) if not o.passed]
        return ", ".join(wrong) or None
    try:
        got = Program(path).method(name)(x).float()
    except Exception as error:
        return f"running: {error}"
    expected = one(x).float()
    bound = (1e-5 if dtype == "fp32" else 2e-2) * expected.abs().max()
    return None if (got - expected).abs().max() <= bound else "wrong values"


def cells():
    for name, kind, dtype, quant in itertools.product(
        HERE, ("linear", "embedding"), TORCH_DTYPES, QUANTS
    ):
        # What a backend does with a dtype, it does with its linears.
        linear = kind == "linear"
        if quant.type in (LINEAR_TYPES if linear else EMBEDDING_TYPES) and (
            linear or dtype in BACKENDS[name].capability.dtypes
        ):
            yield pytest.param(name, kind, dtype, quant, id=f"{name}-{kind}-{dtype}-{quant.slug}")


@pytest.mark.lowering
@pytest.mark.parametrize(("name", "kind", "dtype", "quant"), cells())
@torch.no_grad()
def test_what_is_offered_works_and_what_is_refused_does_not(tmp_path, name, kind, dtype, quant):
    backend = BACKENDS[name]
    offered = backend.capability.takes(dtype, quant, embedding=kind == "embedding")
    found = fault(backend, quant, dtype, kind, tmp_path / "one.pte")
    assert (found is None) == offered, found


@pytest.mark.parametrize("name", HERE)
def test_a_packing_that_a_backend_does_not_have_is_a_mistake(name):
    """`lower` may be called by hand, without a matrix that would refuse it."""
    one, x = module(Quant.parse("4w.g32"), torch.float32, "linear")
    program = torch.export.export(one, (x,), strict=True)
    with pytest.raises(BuildError, match=f"{name} cannot pack weights so"):
        lower_program("text_decoder", program, BACKENDS[name], "tile_packed_to_4d")


def test_the_table_has_every_cell_once_with_its_reason():
    table = support.cells(SCHEMES)
    assert len({(c.backend, c.dtype, c.scheme, c.mode) for c in table}) == len(table)
    assert len(table) == len(BACKENDS) * 2 * len(SCHEMES) * 2
    for cell in table:
        backend = BACKENDS[cell.backend]
        scheme = SCHEMES[cell.scheme]
        taken = all(
            backend.capability.takes(cell.dtype, scheme.of(name), embedding=name == "embedding")
            for name in ("encoder", "decoder", "embedding")
        )
        possible = {"here": cell.backend in HERE, "host": cell.backend not in HERE}
        assert possible.get(cell.verdict, True)
        assert (cell.verdict == "refused") != taken
        assert (cell.verdict == "here") == (cell.reason is None)


def test_the_table_is_printed_whole():
    text = support.as_text(SCHEMES)
    data = json.loads(support.as_json(SCHEMES))
    assert [row["backend"] for row in data["backends"]] == list(BACKENDS)
    for cell in data["cells"]:
        assert cell["scheme"] in text
        assert cell["verdict"] != "refused" or cell["reason"] in text
