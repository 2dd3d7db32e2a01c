"""What AOTInductor's partitioner makes of a graph, up to where its compiler would start."""

from __future__ import annotations

from executorch.exir.program._program import _gen_edge_manager_for_partitioners


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
