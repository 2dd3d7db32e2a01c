"""Constant methods: metadata that a program returns without computing.

`to_edge(..., constant_methods={"sample_rate": 16000})` makes a method of one value, which
is its output, and no instruction. The plans here are the same.
"""

from __future__ import annotations

from typing import Any

from voxtral_build.errors import PteError
from voxtral_build.pte.program_file import text
from voxtral_build.pte.schema import new, table

# The structure of a single value as torch.utils._pytree writes it: a protocol version and a
# leaf. ExecuTorch stores the structure of its output with each method.
_SINGLE_VALUE = '[1, {"type": null, "context": null, "children_spec": []}]'
_INT64 = range(-(1 << 63), 1 << 63)

Constant = int | float | bool | str | None


def constant_plan(name: str, value: int | float | bool) -> Any:
    """The `ExecutionPlanT` of a method `name` that returns `value`.

    Raises:
        PteError: the value is no bool, float or 64-bit int.
    """
    return new(
        "ExecutionPlan",
        name=name,
        containerMetaType=new("ContainerMetadata", encodedInpStr="", encodedOutStr=_SINGLE_VALUE),
        values=[_evalue(name, value)],
        inputs=[],
        outputs=[0],
        chains=[new("Chain", inputs=[], outputs=[], instructions=[])],
        operators=[],
        delegates=[],
        nonConstBufferSizes=[0],
    )


def _evalue(name: str, value: object) -> Any:
    kinds = table("KernelTypes")
    # bool is an int: it has to be asked for first.
    if isinstance(value, bool):
        return new("EValue", valType=kinds.Bool, val=new("Bool", boolVal=value))
    if isinstance(value, int) and value in _INT64:
        return new("EValue", valType=kinds.Int, val=new("Int", intVal=value))
    if isinstance(value, float):
        return new("EValue", valType=kinds.Double, val=new("Double", doubleVal=value))
    raise PteError(
        f"the constant method {name!r} cannot hold its value",
        got=f"{value!r} ({type(value).__name__})",
        allowed="bool, float, or int of 64 bits",
        next_step="give one of these",
    )


def is_constant_plan(plan: Any) -> bool:
    """Whether a method takes nothing, does nothing and returns plain values."""
    plain = constant_types()
    outputs = [] if plan.outputs is None else [int(index) for index in plan.outputs]
    inputs = () if plan.inputs is None else plan.inputs
    return (
        len(inputs) == 0
        and bool(outputs)
        and not any(len(chain.instructions or ()) for chain in plan.chains or ())
        and all(plan.values[index].valType in plain for index in outputs)
    )


def constant_types() -> frozenset[int]:
    """The `KernelTypes` that a constant method returns."""
    kinds = table("KernelTypes")
    return frozenset((kinds.Null, kinds.Int, kinds.Bool, kinds.Double, kinds.String))


def plain_value(evalue: Any) -> Constant:
    """The Python value of an `EValueT` of one of `constant_types`."""
    kinds = table("KernelTypes")
    value: Constant = None
    if evalue.valType == kinds.Int:
        value = int(evalue.val.intVal)
    elif evalue.valType == kinds.Bool:
        value = bool(evalue.val.boolVal)
    elif evalue.valType == kinds.Double:
        value = float(evalue.val.doubleVal)
    elif evalue.valType == kinds.String:
        value = text(evalue.val.stringVal)
    return value
