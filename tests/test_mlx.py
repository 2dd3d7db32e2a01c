"""MLX: what is written for Apple's GPUs, read back and run on the CPU."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.models import SETTINGS, builder, checkpoint, eager, random_embeds, random_mel
from voxtral_build.axes import COMPONENT_OF, Method, Mode
from voxtral_build.backends import KERNELS_ONLY, mlx_serialization
from voxtral_build.backends.lowering import lower_program
from voxtral_build.backends.mlx import MlxBackend
from voxtral_build.backends.mlx_interpreter import OPERATIONS, Interpreter, unpack
from voxtral_build.backends.mlx_program import Instruction, MlxProgram, read_program
from voxtral_build.backends.mlx_readback import (
    constant_faults,
    interface_faults,
    operation_faults,
    run_beside,
)
from voxtral_build.errors import BuildError, HostError, PteError
from voxtral_build.graph import bind_weights, export_method, load_graph, save_graph, strip_weights
from voxtral_build.model.attention import CUSTOM_SDPA, STANDARD
from voxtral_build.pte.link import link
from voxtral_build.quant import EMBEDDING_TYPES, QUANT_TYPES, Quant, Scheme
from voxtral_build.quantization import quantize_tensor, quantized_names
from voxtral_build.steps.synth import Size
from voxtral_build.weights import TORCH_DTYPES, parameter_names, read_tensors

# Widths that groups of 32 divide; grouped-query attention; windows that a hundred steps wrap.
SIZE = Size(64, 1, 2, 32, 128, 20, 128, 1, 4, 2, 32, 128, 1280, 32)
BACKEND = MlxBackend()
CHECKS = ["delegate", "constants", "interface", "operations", "difference"]


@dataclass(frozen=True)
class Written:
    """A method, written for MLX."""

    method: Method
    mode: Mode
    quant: str = "none"
    dtype: str = "fp32"

    def __str__(self) -> str:
        return f"{self.method}-{self.mode}-{self.quant}-{self.dtype}"


STREAM = (
    Written("encode_audio_chunk", "streaming", "8w.axis"),
    Written("text_decoder", "streaming", "4w.g32"),
    Written("token_embedding", "streaming", "4w.g64"),
)
OFFLINE = (
    Written("audio_encoder", "offline", "4w.g32", "bf16"),
    Written("text_decoder", "offline", "none", "bf16"),
)
EMBEDDINGS = tuple(
    Written("token_embedding", "offline", quant, "bf16")
    for quant in ("none", "4w.g32", "4w.g128", "4w.axis", "8w.g32", "8w.axis")
)


class Builder:
    """Graphs and files of units, each made once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def module(self, unit: Written) -> nn.Module:
        build = builder(checkpoint(SIZE), unit.mode, attention=STANDARD)
        model, component = build.meta_model(), COMPONENT_OF[unit.method]
        dtype, quant = TORCH_DTYPES[unit.dtype], Quant.parse(unit.quant)
        tensors = read_tensors(checkpoint(SIZE), parameter_names(model, component), dtype)
        for name in quantized_names(model, component, quant):
            tensors[name] = quantize_tensor(tensors[name], quant)
        (module,) = build.build([unit.method], tensors, dtype)
        return module

    def graph(self, unit: Written) -> Any:
        """As the workflow has it: from a file, with weights bound."""
        path = self.folder / f"{unit}.pt2"
        if not path.exists():
            build = builder(checkpoint(SIZE), unit.mode, attention=STANDARD)
            quant = Quant.parse(unit.quant)
            graph = export_method(build, unit.method, quant, TORCH_DTYPES[unit.dtype])
            save_graph(strip_weights(graph), path)
        return bind_weights(load_graph(path), self.module(unit))

    def file(self, unit: Written) -> Path:
        path = self.folder / f"{unit}.pte"
        if not path.exists():
            self.write(unit, path)
        return path

    def write(self, unit: Written, path: Path) -> None:
        lowered = lower_program(unit.method, self.graph(unit), BACKEND)
        with path.open("wb") as file:
            lowered.write_to_file(file)

    def linked(self) -> Path:
        path = self.folder / "linked.pte"
        if not path.exists():
            link([self.file(unit) for unit in STREAM], path, {"sample_rate": 16000})
        return path

    def read(self, unit: Written) -> MlxProgram:
        return read_program(self.file(unit), unit.method)


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    return Builder(tmp_path_factory.mktemp("mlx"))


# --- the files that the wheel lacks --------------------------------------------------------


def test_files_are_made_once_and_whole_outside_of_the_wheel(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    shipped = mlx_serialization._shipped()
    before = sorted(path for path in shipped.rglob("*") if "__pycache__" not in path.parts)
    with ThreadPoolExecutor(3) as pool:
        folders = list(pool.map(mlx_serialization._generated, [shipped] * 3))
    (folder,) = set(folders)
    assert folder.parent == tmp_path / "voxtral-build"
    assert list(folder.parent.iterdir()) == [folder]  # no half of one is left
    assert sorted(path.name for path in folder.iterdir()) == [
        "_generated",
        "_generated_inspector.py",
        "_generated_serializers.py",
        "mlx_graph_schema.py",
    ]
    schema = (shipped / "schema.fbs").read_text()
    tables = {line.split()[1] for line in schema.splitlines() if line.startswith("table ")}
    assert tables <= {path.stem for path in (folder / "_generated" / "mlx_delegate").iterdir()}
    made = folder.stat().st_mtime_ns
    assert mlx_serialization._generated(shipped) == folder
    assert folder.stat().st_mtime_ns == made
    after = sorted(path for path in shipped.rglob("*") if "__pycache__" not in path.parts)
    assert after == before


def test_a_generator_that_fails_leaves_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(mlx_serialization, "_flatc", lambda _: "/bin/false")
    with pytest.raises(HostError, match="flatc"):
        mlx_serialization._generated(mlx_serialization._shipped())
    assert not list((tmp_path / "voxtral-build").iterdir())


def test_a_cache_that_cannot_be_written_is_an_error_of_the_users(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(HostError, match="XDG_CACHE_HOME"):
        mlx_serialization._generated(mlx_serialization._shipped())


def test_a_wheel_without_the_generator_is_told(monkeypatch, tmp_path):
    assert BACKEND.missing() is None
    monkeypatch.setattr(mlx_serialization, "_executorch", lambda: tmp_path)
    assert "generate.py" in str(BACKEND.missing())
    monkeypatch.delitem(sys.modules, mlx_serialization._PACKAGE, raising=False)
    with pytest.raises(HostError, match=r"generate\.py"):
        mlx_serialization.install()
    monkeypatch.setattr(mlx_serialization, "_executorch", lambda: None)
    assert BACKEND.missing() == "executorch"


# --- what can be built ---------------------------------------------------------------------


def test_what_is_refused_has_a_reason():
    for dtype in ("fp32", "bf16"):
        for name in QUANT_TYPES:
            embedding = name if name in EMBEDDING_TYPES else "none"
            scheme = Scheme(encoder=name, decoder=name, embedding=embedding)
            objections = list(BACKEND.capability.objections(dtype, scheme))
            assert bool(objections) == (name not in ("none", "4w", "8w")), name
            assert all(objection.reason for objection in objections)


@pytest.mark.lowering
def test_quantized_activations_stay_outside_as_the_reason_says():
    linear = nn.Linear(64, 32, bias=False).requires_grad_(False)
    weight = quantize_tensor(linear.weight, Quant(type="8da4w"))
    linear.weight = nn.Parameter(weight, requires_grad=False)
    graph = torch.export.export(linear, (torch.zeros(1, 64),), strict=True)
    with pytest.raises(BuildError, match="did not take all") as caught:
        lower_program("forward", graph, BACKEND)
    assert "choose_qparams_affine" in str(caught.value)


# --- what was written ----------------------------------------------------------------------


@pytest.mark.lowering
@pytest.mark.parametrize("unit", [*STREAM, *OFFLINE, *EMBEDDINGS], ids=str)
def test_what_was_written_is_the_graph(build, unit):
    outcomes = BACKEND.inspect(unit.method, build.file(unit), build.graph(unit))
    checks = [*CHECKS, "noise"] if unit.dtype == "bf16" else CHECKS
    assert [outcome.gate for outcome in outcomes] == [f"{unit.method}.mlx_{c}" for c in checks]
    assert all(outcome.passed for outcome in outcomes), list(map(str, outcomes))


@pytest.mark.lowering
@pytest.mark.parametrize("unit", STREAM, ids=str)
def test_it_is_after_linking(build, unit):
    outcomes = BACKEND.inspect(unit.method, build.linked(), build.graph(unit))
    assert all(outcome.passed for outcome in outcomes), list(map(str, outcomes))
    assert len(outcomes) == len(CHECKS)


@pytest.mark.lowering
def test_lowered_twice_it_is_the_same_file(build, tmp_path):
    unit = STREAM[2]
    build.write(unit, tmp_path / "again.pte")
    assert (tmp_path / "again.pte").read_bytes() == build.file(unit).read_bytes()


@pytest.mark.lowering
def test_the_decoder_in_a_stream_is_the_other_familys(build):
    """Past three wraps of the ring, against attention and caches by other operators."""
    unit = STREAM[1]
    quant = Quant.parse(unit.quant)
    decode = eager(checkpoint(SIZE), unit.method, "streaming", SETTINGS, CUSTOM_SDPA, quant)
    run = Interpreter(read_program(build.linked(), unit.method))
    slots = run.state["decoder.layers.0.attention.kv_cache.k_cache"].shape[2]
    embeds, start = random_embeds(230, 128), 0
    with torch.no_grad():
        for length in (5, 1, 1, 3, *[1] * 70, *[16] * 9):
            part = embeds[:, start : start + length].contiguous()
            positions = torch.arange(start, start + length)
            wanted, (got,) = decode(part, positions), run(part, positions)
            torch.testing.assert_close(got, wanted, atol=2e-5, rtol=1e-5)
            start += length
    assert start > 3 * slots


@pytest.mark.lowering
def test_the_encoder_in_a_stream_is_the_other_familys(build):
    """Two utterances: the second begins anew at position 0."""
    unit = STREAM[0]
    quant = Quant.parse(unit.quant)
    encode = eager(checkpoint(SIZE), unit.method, "streaming", SETTINGS, CUSTOM_SDPA, quant)
    run = Interpreter(read_program(build.linked(), unit.method))
    slots = run.state["kv_caches.0.k_cache"].shape[2]
    mel = random_mel(8 * 40)
    with torch.no_grad():
        for chunk in (*range(40), *range(6)):
            part = mel[..., 8 * chunk : 8 * chunk + 8].contiguous()
            positions = torch.arange(4 * chunk, 4 * chunk + 4)
            wanted, (got,) = encode(part, positions), run(part, positions)
            torch.testing.assert_close(got, wanted, atol=2e-5, rtol=1e-5)
    assert 3 * slots < 4 * 40


@pytest.mark.lowering
def test_an_embedding_of_int8_has_the_precision_of_int8(build):
    """By MLX's own dequantization in bf16 it had 7 bits: half of a step would be lost."""
    unit = EMBEDDINGS[-1]
    ids = torch.arange(256).unsqueeze(0)
    (got,) = Interpreter(build.read(unit))(ids)
    assert torch.equal(got, build.module(unit)(ids))


# --- mistakes are found --------------------------------------------------------------------


@pytest.fixture(scope="module")
def decoder(build: Builder) -> tuple[MlxProgram, Any]:
    """One with quantized weights, a state and sizes that vary, and its graph."""
    unit = STREAM[1]
    return build.read(unit), build.graph(unit)


def changed(program: MlxProgram, op: str, index: int = 0, **fields: Any) -> MlxProgram:
    """The program with other fields in one instruction of its main chain."""
    main = list(program.chains[program.main])
    at = [i for i, instruction in enumerate(main) if instruction.op == op][index]
    main[at] = Instruction(op, main[at].fields | fields)
    chains = list(program.chains)
    chains[program.main] = tuple(main)
    return replace(program, chains=tuple(chains))


@pytest.mark.lowering
@pytest.mark.parametrize(
    "part", ["original0_to_packed", "original1", "rope.inv_freq", "norm.weight"]
)
def test_one_bit_of_a_constant(decoder, part, tmp_path):
    program, graph = decoder
    tid = next(tid for tid in program.data if program.names[tid].endswith(part))
    extent = program.data[tid]
    content = bytearray(b"".join(bytes(chunk) for chunk in extent.chunks()))
    content[-3] ^= 1
    path = tmp_path / "constant"
    path.write_bytes(content)
    other = replace(program, data=program.data | {tid: replace(extent, path=path, offset=0)})
    (fault,) = constant_faults(other, graph)
    assert program.names[tid] in fault
    assert "values" in fault


@pytest.mark.lowering
def test_a_weight_that_is_not_there(decoder):
    program, graph = decoder
    tid = program.constants["decoder.norm.weight"]
    kept = {key: extent for key, extent in program.data.items() if key != tid}
    assert list(constant_faults(replace(program, data=kept), graph)) == [
        "decoder.norm.weight is missing"
    ]
    renamed = replace(program, names=program.names | {tid: "decoder.other.weight"})
    assert list(constant_faults(renamed, graph)) == [
        "decoder.other.weight is no weight of the graph",
        "decoder.norm.weight is missing",
    ]


@pytest.mark.lowering
def test_another_interface(decoder):
    program, graph = decoder
    assert not list(interface_faults(program, graph))
    (fault,) = interface_faults(replace(program, inputs=program.inputs[:1]), graph)
    assert "1 inputs instead of 2" in fault
    tid = program.inputs[0]
    meta = replace(program.meta[tid], dtype=torch.bfloat16)
    (fault,) = interface_faults(replace(program, meta=program.meta | {tid: meta}), graph)
    assert "input_embeds" in fault
    tid = program.state[0]
    sizes = (1, 2, 7, 32)
    meta = replace(program.meta[tid], sizes=sizes)
    (fault,) = interface_faults(replace(program, meta=program.meta | {tid: meta}), graph)
    assert program.names[tid] in fault
    assert list(interface_faults(replace(program, state=program.state[1:]), graph))


@pytest.mark.lowering
def test_an_operation_too_few_and_scales_of_another_weight(decoder):
    program, graph = decoder
    assert not list(operation_faults(program, graph))
    main = [op for op in program.chains[program.main] if op.op != "Silu"]
    (fault,) = operation_faults(replace(program, chains=(tuple(main),), main=0), graph)
    assert fault == "0 Silu for 1 silu"
    products = [op for op in program.chains[program.main] if op.op == "QuantizedMatmul"]
    swapped = changed(program, "QuantizedMatmul", scales=products[3].fields["scales"])
    (fault,) = operation_faults(swapped, graph)
    assert "do not belong together" in fault


@pytest.mark.lowering
@pytest.mark.parametrize(
    ("op", "fields"),
    [
        ("RMSNorm", {"eps": 1e-2}),
        ("Sdpa", {"mask": None}),
        ("Sdpa", {"scale": 0.2}),
        ("Slice", {"start": 0, "stop": 1}),
        ("QuantizedMatmul", {"biases": None}),  # no kernel takes it
        ("Reshape", {"shape": [3]}),  # nor is it possible
    ],
)
def test_other_fields_of_an_instruction(decoder, op, fields):
    program, graph = decoder
    (outcome,) = run_beside("text_decoder", changed(program, op, -1, **fields), graph)
    assert outcome.gate == "text_decoder.mlx_difference"
    assert not outcome.passed, outcome


@pytest.mark.lowering
def test_a_method_that_is_not_one_delegate(build, tmp_path):
    path = build.file(STREAM[2])
    with pytest.raises(PteError, match="no method text_decoder"):
        read_program(path, "text_decoder")
    other = tmp_path / "portable.pte"
    relu = torch.export.export(nn.ReLU(), (torch.zeros(2),), strict=True)
    with other.open("wb") as file:
        lower_program("forward", relu, KERNELS_ONLY).write_to_file(file)
    with pytest.raises(PteError, match="not one delegate"):
        read_program(other, "forward")
    outcomes = BACKEND.inspect("forward", other, build.graph(STREAM[2]))
    assert [outcome.passed for outcome in outcomes] == [False]


@pytest.mark.lowering
def test_a_payload_that_is_damaged(build, tmp_path):
    unit = STREAM[2]
    content = build.file(unit).read_bytes()
    at = content.index(b"MLX0")
    for start, new in ((at, b"XLM0"), (at + 4, b"\xff" * 8), (at + 20, b"\xff\xff\xff\x7f")):
        path = tmp_path / "damaged.pte"
        path.write_bytes(content[:start] + new + content[start + len(new) :])
        with pytest.raises(PteError, match="MLX payload"):
            read_program(path, unit.method)


@pytest.mark.lowering
def test_inputs_and_operations_that_are_not_the_methods(decoder):
    program, _ = decoder
    run = Interpreter(program)
    embeds, positions = torch.zeros(1, 2, 128), torch.arange(2)
    for inputs in (
        (embeds,),
        (embeds.bfloat16(), positions),
        (embeds[..., :64], positions),
        (torch.zeros(1, 500, 128), positions),
    ):
        with pytest.raises(ValueError, match=r"instead of|does not allow"):
            run(*inputs)
    unknown = Instruction("Flip", {})
    with pytest.raises(PteError, match="Flip"):
        Interpreter(replace(program, chains=(*program.chains, (unknown,))))


# --- operations, against their definitions -------------------------------------------------


def test_weights_unpack_as_mlx_packs_them():
    """Source: MLX's `quantize`: element i of a word has its lowest bit at bits x i."""
    words = torch.tensor([[0x76543210, 0xFEDCBA98]], dtype=torch.uint32)
    assert unpack(words, 4).tolist() == [list(range(16))]
    assert unpack(words, 8).tolist() == [[0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE]]


def test_a_scalar_widens_as_any_tensor_does():
    """In MLX; in torch a tensor without dimensions does not."""
    a, b = torch.ones(2, dtype=torch.bfloat16), torch.tensor(1e-3)
    result: Tensor = OPERATIONS["Add"](a=a, b=b)
    assert result.dtype == torch.float32
    assert (a + b).dtype == torch.bfloat16
    assert result.tolist() == pytest.approx([1.001, 1.001])


def test_a_causal_mask_ends_at_the_last_key():
    """Source: MLX's `scaled_dot_product_attention`: the lower right corner is seen."""
    q, k = torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 5, 4)
    v = torch.arange(5.0).view(1, 1, 5, 1).expand(1, 1, 5, 4)
    got = OPERATIONS["Sdpa"](q=q, k=k, v=v, scale=1.0, mask=None, causal=True)
    assert got[0, 0, :, 0].tolist() == [1.5, 2.0]  # means of 0 to 3 and of 0 to 4
