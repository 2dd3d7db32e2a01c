"""A graph in the terms of ExecuTorch's Vulkan backend, so that it is taken in one piece.

What the backend lacks, or computes as something else, is said in what it has:

- caches are written by `index_copy_`, for which it has no kernel: left alone, every cache
  would travel between GPU and CPU in every call;
- its attention takes no mask where it has a cache, and PyTorch's own decomposes into ops
  without kernels;
- its GELU is the tanh approximation, whatever the graph asks for (5e-4 off);
- stacking two 4-dimensional tensors, `where`, and sums with a Python number have no kernel,
  or none for these shapes.

Each rewrite is exact, but for the order of sums in attention and 2e-7 in GELU.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.fx import Graph, Node

aten = torch.ops.aten

# Added to the scores of masked keys; finite, as in `model.attention`.
MASKED = -1e9
# Abramowitz and Stegun, 7.1.26: erfc(x) = (a1 t + ... + a5 t^5) exp(-x^2), t = 1 / (1 + p x),
# within 1.5e-7 for x >= 0.
ERFC_P = 0.3275911
ERFC = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)


def rewrite(program: ExportedProgram) -> None:
    """Rewrite one exported method in place."""
    graph = program.graph
    _Rewriter(graph, program.graph_signature.user_inputs).run()
    graph.eliminate_dead_code()
    graph.lint()
    program.graph_module.recompile()


class _Rewriter:
    """Rewrites one graph; what layers share is computed once."""

    def __init__(self, graph: Graph, user_inputs: Iterable[Any]) -> None:
        self.graph = graph
        self.user_inputs = set(user_inputs)
        values = (node.meta.get("val") for node in graph.nodes)
        self.mode = next(value.fake_mode for value in values if isinstance(value, FakeTensor))
        self.stack: Any = None  # of the node being rewritten
        self.biases: dict[Node, Node] = {}
        self.writes: dict[tuple[Any, ...], tuple[Node, Node, Node]] = {}

    def run(self) -> None:
        rewrites = {
            aten.rms_norm.default: self._rms_norm,
            aten.gelu.default: self._gelu,
            aten.scaled_dot_product_attention.default: self._attention,
            aten.index_copy_.default: self._index_copy,
            aten.flatten.using_ints: self._interleave,
            aten.where.self: self._where,
            aten.transpose.int: self._transpose,
            aten.outer.default: self._outer,
            aten.copy_.default: self._copy,
            aten.pad.default: self._pad,
        }
        for node in list(self.graph.nodes):
            if node.op == "call_function" and node.target in rewrites:
                self.stack = node.meta.get("nn_module_stack")
                with self.graph.inserting_before(node):
                    new = rewrites[node.target](node)
                if new is not None:
                    node.replace_all_uses_with(new)
                    self.graph.erase_node(node)

    def _call(self, op: Any, *args: Any) -> Node:
        """Add one op, with its value's shape and dtype."""
        node = self.graph.call_function(op, args)
        values = torch.fx.map_arg(args, lambda argument: argument.meta["val"])
        with self.mode:
            node.meta["val"] = op(*values)
        if self.stack is not None:
            node.meta["nn_module_stack"] = self.stack
        return node

    def _rms_norm(self, node: Node) -> Node:
        """Spelled out as the backend's pass looks for it, which makes one kernel of it."""
        call = self._call
        x, _, weight, eps = node.args
        mean = call(aten.mean.dim, call(aten.mul.Tensor, x, x), [-1], True)
        scale = call(aten.rsqrt.default, call(aten.add.Tensor, mean, eps))
        return call(aten.mul.Tensor, call(aten.mul.Tensor, x, scale), weight)

    def _gelu(self, node: Node) -> Node:
        """x erfc(-x / sqrt(2)) / 2, as relu(x) - |x| erfc(|x| / sqrt(2)) / 2."""
        call, x = self._call, node.args[0]
        size = call(aten.abs.default, x)
        t = call(aten.mul.Tensor, size, ERFC_P / math.sqrt(2))
        t = call(aten.add.Tensor, t, 1.0)
        t = call(aten.rsqrt.default, call(aten.mul.Tensor, t, t))  # 1 / t
        polynomial = call(aten.mul.Tensor, t, ERFC[-1] / 2)
        for coefficient in reversed(ERFC[:-1]):
            polynomial = call(aten.add.Tensor, polynomial, coefficient / 2)
            polynomial = call(aten.mul.Tensor, polynomial, t)
        square = call(aten.mul.Tensor, call(aten.mul.Tensor, x, x), -0.5)
        tail = call(aten.mul.Tensor, polynomial, call(aten.exp.default, square))
        tail = call(aten.mul.Tensor, tail, size)
        return call(aten.sub.Tensor, call(aten.relu.default, x), tail)

    def _transpose(self, node: Node) -> Node | None:
        """Frames first, in memory as well.

        Over a transposed tensor PyTorch's linear is a batched product with an expanded weight.
        """
        if node.meta["val"].ndim != 3:
            return None
        return self._call(aten.contiguous.default, self._call(aten.transpose.int, *node.args))

    def _attention(self, node: Node) -> Node:
        """Two products around a softmax, the queries of one key head side by side.

        q (1, H, T, D), k and v (1, G, S, D), mask (1, 1, T, S) bool -> (1, H, T, D). The first
        product gives (G, S, R T), R = H / G: transposed, so that queries are turned, and not
        the whole cache.
        """
        call = self._call
        q, k, v, mask = cast("list[Node]", node.args[:4])
        _, heads, length, width = q.meta["val"].shape
        groups, slots = k.meta["val"].shape[1:3]
        tokens = self._size(q, 2) if isinstance(length, torch.SymInt) else length
        keys = self._size(k, 2) if isinstance(slots, torch.SymInt) else slots
        q = call(aten.mul.Tensor, q, 1 / math.sqrt(width))
        q = call(aten.reshape.default, q, [groups, -1, width])
        k = call(aten.reshape.default, k, [groups, keys, width])
        v = call(aten.reshape.default, v, [groups, keys, width])
        scores = call(aten.bmm.default, k, call(aten.transpose.int, q, 1, 2))
        scores = call(aten.transpose.int, scores, 1, 2)
        scores = call(aten.reshape.default, scores, [groups, heads // groups, tokens, keys])
        scores = call(aten.add.Tensor, scores, self._bias(mask))
        scores = call(aten.softmax.int, scores, -1)
        scores = call(aten.reshape.default, scores, [groups, -1, keys])
        y = call(aten.bmm.default, scores, v)
        return call(aten.reshape.default, y, [1, heads, tokens, width])

    def _size(self, node: Node, dim: int) -> Node:
        return self._call(aten.sym_size.int, node, dim)

    def _bias(self, mask: Node) -> Node:
        """What a mask adds to scores: 0 where it is True."""
        if mask not in self.biases:
            with self.graph.inserting_after(mask):
                seen = self._call(aten.to.dtype, mask, torch.float32)
            with self.graph.inserting_after(seen):
                hidden = self._call(aten.sub.Tensor, seen, 1.0)
            with self.graph.inserting_after(hidden):
                self.biases[mask] = self._call(aten.mul.Tensor, hidden, -MASKED)
        return self.biases[mask]

    def _index_copy(self, node: Node) -> Node:
        """Write rows of a cache (1, G, S, D) by arithmetic over all of it.

        Each slot takes the row that is written to it, or keeps its own: products with 0 and 1,
        so that not a bit of either changes.
        """
        call = self._call
        cache, dim, indices, rows = cast("list[Any]", node.args)
        assert dim == 2
        slots = cache.meta["val"].shape[2]
        # Each layer's ring takes its own remainder of the same positions.
        ring = indices.target is aten.remainder.Scalar
        key = (*indices.args, slots) if ring else (indices, slots)
        if key not in self.writes:
            self.writes[key] = self._slots(indices, slots)
        source, written, kept = self.writes[key]
        rows = call(aten.index.Tensor, rows, [None, None, source])
        rows = call(aten.mul.Tensor, rows, written)
        old = call(aten.mul.Tensor, cache, kept)
        new = call(aten.add.Tensor, old, rows)
        return call(aten.copy_.default, cache, new)

    def _copy(self, node: Node) -> None:
        """Keep the tensor that is copied in the form of the one it is copied to.

        The backend writes state by the op that makes its new value, whose result then has the
        form of its inputs, and not of the state.
        """
        state, value = cast("list[Node]", node.args)
        old = self._call(aten.mul.Tensor, state, 0.0)
        node.update_arg(1, self._call(aten.add.Tensor, old, value))

    def _slots(self, indices: Node, slots: int) -> tuple[Node, Node, Node]:
        """For each slot the row it takes, (S,) int; whether it takes one; whether not.

        Args:
            indices: (T,) int64, where each row goes.

        Returns:
            The second and third (S, 1) float32, 0 or 1.
        """
        call = self._call
        length = indices.meta["val"].shape[0]
        tokens = self._size(indices, 0) if isinstance(length, torch.SymInt) else length
        slot = call(aten.unsqueeze.default, call(aten.arange.default, slots), 1)
        hits = call(aten.eq.Tensor, slot, call(aten.unsqueeze.default, indices, 0))
        hits = call(aten.to.dtype, hits, torch.float32)  # (S, T)
        written = call(aten.sum.dim_IntList, hits, [-1], True)
        kept = call(aten.add.Tensor, call(aten.neg.default, written), 1.0)
        rows = call(aten.to.dtype, call(aten.arange.default, tokens), torch.float32)
        source = call(aten.mul.Tensor, hits, rows)
        source = call(aten.sum.dim_IntList, source, [-1], True)
        source = call(aten.squeeze.dims, source, [1])
        source = call(aten.to.dtype, source, torch.int64)
        return source, written, kept

    def _pad(self, node: Node) -> Node:
        """With an integer 0: the backend's serializer takes 0.0 for it, and then for others."""
        new = self.graph.call_function(aten.constant_pad_nd.default, (*node.args[:2], 0))
        new.meta = dict(node.meta)  # computed again, the size would lose its bounds
        return new

    def _outer(self, node: Node) -> Node:
        """Angles of RoPE, without a size as a number: none crosses to a delegate or from one."""
        call = self._call
        positions, frequencies = cast("list[Node]", node.args)
        source = positions
        while source.op == "call_function" and source.target is not aten.arange.default:
            source = source.all_input_nodes[0]
        if source.op == "call_function":
            positions = self._frames()
        return call(aten.mul.Tensor, call(aten.unsqueeze.default, positions, 1), frequencies)

    def _frames(self) -> Node:
        """0, 1, ... for the frames behind the convolutions, (T,) float32, from the input alone."""
        call = self._call
        mel = next(
            n for n in self.graph.nodes if n.op == "placeholder" and n.name in self.user_inputs
        )
        strides = [
            cast("list[int]", node.args[3])[0] if len(node.args) > 3 else 1
            for node in self.graph.find_nodes(op="call_function", target=aten.conv1d.default)
        ]
        frames = call(aten.select.int, call(aten.select.int, mel, 0, 0), 0, 0)
        frames = call(aten.slice.Tensor, frames, 0, 0, sys.maxsize, math.prod(strides))
        counts = call(aten.cumsum.default, call(aten.ones_like.default, frames), 0)
        return call(aten.sub.Tensor, counts, 1.0)

    def _interleave(self, node: Node) -> Node | None:
        """`stack((a, b), -1).flatten(-2)` of (1, T, H, D), without five dimensions."""
        call, stack = self._call, cast("Node", node.args[0])
        if stack.target is not aten.stack.default:
            return None
        parts, _ = cast("list[Any]", stack.args)
        batch, length, heads, width = parts[0].meta["val"].shape
        assert batch == 1
        tokens = self._size(parts[0], 1) if isinstance(length, torch.SymInt) else length
        columns = [call(aten.reshape.default, x, [tokens, heads, width, 1]) for x in parts]
        pairs = call(aten.cat.default, columns, -1)
        return call(aten.reshape.default, pairs, [1, tokens, heads, 2 * width])

    def _where(self, node: Node) -> Node | None:
        """`where(condition, x, 0)` as a product: in the delegate memory starts as zeros."""
        condition, x, other = cast("list[Node]", node.args)
        if other.target is not aten.zeros_like.default:
            return None
        factor = self._call(aten.to.dtype, condition, torch.float32)
        return self._call(aten.mul.Tensor, x, factor)
