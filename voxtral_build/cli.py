"""The command line: one subcommand a stage, and commands that look at and use what came out.

Stages import torch and ExecuTorch, which takes seconds: each is imported where it runs.
stdout carries data, stderr the log.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

from voxtral_build import listing, support
from voxtral_build.axes import COMPONENTS, Component, Dtype, Method, Mode, UnitMode
from voxtral_build.backends import BACKENDS, attention_families, require_host
from voxtral_build.catalog.collect import collect
from voxtral_build.catalog.entries import json_schema as catalog_schema
from voxtral_build.errors import BuildError, ConfigError
from voxtral_build.gates import Gate
from voxtral_build.gates import parse_all as parse_gates
from voxtral_build.matrix import Matrix, json_schema
from voxtral_build.quant import Quant, Scheme
from voxtral_build.redaction import RedactingFormatter, redacted
from voxtral_build.settings import (
    CheckpointSource,
    Fidelity,
    Settings,
    SynthSize,
    parse_repository,
)
from voxtral_build.variants import Graph, Unit, Variant

_SCHEMAS = {"matrix": json_schema, "catalog": catalog_schema}
DEBUG = "VOXTRAL_BUILD_DEBUG"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code.

    0 done; 2 a mistake of the user's, told in one message; 130 interrupted. A fault of
    this project's keeps its traceback.
    """
    args = make_parser().parse_args(arguments)
    _log_to_stderr()
    try:
        args.command(args)
    except BuildError as error:
        if os.environ.get(DEBUG) == "1":
            raise
        print(redacted(f"error: {error}"), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output, such as `head`, has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


class _Elapsed(RedactingFormatter):
    """Puts the seconds since the start before the message."""

    def format(self, record: logging.LogRecord) -> str:
        return f"{record.relativeCreated / 1000:7.1f} s  {super().format(record)}"


def _log_to_stderr() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Elapsed())
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    logging.getLogger("voxtral_build").setLevel(logging.INFO)
    # What libraries say to each other, not to whoever reads this log: GPU kernels that a
    # CPU wheel lacks, and names that will go some day.
    for library in ("torchao", "torch.utils._pytree"):
        logging.getLogger(library).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning)


# --- commands ----------------------------------------------------------------------------


def _step(name: str) -> Callable[..., None]:
    run: Callable[..., None] = importlib.import_module(f"voxtral_build.steps.{name}").run
    return run


def _synth(args: argparse.Namespace) -> None:
    _step("synth")(size=args.size, seed=args.seed, output=args.output)


def _download(args: argparse.Namespace) -> None:
    synth = args.synth and {"size": args.synth, "seed": args.seed}
    given = {"synth": synth, "path": args.path, "repo": args.repo, "revision": args.revision}
    pins = dict(args.sha256)
    if len(pins) < len(args.sha256):
        raise ConfigError(
            "--sha256 names a file twice",
            got=" ".join("=".join(pin) for pin in args.sha256),
            next_step="give one hash of each file",
        )
    source = CheckpointSource.checked(given | {"sha256": pins}, "checkpoint")
    _step("download")(source=source, store=args.store, lock=args.lock, output=args.output)


def _meta_load(args: argparse.Namespace) -> None:
    _step("meta_load")(checkpoint=args.checkpoint, output=args.output)


def _quantize(args: argparse.Namespace) -> None:
    _step("quantize")(
        checkpoint=args.checkpoint,
        component=args.component,
        quant=args.quant,
        dtype=args.dtype,
        threads=args.threads,
        output=args.output,
    )


def _export(args: argparse.Namespace) -> None:
    graph = Graph(args.attention, args.dtype, args.method, args.mode, args.quant)
    _step("export")(params=args.params, graph=graph, settings=_settings(args), output=args.output)


def _lower(args: argparse.Namespace) -> None:
    require_host(args.backend)  # before torch is imported
    unit = Unit(args.backend, args.dtype, args.method, args.mode, args.quant)
    _step("lower")(
        checkpoint=args.checkpoint,
        graph=args.graph,
        unit=unit,
        weights=args.weights,
        settings=_settings(args),
        output=args.output,
    )


def _preprocessor(args: argparse.Namespace) -> None:
    _step("preprocessor")(
        params=args.params, mode=args.mode, settings=_settings(args), output=args.output
    )


def _link(args: argparse.Namespace) -> None:
    _step("link")(
        checkpoint=args.checkpoint,
        inventory=args.inventory,
        variant=args.variant,
        scheme=_scheme(args),
        weights=dict(args.weights),
        settings=_settings(args),
        units=args.unit,
        data_files=args.data_file,
        preprocessor=args.preprocessor,
        output=args.output,
    )


def _reference(args: argparse.Namespace) -> None:
    _step("reference")(
        checkpoint=args.checkpoint,
        delay_tokens=_settings(args).delay_tokens,
        audio=args.audio,
        clips=args.clips,
        output=args.output,
    )


def _validate(args: argparse.Namespace) -> None:
    _step("validate")(
        artifact=args.artifact,
        checkpoint=args.checkpoint,
        variant=args.variant,
        scheme=_scheme(args),
        weights=dict(args.weights),
        settings=_settings(args),
        gates=args.gates,
        audio=args.audio,
        reference=args.reference,
        clips=args.clips,
        output=args.output,
    )


def _inspect(args: argparse.Namespace) -> None:
    inspect = importlib.import_module("voxtral_build.pte.inspect")
    description = inspect.describe(args.file)
    print(json.dumps(description.as_dict(), indent=2) if args.json else inspect.render(description))


def _list(args: argparse.Namespace) -> None:
    table = listing.rows(collect(Matrix.load(args.config), args.artifacts))
    print(listing.as_json(table) if args.json else listing.as_text(table))


def _backends(args: argparse.Namespace) -> None:
    schemes = Matrix.load(args.config).schemes
    print(support.as_json(schemes) if args.json else support.as_text(schemes))


def _bench(args: argparse.Namespace) -> None:
    bench = importlib.import_module("voxtral_build.runtime.bench")
    speed = bench.measure(args.artifact, args.audio)
    print(speed.model_dump_json(indent=1) if args.json else bench.as_text(speed))


def _catalog(args: argparse.Namespace) -> None:
    _step("catalog")(matrix=Matrix.load(args.config), artifacts=args.artifacts, output=args.output)


def _card(args: argparse.Namespace) -> None:
    _step("card")(artifact=args.artifact, output=args.output)


def _footprint(args: argparse.Namespace) -> None:
    matrix = Matrix.load(args.config)
    footprint = importlib.import_module("voxtral_build.footprint")
    table = importlib.import_module("voxtral_build.footprint_table")
    if args.params is None:
        config = footprint.source_config(matrix.checkpoint)
    else:
        config = footprint.ModelConfig.load(args.params)
    settings = _settings(args, matrix.settings)
    rows = footprint.footprints(matrix, config, settings, args.artifacts)
    print(table.as_json(rows) if args.json else table.as_text(rows))


def _verify(args: argparse.Namespace) -> None:
    verify = importlib.import_module("voxtral_build.verify").verify
    for folder in args.artifact:
        manifest = verify(folder)
        size = sum(record.bytes for record in manifest.files.values())
        print(f"{folder}: {manifest.variant}, {size:,} bytes in {len(manifest.files)} files, right")


def _publish(args: argparse.Namespace) -> None:
    publish = importlib.import_module("voxtral_build.steps.publish")
    publish.run(
        matrix=Matrix.load(args.config),
        artifacts=args.artifacts,
        repository=args.repository,
        options=publish.Options(
            private=args.private,
            create_pr=args.create_pr,
            prune=args.prune,
            inspected=args.inspected,
            dry_run=args.dry_run,
        ),
    )


def _pull(args: argparse.Namespace) -> None:
    module = importlib.import_module("voxtral_build.pull")
    folder = module.pull(
        repository=args.repository,
        variant=args.variant,
        revision=args.revision,
        output=args.output or Path(args.variant.slug),
    )
    print(module.how_to_run(folder))


def _transcribe(args: argparse.Namespace) -> None:
    importlib.import_module("voxtral_build.transcribe").run(
        artifact=args.artifact,
        audio=args.audio,
        stream=args.stream,
        output_format=args.format,
        delay_ms=args.delay,
        prompt=args.prompt,
        output=args.output,
    )


def _schema(args: argparse.Namespace) -> None:
    print(json.dumps(_SCHEMAS[args.of](), indent=2))


# --- arguments ---------------------------------------------------------------------------


def make_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="voxtral-build",
        description="Voxtral Realtime checkpoints as ExecuTorch programs. To build the matrix "
        "run snakemake; these are its stages, and commands to look at what came out.",
        epilog=f"{DEBUG}=1 shows the traceback of an error.",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(name: str, command: Callable[[argparse.Namespace], None], text: str) -> Any:
        sub = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        sub.set_defaults(command=command)
        return sub

    sub = add("list", _list, "show the matrix and what is built of it")
    _add_matrix(sub)
    sub.add_argument("--json", action="store_true", help="for programs")

    sub = add("backends", _backends, "show what each backend takes, and what this host can lower")
    _add_config(sub)
    sub.add_argument("--json", action="store_true", help="for programs")

    sub = add("footprint", _footprint, "show the memory that each variant takes")
    _add_matrix(sub)
    sub.add_argument(
        "--params", type=Path, metavar="FILE", help="params.json of another model than the matrix's"
    )
    sub.add_argument("--json", action="store_true", help="for programs: every method, in bytes")
    _add_settings(sub)

    sub = add("inspect", _inspect, "show what is in a .pte file")
    sub.add_argument("file", type=Path, metavar="FILE.pte")
    sub.add_argument("--json", action="store_true", help="for programs")

    sub = add("verify", _verify, "hold artifacts against their manifests")
    sub.add_argument("artifact", type=Path, nargs="+", metavar="ARTIFACT", help="folders")

    sub = add("pull", _pull, "fetch an artifact from the Hub, and check it")
    _add_repository(sub)
    sub.add_argument("variant", type=_parsed(Variant.parse), metavar="VARIANT")
    sub.add_argument("--revision", default="main", help="a commit, tag or branch; default: main")
    sub.add_argument("--output", type=Path, metavar="DIR", help="default: VARIANT")

    sub = add("bench", _bench, "time an artifact on a recording, on this machine")
    sub.add_argument("artifact", type=Path, metavar="ARTIFACT", help="an artifact's folder")
    sub.add_argument("audio", type=Path, metavar="AUDIO", help="a sound file of some seconds")
    sub.add_argument("--json", action="store_true", help="for programs")

    sub = add("transcribe", _transcribe, "transcribe sound with an artifact, to stdout")
    sub.add_argument("artifact", type=Path, metavar="ARTIFACT", help="an artifact's folder")
    sub.add_argument(
        "audio",
        nargs="+",
        metavar="AUDIO",
        help="sound files, folders of them, - for stdin, or microphone (Ctrl-C ends it)",
    )
    sub.add_argument("--stream", action="store_true", help="print as it goes")
    sub.add_argument("--format", choices=("text", "json", "srt", "vtt"), default="text")
    sub.add_argument(
        "--delay", type=_parsed_count, metavar="MS", help="the artifact's own; others are refused"
    )
    sub.add_argument(
        "--prompt",
        choices=("reference", "none"),
        default="reference",
        help="none: as ExecuTorch's C++ runner, without silence and prompt, up to EOS",
    )
    sub.add_argument("--output", type=Path, metavar="DIR", help="one file for each AUDIO in it")

    sub = add("schema", _schema, "print the JSON schema of config/matrix.yaml or catalog.json")
    sub.add_argument("of", nargs="?", choices=_SCHEMAS, default="matrix")

    sub = add("synth", _synth, "write a random checkpoint in Mistral's format")
    sub.add_argument("--size", choices=get_args(SynthSize), required=True)
    sub.add_argument("--seed", type=_seed, default=0, metavar="N")
    sub.add_argument("output", type=Path, metavar="DIR")

    sub = add("download", _download, "bring a checkpoint into the build folder")
    source = sub.add_mutually_exclusive_group(required=True)
    source.add_argument("--synth", choices=get_args(SynthSize), help="make a random one")
    source.add_argument("--path", type=Path, metavar="DIR", help="link to a folder's files")
    source.add_argument("--repo", metavar="ORG/NAME", help="fetch from the Hub")
    sub.add_argument("--seed", type=_seed, default=0, metavar="N", help="with --synth")
    sub.add_argument("--revision", metavar="COMMIT", help="with --repo: 40 hexadecimal digits")
    sub.add_argument(
        "--sha256",
        type=_pin,
        action="append",
        default=[],
        metavar="FILE=SHA256",
        help="what a file has to be; repeatable",
    )
    sub.add_argument(
        "--store",
        type=Path,
        default=Path("checkpoints"),
        metavar="DIR",
        help="with --repo: where the files are kept, for links to them; default: checkpoints",
    )
    sub.add_argument(
        "--lock",
        type=Path,
        default=Path("config/checkpoint.lock.json"),
        metavar="FILE",
        help="with --repo: hashes of what was fetched without --sha256; default: "
        "config/checkpoint.lock.json",
    )
    sub.add_argument("output", type=Path, metavar="DIR")

    sub = add("meta-load", _meta_load, "hold a checkpoint against the model")
    _add_checkpoint(sub)
    _add_output(sub, "inventory.json")

    sub = add("quantize", _quantize, "quantize one component's weights")
    _add_checkpoint(sub)
    sub.add_argument("--component", choices=get_args(Component), required=True)
    sub.add_argument("--quant", type=_parsed(Quant.parse), required=True, metavar="QUANT")
    sub.add_argument("--dtype", choices=get_args(Dtype), required=True)
    sub.add_argument(
        "--threads",
        type=_parsed_count,
        default=os.cpu_count(),
        metavar="N",
        help="cores to use; default: all",
    )
    _add_output(sub, "a safetensors file; a report is written beside it, with the ending .json")

    sub = add("export", _export, "export one method as a graph without weights")
    sub.add_argument("--params", type=Path, required=True, metavar="FILE", help="params.json")
    families = attention_families()
    sub.add_argument("--attention", choices=families, required=True)
    _add_method(sub)
    _add_settings(sub)
    _add_output(sub, "a .pt2 file")

    sub = add("lower", _lower, "compile a graph and its weights for a backend")
    _add_checkpoint(sub)
    sub.add_argument("--graph", type=Path, required=True, metavar="FILE", help="from export")
    sub.add_argument(
        "--weights", type=Path, metavar="FILE", help="from quantize; default: the checkpoint's"
    )
    sub.add_argument("--backend", choices=BACKENDS, required=True)
    _add_method(sub)
    _add_settings(sub)
    _add_output(sub, "a one-method .pte file")

    sub = add("preprocessor", _preprocessor, "compile the preprocessor of a mode")
    sub.add_argument("--params", type=Path, required=True, metavar="FILE", help="params.json")
    sub.add_argument("--mode", choices=get_args(Mode), required=True)
    _add_settings(sub)
    _add_output(sub, "a .pte file")

    sub = add("link", _link, "join units into an artifact")
    _add_checkpoint(sub)
    _add_variant(sub)
    sub.add_argument("--inventory", type=Path, required=True, metavar="JSON", help="from meta-load")
    sub.add_argument(
        "--unit", type=Path, action="append", required=True, metavar="PTE", help="repeatable"
    )
    sub.add_argument(
        "--data-file",
        type=Path,
        action="append",
        default=[],
        metavar="PTD",
        help="beside a unit that has one; repeatable",
    )
    sub.add_argument(
        "--preprocessor", type=Path, required=True, metavar="PTE", help="of the variant's mode"
    )
    _add_settings(sub)
    _add_output(sub, "the artifact's folder", metavar="DIR")

    sub = add("reference", _reference, "run the model itself over speech, in float32")
    _add_checkpoint(sub)
    sub.add_argument(
        "--delay-tokens",
        type=int,
        default=argparse.SUPPRESS,
        metavar="N",
        help=Settings.model_fields["delay_tokens"].description,
    )
    _add_audio(sub)
    _add_clips(sub)
    _add_output(sub, "a safetensors file")

    sub = add("validate", _validate, "run an artifact and hold it against the model in eager")
    sub.add_argument("--artifact", type=Path, required=True, metavar="DIR")
    _add_checkpoint(sub)
    _add_variant(sub)
    _add_audio(sub)
    sub.add_argument(
        "--reference", type=Path, required=True, metavar="FILE", help="of the same audio"
    )
    _add_clips(sub)
    sub.add_argument(
        "--gates",
        type=_gates,
        required=True,
        metavar="JSON",
        help="a list of gates as config/matrix.yaml has them, those of this variant",
    )
    _add_settings(sub)
    _add_output(sub, "report.json")

    sub = add("card", _card, "write an artifact's model card")
    sub.add_argument("--artifact", type=Path, required=True, metavar="DIR")
    _add_output(sub, "README.md")

    sub = add("publish", _publish, "bring validated artifacts to the Hub, in one commit")
    _add_repository(sub)
    _add_matrix(sub)
    for option, text in (
        ("--dry-run", "print what would go up and away, with sizes, and do nothing"),
        ("--create-pr", "as a pull request"),
        ("--private", "make the repository private; refused where it is there and public"),
        ("--prune", "remove artifacts that are no longer in the matrix"),
        ("--inspected", "publish those that were read back and not run, too"),
    ):
        sub.add_argument(option, action="store_true", help=text)

    sub = add("catalog", _catalog, "write what is known of all variants: catalog.json and pages")
    _add_matrix(sub)
    _add_output(sub, "catalog.json, index.html and README.md in it", metavar="DIR")
    return parser


def _add_checkpoint(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--checkpoint", type=Path, required=True, metavar="DIR")


def _add_repository(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "repository", type=_parsed(parse_repository), metavar="ORG/NAME", help="on the Hub"
    )


def _add_audio(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--audio", type=Path, nargs="+", required=True, metavar="FILE")


def _add_clips(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--clips", type=Path, metavar="DIR", help="recordings and words.tsv")


def _add_config(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--config", type=Path, default=Path("config/matrix.yaml"), metavar="FILE")


def _add_matrix(sub: argparse.ArgumentParser) -> None:
    _add_config(sub)
    sub.add_argument("--artifacts", type=Path, default=Path("artifacts"), metavar="DIR")


def _gates(text: str) -> list[Gate]:
    try:
        return parse_gates(json.loads(text), "--gates")
    except (ValueError, TypeError, ConfigError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _add_output(sub: argparse.ArgumentParser, text: str, metavar: str = "FILE") -> None:
    sub.add_argument("--output", type=Path, required=True, metavar=metavar, help=text)


def _add_method(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--method", choices=get_args(Method), required=True)
    sub.add_argument("--mode", choices=get_args(UnitMode), required=True)
    sub.add_argument("--dtype", choices=get_args(Dtype), required=True)
    sub.add_argument("--quant", type=_parsed(Quant.parse), required=True, metavar="QUANT")


def _add_variant(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--variant", type=_parsed(Variant.parse), required=True, metavar="VARIANT")
    for component in COMPONENTS:
        sub.add_argument(
            f"--{component}", type=_parsed(Quant.parse), required=True, metavar="QUANT"
        )
    sub.add_argument(
        "--weights",
        type=_component_file,
        action="append",
        default=[],
        metavar="COMPONENT=FILE",
        help="from quantize; repeatable",
    )


def _scheme(args: argparse.Namespace) -> Scheme:
    return Scheme.checked({name: vars(args)[name] for name in COMPONENTS}, "scheme")


def _add_settings(sub: argparse.ArgumentParser) -> None:
    group = sub.add_argument_group("settings")
    for name, info in Settings.model_fields.items():
        group.add_argument(
            f"--{name.replace('_', '-')}",
            dest=name,
            default=argparse.SUPPRESS,
            help=info.description,
            **(
                {"choices": get_args(Fidelity)}
                if name == "fidelity"
                else {"type": int, "metavar": "N"}
            ),
        )


def _settings(args: argparse.Namespace, default: Settings | None = None) -> Settings:
    given = {name: vars(args)[name] for name in Settings.model_fields if name in args}
    return Settings.checked((default.model_dump() if default else {}) | given, "settings")


def _seed(text: str) -> int:
    seed = int(text)
    if seed < 0:
        raise ValueError(text)
    return seed


def _parsed_count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise ValueError(text)
    return count


def _parsed(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """An argparse type whose message is the `ConfigError`'s."""

    def convert(text: str) -> Any:
        try:
            return parse(text)
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def _pin(text: str) -> tuple[str, str]:
    name, _, digest = text.partition("=")
    return name, digest


def _component_file(text: str) -> tuple[Component, Path]:
    name, _, file = text.partition("=")
    for component in COMPONENTS:
        if name == component and file:
            return component, Path(file)
    raise argparse.ArgumentTypeError(f"got {text}, allowed {'|'.join(COMPONENTS)}=FILE")
