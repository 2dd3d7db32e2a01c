"""The workflow's plans: what is built for which target, and what a change rebuilds.

Nothing is built here. Plans are dry runs in an empty folder; for what a change rebuilds,
every output is made by hand and recorded as up to date (`--touch`) first.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from voxtral_build.matrix import Matrix, graph_for

STAGES = (
    *("download", "meta_load", "quantize", "export", "lower", "preprocessor", "link"),
    *("reference", "validate", "card", "catalog", "publish"),
)
# Of the default matrix, which has more of each than most tests need.
WHOLE = {
    **dict.fromkeys(("download", "meta_load", "reference", "catalog"), 1),
    "preprocessor": 2,
    "quantize": 13,
    "export": 43,
    "lower": 57,
    **dict.fromkeys(("link", "validate", "card"), 28),
}
ALL = {
    "download": 1,
    "meta_load": 1,
    "quantize": 7,
    "export": 18,
    "lower": 23,
    "preprocessor": 2,
    "link": 10,
    "reference": 1,
    "validate": 10,
    "card": 10,
    "catalog": 1,
}


@dataclass(frozen=True)
class Result:
    """How a Snakemake run ended, and what it printed."""

    code: int
    output: str

    @property
    def jobs(self) -> list[str]:
        """The messages of the jobs that were planned: `stage: wildcards`."""
        stages = "|".join(STAGES)
        found = re.findall(rf"^(?:Job \d+: )?((?:{stages}): .*) \(log:", self.output, re.MULTILINE)
        return sorted(set(found))

    @property
    def stages(self) -> dict[str, int]:
        return dict(Counter(job.partition(":")[0] for job in self.jobs))


class Workspace:
    """A folder with a configuration, and Snakemake run in it."""

    def __init__(self, folder: Path, repository: Path, data: dict[str, Any]) -> None:
        self.folder = folder
        self.repository = repository
        self.data = data
        (folder / "config").mkdir()

    def snakemake(self, *arguments: str) -> Result:
        (self.folder / "config" / "matrix.yaml").write_text(
            yaml.safe_dump(self.data, sort_keys=False), encoding="utf-8"
        )
        command = [sys.executable, "-m", "snakemake", "--snakefile"]
        command += [str(self.repository / "Snakefile"), "--directory", str(self.folder)]
        # Others' settings must not change what is tested.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SNAKEMAKE")}
        result = subprocess.run(
            [*command, *arguments],
            cwd=self.repository,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return Result(result.returncode, result.stdout)

    def plan(self, *targets: str) -> Result:
        result = self.snakemake(*targets, "--dry-run")
        assert result.code == 0, result.output
        return result

    def pretend_all_is_built(self) -> None:
        matrix = Matrix.parse(self.data)
        build = self.folder / "build"
        files = [build / name for name in ("inventory.json", "reference.safetensors")]
        files.append(build / "matrix.json")
        catalog = ("catalog.json", "index.html", "README.md")
        files += [self.folder / "catalog" / name for name in catalog]
        names = ("params.json", "consolidated.safetensors", "tekken.json")
        files += [build / "checkpoint" / name for name in names]
        for variant in matrix.variants:
            artifact = self.folder / "artifacts" / variant.slug
            names = ("model.pte", "preprocessor.pte", "tekken.json")
            names += ("manifest.json", "report.json", "README.md")
            files += [artifact / name for name in names]
            files.append(build / "preprocessors" / f"{variant.mode}.pte")
            for unit in matrix.units(variant):
                files.append(build / "graphs" / f"{graph_for(unit).slug}.pt2")
                files.append(build / "units" / f"{unit.slug}.pte")
                if unit.weights:
                    weights = build / "weights" / f"{unit.weights.slug}.safetensors"
                    files += [weights, weights.with_suffix(".json")]
        for file in files:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(file.name, encoding="utf-8")
        result = self.snakemake("--touch", "--forceall")
        assert result.code == 0, result.output
        assert self.plan().jobs == []


@pytest.fixture
def workspace(tmp_path: Path, repository: Path, matrix_data: dict[str, Any]) -> Workspace:
    products = [
        {"backend": ["xnnpack"], "scheme": ["none", "8da4w", "8w", "8da8w"]},
        {"backend": ["portable"], "scheme": ["none"]},
    ]
    both = {"dtype": ["fp32"], "mode": ["offline", "streaming"]}
    matrix_data["variants"] = [product | both for product in products]
    return Workspace(tmp_path, repository, matrix_data)


@pytest.fixture
def whole(tmp_path: Path, repository: Path, matrix_data: dict[str, Any]) -> Workspace:
    """Of the default matrix."""
    return Workspace(tmp_path, repository, matrix_data)


def test_the_default_matrix(whole: Workspace) -> None:
    assert whole.plan().stages == WHOLE


@pytest.mark.parametrize(
    ("backend", "parts"),
    [
        ("metal", ["allowed: macOS on Apple silicon"]),
        ("cuda", ["got:     a host that lacks an NVIDIA GPU", "allowed: Linux with an NVIDIA GPU"]),
    ],
)
def test_a_backend_of_another_host(whole: Workspace, backend: str, parts: list[str]) -> None:
    """On the hosts that tests run on, neither can be lowered."""
    result = whole.snakemake(backend, "--dry-run")
    assert result.code == 2
    assert "Traceback" not in result.output
    for part in [f"error: {backend} cannot be lowered on this host", "`snakemake graphs`", *parts]:
        assert part in result.output


def test_all_that_comes_before_lowering(whole: Workspace) -> None:
    stages = whole.plan("graphs").stages
    assert stages == {"download": 1, "meta_load": 1, "export": 52, "quantize": 15}


def test_data_files_belong_to_units_and_artifacts_of_their_backend(whole: Workspace) -> None:
    """A variant's own path plans its jobs; the one that lowers refuses the host itself."""
    plan = whole.plan("artifacts/cuda-bf16-4w_tiles-streaming/report.json", "--printshellcmds")
    units = re.findall(r"--data-file (\S+)", plan.output)
    assert len(set(units)) == 3
    assert all(unit.startswith("build/units/cuda-bf16-") for unit in units)
    assert "artifacts/cuda-bf16-4w_tiles-streaming/model.ptd" in plan.output
    other = whole.plan("artifacts/mlx-bf16-none-streaming/report.json", "--printshellcmds")
    assert ".ptd" not in other.output


def test_what_is_not_built_here_is_told(whole: Workspace) -> None:
    del whole.data["variants"][:4]
    result = whole.snakemake("--nolock")  # nothing is left for this host but the catalog
    assert "metal: 4 variants are not built here; they need macOS on Apple silicon" in result.output
    assert "cuda: 4 variants are not built here; they need Linux with an NVIDIA" in result.output


def test_the_shipped_checkpoint_is_found_from_anywhere(
    workspace: Workspace, repository: Path
) -> None:
    plan = workspace.plan("build/checkpoint/params.json", "--printshellcmds")
    assert f"download --path {repository}/demo/checkpoint build/checkpoint" in plan.output
    # A folder of that name where Snakemake works comes first.
    (workspace.folder / "demo" / "checkpoint").mkdir(parents=True)
    plan = workspace.plan("build/checkpoint/params.json", "--printshellcmds")
    assert "download --path demo/checkpoint build/checkpoint" in plan.output


def test_one_backend(workspace: Workspace) -> None:
    xnnpack, portable = workspace.plan("xnnpack"), workspace.plan("portable")
    less = {"lower": 18, "link": 8, "validate": 8, "card": 8}
    assert xnnpack.stages == {k: v for k, v in (ALL | less).items() if k != "catalog"}
    assert not [job for job in xnnpack.jobs if "portable" in job]
    assert portable.stages == {
        **dict.fromkeys(("download", "meta_load", "reference"), 1),
        **dict.fromkeys(("export", "lower"), 5),
        **dict.fromkeys(("preprocessor", "link", "validate", "card"), 2),
    }


def test_one_variant_by_its_path(workspace: Workspace) -> None:
    variant = "xnnpack-fp32-8da4w-streaming"
    plan = workspace.plan(f"artifacts/{variant}/report.json")
    assert plan.stages == {
        **dict.fromkeys(("download", "meta_load", "preprocessor"), 1),
        **dict.fromkeys(("reference", "link", "validate"), 1),
        **dict.fromkeys(("quantize", "export", "lower"), 3),
    }
    model = workspace.plan(f"artifacts/{variant}/model.pte")
    assert set(plan.jobs) - set(model.jobs) == {
        "reference: the model in float32",
        f"validate: {variant}",
    }
    card = workspace.plan(f"artifacts/{variant}/README.md")
    assert set(card.jobs) - set(plan.jobs) == {f"card: {variant}"}


def test_a_change_rebuilds_what_depends_on_it(workspace: Workspace) -> None:
    workspace.pretend_all_is_built()

    scheme = workspace.data["schemes"]["8da4w"]
    scheme["embedding"] = "none"
    unquantized = workspace.plan()  # that unit exists: the scheme none has it
    variants = ["xnnpack-fp32-8da4w-offline", "xnnpack-fp32-8da4w-streaming"]
    stages = ("link", "validate", "card")
    rebuilt = [f"{stage}: {variant}" for stage in stages for variant in variants]
    assert unquantized.jobs == sorted([*rebuilt, "catalog: all variants"])
    after = {"link": 2, "validate": 2, "card": 2, "catalog": 1}

    scheme["embedding"] = "8w"
    scheme["decoder"] = {"type": "8da4w", "group_size": 64}
    regrouped = workspace.plan()
    assert regrouped.stages == {"quantize": 1, "export": 2, "lower": 2, **after}
    changed = ("decoder", "catalog", *variants)
    assert all(any(name in job for name in changed) for job in regrouped.jobs)

    # The algorithm chooses values, not their layout: the graphs stay.
    scheme["decoder"] = {"type": "8da4w", "algorithm": "hqq"}
    searched = workspace.plan()
    assert searched.stages == {"quantize": 1, "lower": 2, **after}

    scheme["decoder"] = "8da4w"
    workspace.data["settings"]["delay_tokens"] = 7
    settings = workspace.plan()
    assert settings.stages == {
        name: ALL[name]
        for name in ("export", "lower", "link", "reference", "validate", "card", "catalog")
    }

    workspace.data["settings"] |= {"delay_tokens": 6, "max_seq_len": 300}
    longer = workspace.plan()
    assert [job for job in longer.jobs if "preprocessor" in job] == ["preprocessor: offline"]


def test_another_checkpoint_rebuilds_all_that_has_weights(workspace: Workspace) -> None:
    workspace.pretend_all_is_built()
    workspace.data["checkpoint"] = {"synth": {"size": "toy", "seed": 1}}
    assert workspace.plan().stages == ALL


def test_other_recordings_are_transcribed_anew(workspace: Workspace) -> None:
    workspace.pretend_all_is_built()
    clips = workspace.folder / "clips"
    clips.mkdir()
    (clips / "words.tsv").write_text("a.wav\tone\n", encoding="utf-8")
    (clips / "a.wav").write_bytes(b"")
    workspace.data["clips"] = "clips"
    assert workspace.plan().stages == {
        name: ALL[name] for name in ("reference", "validate", "card", "catalog")
    }


def test_a_gate_is_checked_where_it_applies(workspace: Workspace) -> None:
    workspace.pretend_all_is_built()
    gate = {"figure": "divergence", "scheme": ["8da4w"], "max": 0.005, "reason": "Stricter."}
    workspace.data["gates"].append(gate)
    variants = ["xnnpack-fp32-8da4w-offline", "xnnpack-fp32-8da4w-streaming"]
    checked = [f"{stage}: {variant}" for stage in ("validate", "card") for variant in variants]
    assert workspace.plan().jobs == sorted([*checked, "catalog: all variants"])


def test_publishing_comes_after_everything_and_builds_nothing_anew(workspace: Workspace) -> None:
    where = ("--config", "hub_repo=org/name", "hub_prune=true", "hub_create_pr=true")
    assert workspace.plan("publish", *where).stages == ALL | {"publish": 1}
    workspace.pretend_all_is_built()
    plan = workspace.plan("publish", "--printshellcmds", *where)
    assert plan.jobs == ["publish: validated artifacts"]
    command = re.search(r"python -m voxtral_build publish .*", plan.output)
    assert command is not None
    assert "publish org/name --create-pr --prune --config build/matrix.json" in command[0]
    # Where it is published decides about no artifact.
    assert workspace.plan("--config", "hub_repo=org/name").jobs == []


@pytest.mark.parametrize(
    ("config", "parts"),
    [
        ((), ["got:     no hub_repo", "snakemake publish --config hub_repo=organization/name"]),
        (("--config", "hub_repo=name"), ["hub_repo: not a repository's name", "got:     name"]),
        (("--config", "hub_repo=a/b", "hub_purge=true"), ["unknown key", "hub_purge"]),
    ],
)
def test_publishing_nowhere(
    workspace: Workspace, config: tuple[str, ...], parts: list[str]
) -> None:
    result = workspace.snakemake("publish", "--dry-run", *config)
    assert result.code == 2
    assert "Traceback" not in result.output
    for part in parts:
        assert part in result.output


@pytest.mark.parametrize(
    ("target", "parts"),
    [
        (
            "artifacts/xnnpack-fp32-nona-streaming/report.json",
            [
                "error: the matrix has no such variant",
                "got:     xnnpack-fp32-nona-streaming",
                "allowed: xnnpack-fp32-none-offline, ",
                'next:    did you mean "xnnpack-fp32-none-streaming"?',
            ],
        ),
        (
            "build/units/xnnpack-fp32-vision-offline-none.pte",
            ["error: the matrix needs no such unit", "xnnpack-fp32-text_decoder-offline-none"],
        ),
        (
            "build/preprocessors/live.pte",
            ["error: the matrix needs no such preprocessor", "allowed: offline, streaming"],
        ),
    ],
)
def test_unknown_targets(workspace: Workspace, target: str, parts: list[str]) -> None:
    result = workspace.snakemake(target, "--dry-run")
    assert result.code == 2
    assert "Traceback" not in result.output
    for part in parts:
        assert part in result.output


def test_a_wrong_configuration(workspace: Workspace) -> None:
    workspace.data["variants"][0]["dtype"] = ["bf16"]
    result = workspace.snakemake("--dry-run")
    assert result.code == 2
    assert "Traceback" not in result.output
    assert "error: config/matrix.yaml: variants[0]: xnnpack-bf16-none" in result.output
    assert "partitioner delegates nothing in bf16" in result.output


def test_a_backend_without_variants(workspace: Workspace) -> None:
    del workspace.data["variants"][1]
    result = workspace.snakemake("portable", "--dry-run")
    assert result.code == 2
    assert "the matrix has no variant of this backend" in result.output


def test_a_failed_step_leaves_no_output_and_shows_its_log(workspace: Workspace) -> None:
    """A run that fails in its first step, which needs no torch."""
    folder = workspace.folder / "checkpoint"
    folder.mkdir()
    (folder / "params.json").write_text("{}", encoding="utf-8")
    workspace.data["checkpoint"] = {"path": str(folder)}
    result = workspace.snakemake("build/inventory.json", "--cores", "1")
    assert result.code == 1
    assert "consolidated.safetensors, tekken.json missing" in result.output
    assert not list(workspace.folder.glob("build/checkpoint/*"))


def test_lint(repository: Path) -> None:
    result = subprocess.run(
        [sys.executable, repository / "workflow" / "lint.py"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout
