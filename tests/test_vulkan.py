"""Programs for Vulkan: lowered here, run by a second implementation, read back.

There is no GPU here, and no Vulkan in ExecuTorch's wheel. `tests.vulkan_interpreter` runs what
was written, op by op as the shaders define them, with the state between calls.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from executorch.runtime import Runtime
from torch import nn

from tests.models import (
    NONE,
    ONE_LAYER,
    builder,
    checkpoint,
    eager,
    random_embeds,
    random_mel,
    stream_decode,
    stream_encode,
)
from tests.vulkan_interpreter import Method
from voxtral_build.backends.lowering import lower_program
from voxtral_build.backends.vulkan import VulkanBackend
from voxtral_build.backends.vulkan_readback import delegates, inspect, pack_int4
from voxtral_build.model.attention import STANDARD
from voxtral_build.pte.inspect import describe, undelegated_linears
from voxtral_build.pte.link import link
from voxtral_build.pte.program_file import read
from voxtral_build.quant import Quant
from voxtral_build.quantization import quantize_tensor
from voxtral_build.runtime.program import Program

pytestmark = pytest.mark.lowering

# Between them both modes, both precisions, and each kind of cache.
UNITS = {
    ("audio_encoder", "offline"): NONE,
    ("text_decoder", "offline"): NONE,
    ("encode_audio_chunk", "streaming"): Quant.parse("4w.g32"),
    ("text_decoder", "streaming"): Quant.parse("8da4w.g32"),
    ("token_embedding", "offline"): Quant.parse("4w.g32"),
}


class Unit:
    """A method in eager, its graph, and what was lowered of it."""

    def __init__(self, folder: Path, method: str, mode: str, quant: Quant) -> None:
        self.method, self.mode, self.quant = method, mode, quant
        self.module = eager(checkpoint(ONE_LAYER), method, mode, attention=STANDARD, quant=quant)
        self.path = folder / f"{method}-{mode}.pte"
        write(method, self.graph(), VulkanBackend(), self.path)

    def graph(self) -> torch.export.ExportedProgram:
        build = builder(checkpoint(ONE_LAYER), self.mode, attention=STANDARD)
        inputs = build.example_inputs(self.method, torch.float32)
        shapes = build.dynamic_shapes(self.method)
        with torch.no_grad():
            return torch.export.export(self.module, inputs, dynamic_shapes=shapes, strict=True)


def write(method, program, backend, path):
    with path.open("wb") as file:
        lower_program(method, program, backend).write_to_file(file)


@pytest.fixture(scope="module")
def units(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vulkan")
    return {key: Unit(folder, *key, quant) for key, quant in UNITS.items()}


@pytest.fixture(scope="module")
def linked(units, tmp_path_factory):
    """The streaming artifact's program, of three methods."""
    path = tmp_path_factory.mktemp("linked") / "model.pte"
    parts = [unit.path for (method, mode), unit in units.items()
             if mode == "streaming" or method == "token_embedding"]  # fmt: skip
    link(parts, path, {"vocab_size": 1280})
    return path


@pytest.mark.parametrize("key", UNITS, ids="-".join)
def test_a_method_is_one_delegate_and_what_positions_decide(units, key):
    unit = units[key]
    described = describe(unit.path).methods[unit.method]
    assert described.delegates == {"VulkanBackend": 1}
    assert undelegated_linears(described) == 0
    # RoPE's angles with their cosines and sines; where in the ring; counting an input's frames.
    wanted = {"audio_encoder": 12, "encode_audio_chunk": 8, "token_embedding": 0}
    wanted["text_decoder"] = 8 if unit.mode == "streaming" else 7
    assert sum(described.operators.values()) == wanted[unit.method]
    assert set(described.operators) <= set(Runtime.get().operator_registry.operator_names)


@torch.no_grad()
def test_the_offline_encoder_computes_what_eager_does(units):
    unit = units["audio_encoder", "offline"]
    run = Method(unit.path, "audio_encoder")
    for frames in (8, 160, 8 * 256):  # one token, the example's length, the bound
        mel = random_mel(frames)
        torch.testing.assert_close(run(mel), unit.module(mel), atol=1e-4, rtol=0)


@torch.no_grad()
def test_the_streaming_encoder_computes_what_eager_does(units):
    unit = units["encode_audio_chunk", "streaming"]
    run = Method(unit.path, "encode_audio_chunk")
    for frames, seed in ((48, 1), (248, 2)):  # a second utterance, which wraps the ring
        mel = random_mel(frames, seed)
        wanted = stream_encode(unit.module, mel)
        torch.testing.assert_close(stream_encode(run, mel), wanted, atol=1e-4, rtol=0)


@pytest.mark.parametrize("mode", ["offline", "streaming"])
@torch.no_grad()
def test_the_decoder_computes_what_eager_does(units, mode):
    """Over five wraps of the ring of 32, and on what an earlier utterance left."""
    unit = units["text_decoder", mode]
    run = Method(unit.path, "text_decoder")
    for seed, prefill in ((1, 16), (2, 1)):
        embeds = random_embeds(100, 96, seed)
        wanted = stream_decode(unit.module, embeds, prefill)
        torch.testing.assert_close(stream_decode(run, embeds, prefill), wanted, atol=1e-4, rtol=0)


@torch.no_grad()
def test_the_embedding_looks_up_what_eager_does(units):
    unit = units["token_embedding", "offline"]
    ids = torch.tensor([[0, 1279, 5, 5]])
    assert torch.equal(Method(unit.path, "token_embedding")(ids), unit.module(ids))


@pytest.mark.parametrize("key", UNITS, ids="-".join)
def test_what_was_written_reads_back(units, key):
    unit = units[key]
    outcomes = inspect(unit.method, unit.path, unit.graph())
    assert len(outcomes) == 4
    assert all(outcome.passed for outcome in outcomes), outcomes


def test_a_linked_program_reads_back(units, linked):
    for (method, mode), unit in units.items():
        if mode == "streaming" or method == "token_embedding":
            outcomes = inspect(method, linked, unit.graph())
            assert all(outcome.passed for outcome in outcomes), outcomes


def failed(outcomes):
    return [outcome.gate for outcome in outcomes if not outcome.passed]


@pytest.mark.parametrize("key", UNITS, ids="-".join)
def test_one_changed_byte_of_any_constant_is_found(units, key, tmp_path):
    unit = units[key]
    graph, program = unit.graph(), read(unit.path)
    (delegate,) = delegates(program, unit.method)
    content = unit.path.read_bytes()
    assert delegate.constants
    changed = tmp_path / "changed.pte"
    for extent in {c.offset: c for c in delegate.constants if c.size > 8}.values():
        at = extent.offset + extent.size // 2
        changed.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        assert f"{unit.method}.weights" in failed(inspect(unit.method, changed, graph))


def test_another_graph_is_not_taken_for_it(units):
    """The same shapes; of the decoder's state, a flat cache is not a ring."""
    ring, flat = (units["text_decoder", mode] for mode in ("streaming", "offline"))
    assert "text_decoder.weights" in failed(inspect("text_decoder", ring.path, flat.graph()))
    encoder = units["audio_encoder", "offline"].graph()
    wrong = failed(inspect("text_decoder", flat.path, encoder))
    assert {"text_decoder.delegated", "text_decoder.state", "text_decoder.signature"} <= set(wrong)


class Sum(nn.Module):
    """What was fed to it so far."""

    total: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(1, 4))

    def forward(self, x):
        self.total.copy_(self.total + x)
        return self.total * 2


class Forgetful(VulkanBackend):
    """Without the option that keeps state: ExecuTorch's default."""

    def partitioners(self, method):
        from executorch.backends.vulkan.partitioner.vulkan_partitioner import VulkanPartitioner

        return (VulkanPartitioner({}),)


@torch.no_grad()
def test_state_that_is_lost_is_found(tmp_path):
    """It lowers, and would run; what it is fed it forgets."""
    x = torch.ones(1, 4)
    totals = {}
    for backend in (VulkanBackend(), Forgetful()):
        path = tmp_path / "sum.pte"
        write("forward", torch.export.export(Sum(), (x,), strict=True), backend, path)
        outcomes = inspect("forward", path, torch.export.export(Sum(), (x,), strict=True))
        totals[type(backend).__name__] = "forward.state" in failed(outcomes)
    assert totals == {"VulkanBackend": False, "Forgetful": True}


@pytest.mark.parametrize("slug", ["none", "8w.axis"])
@torch.no_grad()
def test_an_embedding_that_vulkan_does_not_take_stays_with_a_kernel(tmp_path, slug):
    embedding = nn.Embedding(64, 96).requires_grad_(False)
    if slug != "none":
        weight = quantize_tensor(embedding.weight.data, Quant.parse(slug))
        embedding.weight = nn.Parameter(weight, requires_grad=False)
    ids, path = torch.tensor([[0, 63, 5]]), tmp_path / "embedding.pte"

    def graph():
        return torch.export.export(embedding, (ids,), strict=True)

    write("token_embedding", graph(), VulkanBackend(), path)
    assert describe(path).methods["token_embedding"].delegates == {}
    assert not failed(inspect("token_embedding", path, graph()))
    torch.testing.assert_close(Program(path).method("token_embedding")(ids), embedding(ids))


class Gelu(nn.Module):
    def forward(self, x):
        return F.gelu(x)


@torch.no_grad()
def test_gelu_is_exact(tmp_path):
    """Vulkan's own is the tanh approximation, whatever is asked for: 5e-4 off."""
    x = torch.linspace(-9, 9, 4001).unsqueeze(0)
    path = tmp_path / "gelu.pte"
    write("forward", torch.export.export(Gelu(), (x,), strict=True), VulkanBackend(), path)
    y, exact = Method(path, "forward")(x), F.gelu(x.double())
    assert (y - exact).abs().max() <= 1e-6
    (delegate,) = delegates(read(path), "forward")
    assert "aten.gelu.default" not in {call.name for call in delegate.graph.chain}


def test_int4_is_packed_as_the_kernels_read_it():
    """By hand: 8 is added, the first value of a pair in the low half; sums of groups."""
    weight = torch.zeros(1, 64)
    weight[0, :4] = torch.tensor([7.0, -8.0, 1.0, 1.0])
    quantized = quantize_tensor(weight, Quant.parse("8da4w.g32"))
    assert quantized.qdata[0, :4].tolist() == [7, -8, 1, 1]
    packed, scales, sums = pack_int4(quantized)
    assert packed.shape == (1, 32)
    assert packed[0, :3].tolist() == [0x0F, 0x99, 0x88]
    assert scales.shape == (2, 4)
    assert scales[:, 0].tolist() == quantized.scale[0].tolist()
    assert sums.tolist() == [[1] + [0] * 7, [0] * 8]
