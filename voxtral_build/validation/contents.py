"""What can be told of an artifact without running it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from voxtral_build.artifact_files import DATA, MANIFEST, MODEL
from voxtral_build.axes import COMPONENT_OF, METHODS_OF, Method
from voxtral_build.backends import BACKENDS
from voxtral_build.errors import BuildError
from voxtral_build.gates import Outcome, condition
from voxtral_build.manifest import Manifest, file_faults
from voxtral_build.metadata import constant_methods
from voxtral_build.methods import MethodBuilder
from voxtral_build.model.attention import STANDARD
from voxtral_build.model.config import RuntimeConfig
from voxtral_build.pte.data_file import read_data
from voxtral_build.pte.external import missing_data
from voxtral_build.pte.inspect import ProgramDescription, undelegated_linears, undelegated_operators
from voxtral_build.pte.memory import methods_memory
from voxtral_build.pte.program_file import read
from voxtral_build.quantization import component_size
from voxtral_build.report import MethodReport
from voxtral_build.validation.eager import EagerSource


def check_files(folder: Path, source: EagerSource) -> Iterator[Outcome]:
    """Whether the folder's files are those of its manifest, and that is this variant's."""
    try:
        manifest = Manifest.load(folder / MANIFEST)
        faults = list(file_faults(folder, manifest))
        if manifest.variant != source.variant.slug:
            faults.append(f"the manifest is of {manifest.variant}")
    except BuildError as error:
        faults = [error.what]
    reason = "What is measured has to be what the manifest describes, to the byte."
    yield condition("files", not faults, reason, "; ".join(faults) or None)


def data_file(folder: Path) -> Path | None:
    """What the model keeps outside of itself, where there is such a file."""
    path = folder / DATA
    return path if path.is_file() else None


def check_data(folder: Path) -> Iterator[Outcome]:
    """Whether a model that keeps tensors outside of itself finds them in its data file."""
    path = data_file(folder)
    faults = list(missing_data(read(folder / MODEL), read_data(path) if path else None))
    if path is not None or faults:
        reason = "Without them it loads, and fails when it is run."
        yield condition("data", not faults, reason, "; ".join(faults) or None)


def check_program(description: ProgramDescription, source: EagerSource) -> Iterator[Outcome]:
    """Whether methods, constants and delegates are what was asked for."""
    methods = METHODS_OF[source.variant.mode]
    got, wanted = sorted(description.methods), sorted(methods)
    yield condition(
        "methods",
        got == wanted,
        "Runners call them by these names.",
        None if got == wanted else f"{', '.join(got)} instead of {', '.join(wanted)}",
    )
    constants = constant_methods(source.config(), source.runtime())
    wrong = [
        f"{name} {description.constant_methods.get(name)} instead of {constants.get(name)}"
        for name in sorted(constants.keys() | description.constant_methods.keys())
        if description.constant_methods.get(name) != constants.get(name)
    ]
    yield condition(
        "constants", not wrong, "Runners size their buffers by them.", "; ".join(wrong) or None
    )
    delegated = BACKENDS[source.variant.backend].delegated
    if delegated == "everything":
        for name, method in description.methods.items():
            outside = undelegated_operators(method)
            kernels = sum(outside.values())
            yield Outcome(
                gate=f"{name}.undelegated_operators",
                figure=kernels,
                max=0,
                passed=kernels == 0,
                detail=", ".join(outside) or None,
                reason="The backend takes the whole method, as one delegate: what is left over "
                "would run on the CPU, with copies to and fro.",
            )
    if delegated == "linears":
        for name, method in description.methods.items():
            linears = undelegated_linears(method)
            yield Outcome(
                gate=f"{name}.undelegated_linears",
                figure=linears,
                max=0,
                passed=linears == 0,
                reason="The backend is there for them: outside of it, one linear can take longer "
                "than all others together.",
            )


def ring_slots(method: Method, runtime: RuntimeConfig) -> int | None:
    """Twice the window, in a stream; elsewhere there is no ring."""
    if runtime.mode == "offline":
        return None
    windows = {"encode_audio_chunk": runtime.max_enc_len, "text_decoder": runtime.sliding_window}
    window = windows.get(method)
    return None if window is None else 2 * window


def method_reports(
    folder: Path, description: ProgramDescription, source: EagerSource
) -> dict[str, MethodReport]:
    """Figures of each method that the variant should have, without parity."""
    model = MethodBuilder(source.config(), source.runtime(), STANDARD).meta_model()
    memory = methods_memory(folder / MODEL, data_file(folder))
    reports: dict[str, MethodReport] = {}
    for name in METHODS_OF[source.variant.mode]:
        method = description.methods.get(name)
        if method is None:
            continue
        component = COMPONENT_OF[name]
        size = component_size(model, component, source.scheme.of(component), source.dtype)
        reports[name] = MethodReport(
            delegates=dict(method.delegates),
            operators=dict(method.operators),
            undelegated_linears=undelegated_linears(method),
            planned_bytes=method.planned_bytes,
            ring_slots=ring_slots(name, source.runtime()),
            weights=size.weights,
            weight_bytes=memory[name].data_bytes,
            promised_weight_bytes=size.bytes,
            parity=None,
        )
    return reports
