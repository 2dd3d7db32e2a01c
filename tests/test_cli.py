"""The command line: exit codes, messages, and how light the light commands are."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from tests import folders
from voxtral_build import cli
from voxtral_build.errors import CheckpointError
from voxtral_build.gates import Gate
from voxtral_build.matrix import Matrix
from voxtral_build.quant import Quant, Scheme
from voxtral_build.settings import Settings
from voxtral_build.steps import download
from voxtral_build.variants import Graph, Unit, Variant

GIVEN = ["--checkpoint", "c", "--output", "o"]
METHOD = ["--method", "text_decoder", "--mode", "offline", "--dtype", "fp32"]
DA4W = Quant(type="8da4w", group_size=32)


class Recorder:
    """Stands in for every step; keeps what the last one was called with."""

    def __init__(self) -> None:
        self.step = ""
        self.arguments: dict[str, Any] = {}
        self.error: BaseException | None = None

    def module(self, name: str) -> Any:
        def run(**arguments: Any) -> None:
            self.step, self.arguments = name.rpartition(".")[2], arguments
            if self.error is not None:
                raise self.error

        return SimpleNamespace(run=run)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setattr(cli.importlib, "import_module", recorder.module)
    return recorder


def test_synth(steps: Recorder) -> None:
    assert cli.main(["synth", "--size", "toy", "--seed", "3", "dir"]) == 0
    assert steps.step == "synth"
    assert steps.arguments == {"size": "toy", "seed": 3, "output": Path("dir")}


def test_download(steps: Recorder) -> None:
    assert cli.main(["download", "--synth", "toy", "--seed", "3", "dir"]) == 0
    assert steps.arguments["source"].synth.seed == 3
    assert cli.main(["download", "--path", "from", "dir"]) == 0
    assert steps.arguments["source"].path == Path("from")


def test_meta_load(steps: Recorder) -> None:
    assert cli.main(["meta-load", *GIVEN]) == 0
    assert steps.step == "meta_load"
    assert steps.arguments == {"checkpoint": Path("c"), "output": Path("o")}


def test_quantize(steps: Recorder) -> None:
    arguments = ["--component", "decoder", "--quant", "8da4w.g32", "--dtype", "fp32"]
    assert cli.main(["quantize", *GIVEN, *arguments, "--threads", "3"]) == 0
    assert steps.arguments["threads"] == 3
    assert steps.arguments["component"] == "decoder"
    assert steps.arguments["quant"] == DA4W


def test_export(steps: Recorder) -> None:
    arguments = ["--params", "p", "--attention", "custom_sdpa", "--quant", "8da4w.g32"]
    settings = ["--max-seq-len", "64", "--fidelity", "executorch"]
    assert cli.main(["export", *arguments, *METHOD, *settings, "--output", "o"]) == 0
    assert steps.arguments == {
        "params": Path("p"),
        "graph": Graph("custom_sdpa", "fp32", "text_decoder", "offline", DA4W),
        "settings": Settings(max_seq_len=64, fidelity="executorch"),
        "output": Path("o"),
    }


def test_lower(steps: Recorder) -> None:
    arguments = ["--graph", "g", "--backend", "xnnpack", "--quant", "none"]
    assert cli.main(["lower", *GIVEN, *arguments, *METHOD]) == 0
    assert steps.arguments["weights"] is None
    assert steps.arguments["settings"] == Settings()
    assert steps.arguments["unit"] == Unit(
        "xnnpack", "fp32", "text_decoder", "offline", Quant(type="none")
    )


def test_reference(steps: Recorder) -> None:
    arguments = ["reference", *GIVEN, "--audio", "x.wav", "y.wav", "--clips", "d"]
    assert cli.main([*arguments, "--delay-tokens", "12"]) == 0
    assert steps.step == "reference"
    assert steps.arguments == {
        "checkpoint": Path("c"),
        "delay_tokens": 12,
        "audio": [Path("x.wav"), Path("y.wav")],
        "clips": Path("d"),
        "output": Path("o"),
    }
    assert cli.main(arguments) == 0
    assert steps.arguments["delay_tokens"] == 6


def test_preprocessor(steps: Recorder) -> None:
    arguments = ["--params", "p", "--mode", "offline", "--max-seq-len", "64", "--output", "o"]
    assert cli.main(["preprocessor", *arguments]) == 0
    assert steps.step == "preprocessor"
    assert steps.arguments == {
        "params": Path("p"),
        "mode": "offline",
        "settings": Settings(max_seq_len=64),
        "output": Path("o"),
    }


def test_link(steps: Recorder) -> None:
    units = ["--unit", "a", "--unit", "b", "--preprocessor", "p", "--inventory", "i"]
    assert cli.main(["link", *GIVEN, *VARIANT, "--embedding", "none", *units]) == 0
    assert steps.arguments["units"] == [Path("a"), Path("b")]
    assert steps.arguments["data_files"] == []
    assert steps.arguments["preprocessor"] == Path("p")
    assert steps.arguments["inventory"] == Path("i")
    assert steps.arguments["weights"] == {"decoder": Path("w")}
    assert steps.arguments["variant"].mode == "offline"
    data = ["--data-file", "a.ptd", "--data-file", "b.ptd"]
    assert cli.main(["link", *GIVEN, *VARIANT, "--embedding", "none", *units, *data]) == 0
    assert steps.arguments["data_files"] == [Path("a.ptd"), Path("b.ptd")]


VARIANT = [
    *("--variant", "xnnpack-fp32-q-offline"),
    *("--encoder", "none", "--decoder", "8da4w.g32", "--weights", "decoder=w"),
]
VALIDATE = ["validate", *GIVEN, *VARIANT, "--artifact", "a", "--audio", "x.wav"]
VALIDATE += ["--reference", "r", "--gates"]
GATE = {"figure": "divergence", "max": 0.5, "reason": "Because."}


def test_validate(steps: Recorder) -> None:
    assert cli.main([*VALIDATE, json.dumps([GATE]), "--embedding", "8w.axis"]) == 0
    assert steps.arguments["gates"] == [Gate(figure="divergence", max=0.5, reason="Because.")]
    assert steps.arguments["variant"] == Variant("xnnpack", "fp32", "q", "offline")
    assert steps.arguments["scheme"] == Scheme(
        encoder=Quant(type="none"), decoder=DA4W, embedding=Quant(type="8w")
    )
    assert steps.arguments["weights"] == {"decoder": Path("w")}
    assert steps.arguments["audio"] == [Path("x.wav")]


def test_transcribe(steps: Recorder) -> None:
    assert cli.main(["transcribe", "a", "--stream", "x.wav", "-"]) == 0
    assert steps.arguments == {
        "artifact": Path("a"),
        "audio": ["x.wav", "-"],
        "stream": True,
        "output_format": "text",
        "delay_ms": None,
        "prompt": "reference",
        "output": None,
    }
    options = ["--format", "srt", "--delay", "480", "--prompt", "none", "--output", "out"]
    assert cli.main(["transcribe", "a", "x.wav", *options]) == 0
    assert steps.arguments["output_format"] == "srt"
    assert steps.arguments["delay_ms"] == 480
    assert steps.arguments["prompt"] == "none"
    assert steps.arguments["output"] == Path("out")


def test_a_scheme_that_cannot_be(steps: Recorder, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*VALIDATE, "[]", "--embedding", "8da4w.g32"]) == 2
    assert "scheme: embedding.type: 8da4w cannot" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required: COMMAND"),
        (["no-such-command"], "invalid choice"),
        (["synth", "--size", "huge", "dir"], "toy"),
        (["synth", "--size", "toy", "--seed", "-1", "dir"], "invalid"),
        (["download", "dir"], "one of the arguments --synth --path --repo is required"),
        (["export", "--quant", "8da4"], "8da4w.g32"),
        (["validate", "--weights", "decoder"], "encoder|decoder|embedding=FILE"),
        (["quantize", "--threads", "0"], "--threads: invalid"),
    ],
)
def test_wrong_arguments(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_a_users_mistake_is_one_message(
    steps: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    steps.error = CheckpointError("params.json is missing", got="nothing", next_step="add it")
    assert cli.main(["meta-load", *GIVEN]) == 2
    output = capsys.readouterr()
    assert output.err == "error: params.json is missing\n  got:     nothing\n  next:    add it\n"
    assert output.out == ""


def test_debugging_shows_the_traceback(steps: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    steps.error = CheckpointError("params.json is missing")
    monkeypatch.setenv("VOXTRAL_BUILD_DEBUG", "1")
    with pytest.raises(CheckpointError):
        cli.main(["meta-load", *GIVEN])


def test_interrupts_and_faults(steps: Recorder) -> None:
    steps.error = KeyboardInterrupt()
    assert cli.main(["meta-load", *GIVEN]) == 130
    steps.error = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        cli.main(["meta-load", *GIVEN])


def test_settings_out_of_bounds(steps: Recorder, capsys: pytest.CaptureFixture[str]) -> None:
    variant = [*VARIANT, "--embedding", "none"]
    files = ["--unit", "a", "--preprocessor", "p", "--inventory", "i"]
    assert cli.main(["link", *GIVEN, *variant, *files, "--delay-tokens", "31"]) == 2
    assert "settings: delay_tokens" in capsys.readouterr().err


def test_list(
    tmp_path: Path, matrix_data: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    config, artifacts = tmp_path / "matrix.yaml", tmp_path / "artifacts"
    config.write_text(yaml.safe_dump(matrix_data), encoding="utf-8")
    validated, failed, built, stale = (
        folders.artifact(artifacts, variant)
        for variant in (
            *("xnnpack-fp32-none-offline", "portable-fp32-none-streaming"),
            *("portable-fp32-none-offline", "xnnpack-fp32-8w-offline"),
        )
    )
    report = folders.report(validated)
    folders.report(failed, status="failed")
    # Of a model that has been built again since.
    folders.report(stale, manifest_sha256="0" * 64)
    arguments = ["list", "--config", str(config), "--artifacts", str(artifacts)]

    assert cli.main([*arguments, "--json"]) == 0
    rows = {row["variant"]: row for row in json.loads(capsys.readouterr().out)}
    assert list(rows) == [variant.slug for variant in Matrix.parse(matrix_data).variants]
    assert rows["xnnpack-fp32-none-streaming"]["status"] == "not built"
    assert rows[built.name]["status"] == rows[stale.name]["status"] == "built"
    assert rows[built.name]["step_ms"] is rows[stale.name]["step_ms"] is None
    assert rows[failed.name]["status"] == "failed"
    assert rows["xnnpack-fp32-8da4w-offline"]["decoder"] == "8da4w.g32"
    row = rows[validated.name]
    assert (row["status"], row["size_bytes"]) == ("validated", 2_500_000)
    # 12 bits of 5 weights a method, in 3 of them.
    assert row["bits_per_weight"] == 12 / 5
    against, speed = report["against_float32"], report["speed"]
    assert row["top1_agreement"] == against["top1_agreement"]
    assert row["divergence"] == against["divergence"]
    assert row["word_error_rate"] == report["words"]["rate"]
    assert (row["step_ms"], row["real_time_factor"]) == (12.25, speed["real_time_factor"])

    assert cli.main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(rows)
    measured = ["validated", "2.5", "MB", "2.40", "99.5%", "1.3e-02", "2.5%", "12.2", "0.153"]
    assert lines[1].split()[-11:] == [*measured, "414", "MB"]


def test_list_without_a_matrix(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "--config", "no/matrix.yaml"]) == 2
    assert "no/matrix.yaml cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", [["--help"], ["list"], ["schema"], ["lower", "--help"], ["backends"]]
)
def test_light_commands_import_nothing_heavy(command: list[str], repository: Path) -> None:
    heavy = "{'torch', 'executorch', 'torchao', 'numpy', 'snakemake', 'transformers'}"
    code = (
        "import sys\n"
        "from voxtral_build.cli import main\n"
        "try:\n"
        f"    main({command!r})\n"
        "finally:\n"
        f"    print(sorted({heavy} & set(sys.modules)), file=sys.stderr)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=repository, capture_output=True, text=True, check=True
    )
    assert result.stderr.strip() == "[]"


# --- download ----------------------------------------------------------------------------


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A folder with the three files; the weights are one tensor of two bytes."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    header = b'{"norm.weight":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}}'
    weights = len(header).to_bytes(8, "little") + header + b"\0\0"
    (folder / "consolidated.safetensors").write_bytes(weights)
    for name in ("params.json", "tekken.json"):
        (folder / name).write_text("{}", encoding="utf-8")
    return folder


def test_download_links_a_folder(checkpoint: Path, tmp_path: Path) -> None:
    for _ in range(2):  # the second time it replaces what is there
        assert cli.main(["download", "--path", str(checkpoint), str(tmp_path / "out")]) == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == set(download.FILES)
    for path in (tmp_path / "out").iterdir():
        assert path.resolve() == checkpoint / path.name


def lfs_pointer(folder: Path) -> None:
    text = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    (folder / "consolidated.safetensors").write_text(text, encoding="utf-8")


def cut(folder: Path) -> None:
    file = folder / "consolidated.safetensors"
    file.write_bytes(file.read_bytes()[:-1])


def no_header(folder: Path) -> None:
    (folder / "consolidated.safetensors").write_bytes(b"\xff" * 20)


def no_tokenizer(folder: Path) -> None:
    (folder / "tekken.json").unlink()


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lfs_pointer, "Git-LFS pointer"),
        (cut, "cut short"),
        (no_header, "not a safetensors file"),
        (no_tokenizer, "tekken.json missing"),
    ],
)
def test_download_refuses(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], harm: Any, message: str
) -> None:
    harm(checkpoint)
    assert cli.main(["download", "--path", str(checkpoint), str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
