"""What ExecuTorch's AOTInductor backends make of a graph, all but the compiler's part."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import torch
from executorch.exir.program._program import _gen_edge_manager_for_partitioners
from torch.export.pt2_archive._package_weights import TensorProperties, Weights


def partitioned(method, program, backend, partitioner):
    """The method in the edge dialect, its nodes tagged by the partitioner."""
    edge = _gen_edge_manager_for_partitioners(
        {method: [partitioner]}, {method: program}, backend.compile_config(), None
    ).exported_program(method)
    return edge, partitioner.partition(edge).partition_tags


def everything_is_one_delegate(method, program, backend, partitioner):
    """Every op, and every weight, cache and constant, goes into one delegate."""
    sizes = _input_sizes(program)
    edge, tags = partitioned(method, program, backend, partitioner)
    assert len(tags) == 1
    assert _input_sizes(edge) == sizes  # what varied has not become the example's
    user_inputs = edge.graph_signature.user_inputs
    for node in edge.graph.nodes:
        if node.op == "call_function" or (
            node.op == "placeholder" and node.name not in user_inputs
        ):
            assert node.meta["delegation_tag"] in tags, node
    return edge


def _input_sizes(program):
    names = program.graph_signature.user_inputs
    nodes = (node for node in program.graph.nodes if node.name in names)
    return {node.name: str(list(node.meta["val"].shape)) for node in nodes if node.op != "output"}


def stand_in_for_the_compiler(monkeypatch, backend):
    """Let ExecuTorch's AOTInductor backends run here, all but the compiler and the device.

    What it would compile is bytes that say of which method; weights are those of the graph, in
    the form in which the compiler hands them over.
    """
    count = itertools.count()
    folder = Path(tempfile.mkdtemp(prefix="aoti-"))

    def compile_nothing(module, inputs, *, options):
        library = folder / f"{next(count)}.wrapper.so"
        everything = dict(module.named_parameters()) | dict(module.named_buffers())
        # Scalars are written into the code.
        names = {name: tensor for name, tensor in everything.items() if tensor.dim() > 0}
        library.write_bytes("\n".join(names).encode())
        if options["aot_inductor.package_constants_on_disk_format"] == "pickle_weights":
            weights = {name: (tensor, TensorProperties(tensor)) for name, tensor in names.items()}
            return [str(library), Weights(weights)]
        blob = folder / f"{library.stem}_weights.blob"
        blob.write_bytes(b"".join(raw(tensor) for tensor in names.values()))
        return [str(library), str(blob)]

    monkeypatch.setattr("torch._inductor.aot_compile", compile_nothing)
    # There is no such device: everything stays where it is.
    stay = classmethod(lambda _cls, program, _device, _specs: program)
    monkeypatch.setattr(backend, "move_program_to_device", stay)


def raw(tensor):
    """A tensor's bytes."""
    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
