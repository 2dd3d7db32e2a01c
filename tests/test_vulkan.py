"""Programs for Vulkan: lowered here, run by a second implementation, read back.

There is no GPU here, and no Vulkan in ExecuTorch's wheel. `tests.vulkan_interpreter` runs what
was written, op by op as the shaders define them, with the state between calls.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

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

QUANTIZED = [key for key, quant in UNITS.items() if quant is not NONE]


class Unit:
    """What was lowered of a method, and the graph that it has to be."""

    def __init__(self, folder: Path, method: str, mode: str, quant: Quant) -> None:
        self.method, self.mode, self.quant = method, mode, quant
        self.path = folder / f"{method}-{mode}.pte"
        write(method, self._graph(), VulkanBackend(), self.path)
        self.graph = self._graph()

    def eager(self) -> nn.Module:
        """The method with its state as it starts."""
        folder = checkpoint(ONE_LAYER)
        return eager(folder, self.method, self.mode, attention=STANDARD, quant=self.quant)

    def _graph(self) -> torch.export.ExportedProgram:
        build = builder(checkpoint(ONE_LAYER), self.mode, attention=STANDARD)
        inputs = build.example_inputs(self.method, torch.float32)
        shapes = build.dynamic_shapes(self.method)
        with torch.no_grad():
            return torch.export.export(self.eager(), inputs, dynamic_shapes=shapes, strict=True)


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
    module = unit.eager()
    run = Method(unit.path, "audio_encoder")
    for frames in (8, 160, 8 * 256):  # one token, the example's length, the bound
        mel = random_mel(frames)
        torch.testing.assert_close(run(mel), module(mel), atol=1e-4, rtol=0)


@torch.no_grad()
def test_the_streaming_encoder_computes_what_eager_does(units):
    unit = units["encode_audio_chunk", "streaming"]
    module = unit.eager()
    run = Method(unit.path, "encode_audio_chunk")
    for frames, seed in ((48, 1), (248, 2)):  # a second utterance, which wraps the ring
        mel = random_mel(frames, seed)
        wanted = stream_encode(module, mel)
        torch.testing.assert_close(stream_encode(run, mel), wanted, atol=1e-4, rtol=0)


@pytest.mark.parametrize("mode", ["offline", "streaming"])
@torch.no_grad()
def test_the_decoder_computes_what_eager_does(units, mode):
    """Over five wraps of the ring of 32, and on what an earlier utterance left."""
    unit = units["text_decoder", mode]
    module = unit.eager()
    run = Method(unit.path, "text_decoder")
    for seed, prefill in ((1, 16), (2, 1)):
        embeds = random_embeds(100, 96, seed)
        wanted = stream_decode(module, embeds, prefill)
        torch.testing.assert_close(stream_decode(run, embeds, prefill), wanted, atol=1e-4, rtol=0)


@torch.no_grad()
def test_the_embedding_looks_up_what_eager_does(units):
    unit = units["token_embedding", "offline"]
    ids = torch.tensor([[0, 1279, 5, 5]])
    assert torch.equal(Method(unit.path, "token_embedding")(ids), unit.eager()(ids))


@pytest.mark.parametrize("key", UNITS, ids="-".join)
def test_what_was_written_reads_back(units, key):
    unit = units[key]
    outcomes = inspect(unit.method, unit.path, unit.graph)
    assert len(outcomes) == 4
    assert all(outcome.passed for outcome in outcomes), outcomes


def test_a_linked_program_reads_back(units, linked):
    for (method, mode), unit in units.items():
        if mode == "streaming" or method == "token_embedding":
            outcomes = inspect(method, linked, unit.graph)
            assert all(outcome.passed for outcome in outcomes), outcomes


def failed(outcomes):
    return [outcome.gate for outcome in outcomes if not outcome.passed]


@pytest.mark.parametrize("key", QUANTIZED, ids="-".join)
def test_one_changed_byte_of_any_constant_is_found(units, key, tmp_path):
    unit = units[key]
    (delegate,) = delegates(read(unit.path), unit.method)
    content = unit.path.read_bytes()
    assert delegate.constants
    changed = tmp_path / "changed.pte"
    for extent in {c.offset: c for c in delegate.constants if c.size > 8}.values():
        at = extent.offset + extent.size // 2
        changed.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        assert f"{unit.method}.weights" in failed(inspect(unit.method, changed, unit.graph))


def test_another_graph_is_not_taken_for_it(units):
    """The same shapes; of the decoder's state, a flat cache is not a ring."""
    ring, flat = (units["text_decoder", mode] for mode in ("streaming", "offline"))
    assert "text_decoder.weights" in failed(inspect("text_decoder", ring.path, flat.graph))
    encoder = units["audio_encoder", "offline"].graph
    wrong = failed(inspect("text_decoder", flat.path, encoder))
    assert {"text_decoder.delegated", "text_decoder.state", "text_decoder.signature"} <= set(wrong)


class Sum(nn.Module):
    """GELU of what was fed to it so far."""

    total: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(1, 4001))

    def forward(self, x):
        self.total.copy_(self.total + x)
        return F.gelu(self.total)


class Forgetful(VulkanBackend):
    """Without the option that keeps state: ExecuTorch's default."""

    def partitioners(self, method):
        from executorch.backends.vulkan.partitioner.vulkan_partitioner import VulkanPartitioner

        return (VulkanPartitioner({}),)


@pytest.mark.parametrize("backend", [VulkanBackend(), Forgetful()], ids=["ours", "default"])
@torch.no_grad()
def test_state_that_would_be_lost_is_found(tmp_path, backend):
    """ExecuTorch's default lowers, and would run; what it is fed it forgets."""
    x, path = torch.linspace(-9, 9, 4001).unsqueeze(0), tmp_path / "sum.pte"
    write("forward", torch.export.export(Sum(), (x,), strict=True), backend, path)
    wrong = failed(inspect("forward", path, torch.export.export(Sum(), (x,), strict=True)))
    if isinstance(backend, Forgetful):
        assert "forward.state" in wrong
        return
    assert not wrong
    run = Method(path, "forward")
    for count in (1, 2):
        # Vulkan's own GELU is the tanh approximation, 5e-4 off.
        assert (run(x) - F.gelu(count * x.double())).abs().max() <= 1e-6
    (delegate,) = delegates(read(path), "forward")
    assert "aten.gelu.default" not in {call.name for call in delegate.graph.chain}


@torch.no_grad()
def test_an_int8_embedding_stays_with_its_kernel(tmp_path):
    embedding = nn.Embedding(64, 96).requires_grad_(False)
    weight = quantize_tensor(embedding.weight.data, Quant.parse("8w.axis"))
    embedding.weight = nn.Parameter(weight, requires_grad=False)
    ids, path = torch.tensor([[0, 63, 5]]), tmp_path / "embedding.pte"

    def graph():
        return torch.export.export(embedding, (ids,), strict=True)

    write("token_embedding", graph(), VulkanBackend(), path)
    assert describe(path).methods["token_embedding"].delegates == {}
    assert not failed(inspect("token_embedding", path, graph()))
    torch.testing.assert_close(Program(path).method("token_embedding")(ids), embedding(ids))


def test_int4_is_packed_as_the_kernels_read_it():
    """By hand: 8 is added, the first value of a pair in the low half; sums of groups."""
    qdata = torch.zeros(1, 64, dtype=torch.int8)
    qdata[0, :4] = torch.tensor([7, -8, 1, 1])
    weight = SimpleNamespace(qdata=qdata, scale=torch.tensor([[0.5, 0.25]]))
    packed, scales, sums = pack_int4(weight)
    assert packed.shape == (1, 32)
    assert packed[0, :3].tolist() == [0x0F, 0x99, 0x88]
    assert scales.tolist() == [[0.5, 0, 0, 0], [0.25, 0, 0, 0]]
    assert sums.tolist() == [[1] + [0] * 7, [0] * 8]
