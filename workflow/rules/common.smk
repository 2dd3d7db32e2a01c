"""The matrix, and what rules take from it: paths, flags, memory.

Rules know paths. What may be combined is in voxtral_build/matrix.py, and what a stage does
in voxtral_build/steps.
"""

import functools
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from voxtral_build.backends import BACKENDS, KERNELS_ONLY, require_host
from voxtral_build.errors import BuildError, ConfigError
from voxtral_build.axes import COMPONENTS
from voxtral_build.files import sha256
from voxtral_build.matrix import Matrix, graph_for
from voxtral_build.provenance import data_files, step_sources, tool_versions


wildcard_constraints:
    variant=r"[^/]+",
    unit=r"[^/]+",
    graph=r"[^/]+",
    weights=r"[^/]+",
    mode=r"[^/]+",


# Stages run with the Python and the code that this workflow was read with, in whichever
# folder it works and whether or not the environment is activated.
shell.prefix(
    f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH "
    f"PYTHONPATH={shlex.quote(str(workflow.basedir))}"
    # Doubled twice: for this f-string, and for Snakemake, which formats it again.
    f"${{{{PYTHONPATH:+:$PYTHONPATH}}}}; "
)


def read_matrix():
    """The configuration; a mistake in it ends Snakemake with a message and exit code 2."""
    try:
        return Matrix.parse(config, " + ".join(map(str, workflow.configfiles)))
    except ConfigError as error:
        refuse(error)


def refuse(error):
    # SystemExit, and not an exception of Snakemake's: that would bring its own traceback,
    # and 1 as the exit code.
    print(f"error: {error}", file=sys.stderr)
    sys.exit(error.exit_code)


MATRIX = read_matrix()
ALL_UNITS = [unit for variant in MATRIX.variants for unit in MATRIX.units(variant)]
UNITS = {unit.slug: unit for unit in ALL_UNITS}
GRAPHS = {graph_for(unit).slug: graph_for(unit) for unit in ALL_UNITS}
MODES = {variant.mode: variant.mode for variant in MATRIX.variants}
WEIGHTS = {unit.weights.slug: unit.weights for unit in ALL_UNITS if unit.weights}

PARAMS = "build/checkpoint/params.json"
CHECKPOINT_WEIGHTS = "build/checkpoint/consolidated.safetensors"
TOKENIZER = "build/checkpoint/tekken.json"
INVENTORY = "build/inventory.json"
REFERENCE = "build/reference.safetensors"
# Of the Hub's files; outside of build/, so that no one who cleans up fetches them again.
STORE = "checkpoints"
LOCK = "config/checkpoint.lock.json"
SPEECH = ("known-voice", "new-variant", "new-accent", "noise", "quiet")  # of demo/clips


# What a name in a path stands for; a name that the matrix does not have is refused.


def variant_of(wildcards):
    try:
        return MATRIX.variant(wildcards.variant)
    except ConfigError as error:
        refuse(error)


def unit_of(wildcards):
    return known("unit", wildcards.unit, UNITS)


def graph_of(wildcards):
    return known("graph", wildcards.graph, GRAPHS)


def weights_of(wildcards):
    return known("weights", wildcards.weights, WEIGHTS)


def mode_of(wildcards):
    return known("preprocessor", wildcards.mode, MODES)


def known(what, name, items):
    if name not in items:
        refuse(
            ConfigError(
                f"the matrix needs no such {what}",
                got=name,
                allowed=items,
                next_step="add a variant that does to config/matrix.yaml",
            )
        )
    return items[name]


def of_backends(*, data_file):
    """Names of units and variants of the backends that write data files, or of the others."""
    names = [name for name, b in BACKENDS.items() if b.data_file == data_file]
    return f"(?:{'|'.join(names)})-[^/]+"


# Targets.


def missing_here(variant):
    """What this host lacks to lower a variant; jobs that run elsewhere ask their own host."""
    return BACKENDS[variant.backend].missing() if workflow.local_exec else None


def variants_of_this_host():
    return [variant for variant in MATRIX.variants if missing_here(variant) is None]


def artifacts_of_this_host(wildcards):
    return artifact_files(variants_of_this_host())


def graph_files(wildcards):
    return [f"build/graphs/{name}.pt2" for name in GRAPHS]


def weights_files(wildcards):
    return [weights_path(key) for key in WEIGHTS.values()]


def backend_artifacts(backend):
    chosen = [variant for variant in MATRIX.variants if variant.backend == backend]
    if not chosen:
        refuse(
            ConfigError(
                "the matrix has no variant of this backend",
                got=backend,
                allowed=dict.fromkeys(variant.backend for variant in MATRIX.variants),
                next_step="add one under variants in config/matrix.yaml",
            )
        )
    if workflow.local_exec:
        try:
            require_host(backend)
        except BuildError as error:
            refuse(error)
    return artifact_files(chosen)


def artifact_files(variants):
    """Files of whole artifacts: one that was lost is made again, though its report is there."""
    names = (
        "model.pte",
        "preprocessor.pte",
        "tekken.json",
        "manifest.json",
        "report.json",
        "README.md",
    )
    data = ("model.ptd",)
    return [
        f"artifacts/{variant.slug}/{name}"
        for variant in variants
        for name in (*names, *(data if has_data(variant) else ()))
    ]


def has_data(item):
    """Whether a variant or a unit has a file of weights beside its program."""
    return BACKENDS[item.backend].data_file


# Inputs.


@functools.cache
def code_for(step, *chosen):
    """The code of a step where it runs that of some backends only."""
    others = [name for name in BACKENDS if name not in chosen]
    return step_sources(step, without=[f"backends.{name}" for name in others])


def export_code(wildcards):
    attention = graph_of(wildcards).attention
    chosen = [b.name for b in BACKENDS.values() if b.capability.attention == attention]
    return code_for("export", *chosen)


def lower_code(wildcards):
    return code_for("lower", unit_of(wildcards).backend)


def validate_code(wildcards):
    return code_for("validate", variant_of(wildcards).backend)


def preprocessor_code(wildcards):
    return code_for("preprocessor", KERNELS_ONLY.name)


def shipped(folder):
    """A folder of the configuration: in the working directory, or else beside the Snakefile."""
    folder = folder.expanduser()
    beside = Path(workflow.basedir) / folder
    return beside if beside.is_dir() and not folder.is_dir() else folder


def source_files():
    """Files of the checkpoint folder, if it is one; the step itself tells which are missing."""
    if MATRIX.checkpoint.path is None:
        return []
    folder = shipped(MATRIX.checkpoint.path)
    names = (Path(path).name for path in (PARAMS, CHECKPOINT_WEIGHTS, TOKENIZER))
    return [path for name in names if (path := folder / name).is_file()]


def unit_graph(wildcards):
    return f"build/graphs/{graph_for(unit_of(wildcards)).slug}.pt2"


def unit_weights(wildcards):
    """A unit's weights: quantized, or the checkpoint's own."""
    key = unit_of(wildcards).weights
    return CHECKPOINT_WEIGHTS if key is None else weights_path(key)


def weights_path(key):
    return f"build/weights/{key.slug}.safetensors"


def variant_units(wildcards):
    variant = variant_of(wildcards)
    return [f"build/units/{unit.slug}.pte" for unit in MATRIX.units(variant)]


def variant_data(wildcards):
    variant = variant_of(wildcards)
    units = MATRIX.units(variant) if has_data(variant) else ()
    return [f"build/units/{unit.slug}.ptd" for unit in units]


def artifact_data(wildcards):
    variant = variant_of(wildcards)
    return [f"artifacts/{variant.slug}/model.ptd"] if has_data(variant) else []


def variant_preprocessor(wildcards):
    return f"build/preprocessors/{variant_of(wildcards).mode}.pte"


def variant_weights(wildcards):
    """The quantized weights of a variant."""
    units = MATRIX.units(variant_of(wildcards))
    return [weights_path(unit.weights) for unit in units if unit.weights]


def variant_weights_reports(wildcards):
    """What `quantize` wrote beside them."""
    return [str(Path(path).with_suffix(".json")) for path in variant_weights(wildcards)]


def clips_folder():
    return MATRIX.clips and shipped(MATRIX.clips)


def clip_files():
    """Files of the set of recordings; the step itself tells what is wrong with it."""
    folder = clips_folder()
    return sorted(map(str, folder.iterdir())) if folder and folder.is_dir() else []


def audio():
    """Speech that artifacts are driven over, of words that the demo checkpoint knows.

    20 s: enough to wrap the demo's rings.
    """
    folder = Path(workflow.basedir) / "demo" / "clips"
    if folder.is_relative_to(Path.cwd()):
        folder = folder.relative_to(Path.cwd())
    return [folder / f"{name}.flac" for name in SPEECH]


# Labels of the report's menu: results with the same ones would hide each other.


def card_labels(wildcards):
    return {**variant_of(wildcards).axes, "file": "card"}


def report_labels(wildcards):
    return {**variant_of(wildcards).axes, "file": "report"}


def manifests_of_this_host(wildcards):
    return [f"artifacts/{v.slug}/manifest.json" for v in variants_of_this_host()]


def reports_of_this_host(wildcards):
    return [f"artifacts/{v.slug}/report.json" for v in variants_of_this_host()]


def brought_reports(wildcards):
    """Reports of artifacts that were built on another host and copied here, by content.

    As input files they would have to be made here when they are not up to date.
    """
    here = variants_of_this_host()
    paths = (
        Path(f"artifacts/{variant.slug}/report.json")
        for variant in MATRIX.variants
        if variant not in here
    )
    return [f"{path} {sha256(path)}" for path in paths if path.is_file()]


# Flags of the stages' commands.


def flags(**values):
    """`--name value` for each; a None is left out."""
    return " ".join(
        f"--{name.replace('_', '-')} {shlex.quote(str(value))}"
        for name, value in values.items()
        if value is not None
    )


def settings_flags():
    return flags(**MATRIX.settings.model_dump())


def source_flags():
    source = MATRIX.checkpoint
    if source.synth is not None:
        return flags(synth=source.synth.size, seed=source.synth.seed)
    pins = (flags(sha256=f"{name}={pin}") for name, pin in source.sha256.items())
    if source.repo is not None:
        place = flags(
            repo=source.repo, revision=source.revision, store=STORE, lock=LOCK
        )
    else:
        place = flags(path=shipped(source.path))
    return " ".join((place, *pins))


def weights_flags(wildcards):
    key = weights_of(wildcards)
    return flags(component=key.component, quant=key.quant.slug, dtype=key.dtype)


def graph_flags(wildcards):
    graph = graph_of(wildcards)
    return f"{flags(attention=graph.attention)} {method_flags(graph)}"


def unit_flags(wildcards):
    unit = unit_of(wildcards)
    weights = weights_path(unit.weights) if unit.weights else None
    return f"{flags(weights=weights, backend=unit.backend)} {method_flags(unit)}"


def method_flags(item):
    return flags(
        method=item.method, mode=item.mode, dtype=item.dtype, quant=item.quant.slug
    )


def preprocessor_flags(wildcards):
    """Of the settings, it depends on one; and a stream has no end."""
    mode = mode_of(wildcards)
    bound = MATRIX.settings.max_seq_len if mode == "offline" else None
    return flags(mode=mode, max_seq_len=bound)


def unit_list_flags(wildcards):
    units = (flags(unit=path) for path in variant_units(wildcards))
    data = (flags(data_file=path) for path in variant_data(wildcards))
    return " ".join((*units, *data))


def scheme_flags(wildcards):
    """The variant, its quantizations, and its quantized weights."""
    variant = variant_of(wildcards)
    scheme = MATRIX.scheme(variant)
    quantized = [unit for unit in MATRIX.units(variant) if unit.weights]
    return " ".join(
        [
            flags(variant=variant.slug),
            flags(**{component: scheme.of(component).slug for component in COMPONENTS}),
            *(
                flags(weights=f"{unit.component}={weights_path(unit.weights)}")
                for unit in quantized
            ),
        ]
    )


def gates_flags(wildcards):
    """Of the gates, those that the variant has to pass."""
    gates = MATRIX.gates_of(variant_of(wildcards))
    return flags(
        gates=json.dumps([gate.model_dump(exclude_none=True) for gate in gates])
    )


def matrix_json():
    """The configuration as Snakemake merged it, without what decides about no artifact."""
    built = {key: value for key, value in config.items() if not key.startswith("hub_")}
    return json.dumps(built, sort_keys=True)


def publish_flags(wildcards):
    if MATRIX.hub_repo is None:
        refuse(
            ConfigError(
                "publish needs a repository on the Hub",
                got="no hub_repo",
                allowed="organization/name",
                next_step="snakemake publish --config hub_repo=organization/name",
            )
        )
    options = ("private", "create_pr", "prune", "inspected")
    chosen = [name for name in options if getattr(MATRIX, f"hub_{name}")]
    return " ".join(
        [
            shlex.quote(MATRIX.hub_repo),
            *(f"--{name.replace('_', '-')}" for name in chosen),
        ]
    )


# Cores.


def all_cores_if_large():
    """Of a stage that is mostly start-up on a small checkpoint, and all work on a large one."""
    return workflow.cores if checkpoint_mb() > 1000 else 1


# Tries.


def download_retries():
    """Networks fail and mend; what has arrived is kept. A wrong folder stays wrong."""
    return 0 if MATRIX.checkpoint.repo is None else 2


# Memory, in MB. Torch and ExecuTorch alone take about 1000.


def checkpoint_mb():
    source = MATRIX.checkpoint
    if source.synth is not None:
        return {"toy": 2, "mid": 400, "full": 8900}[source.synth.size]
    if source.repo is not None:
        fetched = source.kept_in(Path(STORE)) / Path(CHECKPOINT_WEIGHTS).name
        return fetched.stat().st_size // 10**6 if fetched.is_file() else 8900
    return sum(path.stat().st_size for path in source_files()) // 10**6


def lower_mb(wildcards):
    """Of `lower`: its weights as they are unpacked (4 and 8 bits: a byte each), three times.

    Once to read, once in the delegates' form and once serialized; caches beside them.
    """
    unit = unit_of(wildcards)
    share = {"encoder": 0.23, "decoder": 0.78, "embedding": 0.1}[unit.component]
    item_bytes = 1 if unit.weights else {"fp32": 4, "bf16": 2}[unit.dtype]
    parameters = checkpoint_mb() / 2  # in millions: a checkpoint is in bf16
    return 1500 + int(3 * share * parameters * item_bytes + 0.1 * checkpoint_mb())


def reference_mb():
    """Of `reference`: one layer at a time, the embedding in float32 the largest."""
    return 1500 + int(0.3 * checkpoint_mb())


def validate_mb(wildcards):
    """Of `validate`: the artifact as it runs, or eager, which is there a layer at a time.

    Backends keep their own copy of weights beside the file's.
    """
    units = MATRIX.units(variant_of(wildcards))
    bits = max(
        {"fp32": 32, "bf16": 16}[u.dtype] if u.weights is None else u.quant.bits
        for u in units
    )
    return 3000 + int(3 * checkpoint_mb() * bits / 16)


# Before the start, and after a failure.


def tell_what_is_not_built_here():
    """Variants that the default target leaves out, with the host that they need."""
    others = [variant for variant in MATRIX.variants if missing_here(variant)]
    for name in dict.fromkeys(variant.backend for variant in others):
        count = sum(variant.backend == name for variant in others)
        host, missing = BACKENDS[name].capability.host, BACKENDS[name].missing()
        print(
            f"{name}: {count} variants are not built here; they need {host}, and this one lacks {missing}",
            file=sys.stderr,
        )


def catalog_of_what_is_there():
    """The catalog after a failure: a failed artifact keeps the rule from running.

    Without it, nobody would see in the catalog what failed, and why.
    """
    with tempfile.TemporaryDirectory() as folder:
        matrix = Path(folder) / "matrix.json"
        matrix.write_text(matrix_json())
        command = [sys.executable, "-m", "voxtral_build", "catalog"]
        command += [
            "--config",
            matrix,
            "--artifacts",
            "artifacts",
            "--output",
            "catalog",
        ]
        place = {"PYTHONPATH": str(workflow.basedir)}
        done = subprocess.run(command, env=os.environ | place, check=False)
    if done.returncode == 0:
        print("what failed, and why: catalog/index.html", file=sys.stderr)
