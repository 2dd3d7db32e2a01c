"""What was written of each method, held against the graph that it was lowered from."""

from __future__ import annotations

from pathlib import Path

from voxtral_build.axes import COMPONENT_OF, METHODS_OF
from voxtral_build.backends import BACKENDS
from voxtral_build.errors import BuildError
from voxtral_build.gates import Outcome, condition
from voxtral_build.graph import bind_weights, export_method
from voxtral_build.methods import MethodBuilder
from voxtral_build.quantized_file import load_tensors
from voxtral_build.runtime.program import has_delegate
from voxtral_build.validation.eager import EagerSource


def missing_runtime(source: EagerSource) -> str | None:
    """Why the artifact cannot be run in this process; None if it can."""
    delegate = BACKENDS[source.variant.backend].delegate
    if delegate is None or has_delegate(delegate):
        return None
    return f"the runtime here has no {delegate}"


def read_back(model: Path, source: EagerSource) -> list[Outcome]:
    """Hold each method of a program against its graph and weights, one at a time in memory.

    The graph is exported anew, from the model's code as it is now.
    """
    backend = BACKENDS[source.variant.backend]
    builder = MethodBuilder(source.config(), source.runtime(), backend.family())
    outcomes = []
    for method in METHODS_OF[source.variant.mode]:
        component = COMPONENT_OF[method]
        quant = source.scheme.of(component)
        program = export_method(builder, method, quant, source.dtype)
        weights = source.weights.get(component)
        tensors = load_tensors(
            source.checkpoint, weights, builder.meta_model(), component, quant, source.dtype
        )
        (module,) = builder.build([method], tensors, source.dtype)
        try:
            outcomes += backend.inspect(method, model, bind_weights(program, module))
        except BuildError as error:
            fault = " ".join(filter(None, (error.what, error.got)))
            reason = "What cannot be read back is not known to be right."
            outcomes.append(condition(f"{method}.read_back", False, reason, fault))
    return outcomes
