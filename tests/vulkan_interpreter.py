"""A second implementation of what runs a Vulkan program, on PyTorch: slow, and state and all.

It reads a `.pte` from scratch: the plan's instructions, kernels by their names in PyTorch, and
delegates by their op calls, each as ExecuTorch's shaders define it (GLSL in
`backends/vulkan/runtime/graph/ops/glsl`). Only what the model's programs hold is here.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch

from voxtral_build.backends.vulkan_readback import Delegate, delegates
from voxtral_build.pte.extents import Extent
from voxtral_build.pte.program_file import read, text
from voxtral_build.pte.scalar_types import scalar_type_name
from voxtral_build.pte.schema import table

DTYPES = {"FLOAT32": torch.float32, "INT32": torch.int32, "INT8": torch.int8,
          "UINT8": torch.uint8, "BOOL": torch.bool}  # fmt: skip
PLAN_DTYPES = {"FLOAT": torch.float32, "LONG": torch.int64, "INT": torch.int32}


def whole(extent: Extent) -> bytearray:
    return bytearray(b"".join(map(bytes, extent.chunks())))


class DelegateState:
    """A delegate that was loaded: constants, and memory that lives on between calls."""

    def __init__(self, delegate: Delegate) -> None:
        self.graph = delegate.graph
        self.memory: dict[int, Any] = {}
        for number, wrapped in enumerate(self.graph.values):
            value = wrapped.value
            if getattr(value, "constant_id", -1) >= 0:
                data = whole(delegate.constants[value.constant_id])
                dtype = DTYPES[value.datatype.name]
                self.memory[number] = torch.frombuffer(data, dtype=dtype).reshape(value.dims)
        for call in self.graph.chain:
            if call.name == "et_vk.prepack.default":
                self.memory[call.args[1]] = self.memory[call.args[0]].clone()

    def __call__(self, inputs: list[Any]) -> list[Any]:
        for number, value in zip(self.graph.input_ids, inputs, strict=True):
            # 64 bits become 32 on the way to the GPU.
            self.memory[number] = value.int() if value.dtype == torch.int64 else value
        for call in self.graph.chain:
            if call.name != "et_vk.prepack.default":
                self._run(call)
        return [self.memory[number] for number in self.graph.output_ids]

    def _get(self, number: int) -> Any:
        if number in self.memory:
            return self.memory[number]
        value = self.graph.values[number].value
        kind = type(value).__name__
        if kind == "ValueList":
            return [self._get(item) for item in value.items]
        if kind in ("IntList", "DoubleList", "BoolList"):
            return list(value.items)
        return None if kind == "Null" else getattr(value, f"{kind.lower()}_val")

    def _run(self, call: Any) -> None:
        *arguments, out = call.args
        value = self.graph.values[out].value
        name = call.name.replace(".", "_")
        result = getattr(self, f"_{name}", None)
        arguments = [self._get(number) for number in arguments]
        if result is not None:
            y = result(*arguments)
        else:
            package, base, overload = call.name.split(".")
            y = getattr(getattr(getattr(torch.ops, package), base), overload)(*arguments)
        if type(value).__name__ == "ValueList":
            for number, part in zip(value.items, y, strict=True):
                self.memory[number] = part
            return
        if isinstance(y, torch.Tensor):
            # What a tensor is declared as, it is, up to sizes that vary: those are upper bounds.
            y = y.to(DTYPES[value.datatype.name])
            assert y.ndim == len(value.dims)
            assert all(size <= bound for size, bound in zip(y.shape, value.dims, strict=True))
        self.memory[out] = y.clone() if isinstance(y, torch.Tensor) else y

    # What PyTorch has under another name, or does otherwise.

    def _sym_size_int(self, x: Any, dim: int) -> int:
        return int(x.shape[dim])

    def _add(self, x: int, y: int) -> int:
        return x + y

    def _sub(self, x: int, y: int) -> int:
        return x - y

    def _mul(self, x: int, y: int) -> int:
        return x * y

    def _floordiv(self, x: int, y: int) -> int:
        return x // y

    def _aten__to_copy_default(self, x: Any, *_: Any) -> Any:
        return x  # to what the result is declared as

    def _aten_clone_default(self, x: Any, *_: Any) -> Any:
        return x

    def _aten_arange_start_step(self, start: int, end: int, step: int, *_: Any) -> Any:
        return torch.arange(start, end, step)

    def _aten_add_Tensor(self, x: Any, y: Any, alpha: Any) -> Any:  # noqa: N802
        return x + alpha * y

    def _aten_sub_Tensor(self, x: Any, y: Any, alpha: Any) -> Any:  # noqa: N802
        return x - alpha * y

    def _aten_div_Tensor_mode(self, x: Any, y: Any, mode: str) -> Any:  # noqa: N802
        # floor(X / Y) in GLSL: of integers the division cuts towards zero first.
        assert mode == "floor"
        exact = x.is_floating_point()
        return torch.div(x, y, rounding_mode="floor" if exact else "trunc")

    def _aten_sum_dim_IntList(self, x: Any, dims: list[int], keep: bool, _: Any) -> Any:  # noqa: N802
        return x.sum(dims, keepdim=keep)

    def _aten_gelu_default(self, x: Any, _: Any) -> Any:
        return torch.nn.functional.gelu(x, approximate="tanh")

    def _aten_index_Tensor(self, x: Any, indices: list[Any]) -> Any:  # noqa: N802
        (dim,) = (d for d, index in enumerate(indices) if index is not None)
        return x.index_select(dim, indices[dim].long())

    def _aten_embedding_default(self, weight: Any, ids: Any, *_: Any) -> Any:
        return weight[ids.long()]

    def _aten_convolution_default(self, x: Any, weight: Any, bias: Any, *options: Any) -> Any:
        stride, padding, dilation, transposed, _, groups = options
        assert not transposed
        return torch.nn.functional.conv1d(x, weight, bias, stride, padding, dilation, groups)

    def _aten_linear_default(self, x: Any, weight: Any, bias: Any) -> Any:
        return torch.nn.functional.linear(x, weight, bias)

    def _et_vk_rms_norm_default(self, x: Any, weight: Any, eps: float) -> Any:
        return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight

    def _torchao_choose_qparams_affine_default(self, x: Any, *_: Any) -> tuple[Any, Any]:
        low, high = x.amin(-1).clamp(max=0), x.amax(-1).clamp(min=0)
        scale = ((high - low) / 255).clamp(min=torch.finfo(torch.float32).eps)
        zero = (-128 - (low / scale).round()).clamp(-128, 127)
        return scale, zero.int()

    def _unpacked(self, packed: Any) -> Any:
        low, high = (packed & 15).int() - 8, (packed >> 4).int() - 8
        return torch.stack((low, high), -1).flatten(-2)

    def _et_vk_linear_q4gsw_default(self, x: Any, weight: Any, scales: Any, group: int,
                                    bias: Any) -> Any:  # fmt: skip
        rows = weight.shape[0]
        values = self._unpacked(weight) * scales[:, :rows].t().repeat_interleave(group, 1)
        y = x @ values.t()
        return y if bias is None else y + bias[:rows]

    def _et_vk_linear_dq8ca_q4gsw_default(
        self, x: Any, scale: Any, zero: Any, weight: Any, sums: Any, scales: Any, group: int,
        bias: Any,
    ) -> Any:  # fmt: skip
        scale, zero = scale.reshape(*x.shape[:-1], 1), zero.reshape(*x.shape[:-1], 1)
        quantized = ((x / scale).round() + zero).clamp(-128, 127)
        rows = weight.shape[0]
        grouped = quantized.unflatten(-1, (-1, group))
        values = self._unpacked(weight).unflatten(-1, (-1, group)).float()
        products = torch.einsum("...gk,ngk->...gn", grouped, values)
        products = products - zero.unsqueeze(-1) * sums[:, :rows]
        y = (products * scales[:, :rows]).sum(-2) * scale
        return y if bias is None else y + bias[:rows]

    def _et_vk_embedding_q4gsw_default(self, weight: Any, scales: Any, group: int, ids: Any,
                                       linear_weight: bool) -> Any:  # fmt: skip
        assert linear_weight
        ids = ids.long()
        return self._unpacked(weight[ids]) * scales[ids].repeat_interleave(group, -1)


class Method:
    """One method of a `.pte`, as a runtime that has a Vulkan delegate would run it."""

    def __init__(self, path: Path, name: str) -> None:
        self.file = read(path)
        self.plan = next(p for p in self.file.program.executionPlan if text(p.name) == name)
        found = delegates(self.file, name)
        self.calls = [(DelegateState(delegate), delegate.arguments) for delegate in found]
        kinds = table("KernelTypes")
        self.fixed: dict[int, Any] = {}
        for number, value in enumerate(self.plan.values):
            if value.valType == kinds.Tensor and not value.val.allocationInfo:
                if value.val.dataBufferIdx:
                    self.fixed[number] = self._constant(value.val)
            elif value.valType == kinds.Int:
                self.fixed[number] = value.val.intVal
            elif value.valType == kinds.Bool:
                self.fixed[number] = value.val.boolVal
            elif value.valType == kinds.Double:
                self.fixed[number] = value.val.doubleVal
            elif value.valType == kinds.Null:
                self.fixed[number] = None

    def _constant(self, tensor: Any) -> Any:
        constants = self.file.program.constantSegment
        start = int(constants.offsets[tensor.dataBufferIdx])
        data = whole(self.file.segment(constants.segmentIndex))
        sizes = [int(size) for size in (() if tensor.sizes is None else tensor.sizes)]
        dtype = PLAN_DTYPES[scalar_type_name(tensor.scalarType)]
        count = math.prod(sizes)
        return torch.frombuffer(data[start:], dtype=dtype, count=count).reshape(sizes)

    def __call__(self, *inputs: Any) -> Any:
        values = dict(self.fixed)
        values.update(zip(map(int, self.plan.inputs), inputs, strict=True))
        calls = iter(self.calls)
        kind = table("InstructionArguments")
        (chain,) = self.plan.chains
        for instruction in chain.instructions:
            if instruction.instrArgsType == kind.DelegateCall:
                run, arguments = next(calls)
                count = len(run.graph.input_ids)
                results = run([values[number] for number in arguments[:count]])
                values.update(zip(arguments[count:], results, strict=True))
            elif instruction.instrArgsType == kind.KernelCall:
                self._kernel(instruction.instrArgs, values)
        (output,) = self.plan.outputs
        return values[int(output)]

    def _kernel(self, call: Any, values: dict[int, Any]) -> None:
        operator = self.plan.operators[call.opIndex]
        package, _, name = text(operator.name).partition("::")
        kernel = getattr(getattr(getattr(torch.ops, package), name), text(operator.overload))
        numbers = [int(number) for number in call.args]
        positional, keywords = [], {}
        for argument, number in zip(kernel._schema.arguments, numbers, strict=False):
            if argument.is_out:
                dtype = PLAN_DTYPES[scalar_type_name(self.plan.values[number].val.scalarType)]
                keywords[argument.name] = torch.empty(0, dtype=dtype)
            elif argument.kwarg_only:
                keywords[argument.name] = values[number]
            else:
                positional.append(values[number])
        values[numbers[-1]] = kernel(*positional, **keywords)
