"""Code closures and hashes."""

from __future__ import annotations

from pathlib import Path

import pytest

from voxtral_build.provenance import PACKAGE, data_files, step_sources, tool_versions

FILES = {
    "__init__.py": "",
    "steps/__init__.py": "",
    "steps/one.py": "from pkg import plain\nfrom pkg.deep.inner import f\nimport os\n",
    "steps/two.py": "def run():\n    import pkg.late\n",
    "steps/three.py": "from ..relative import x\nfrom . import two\n",
    "plain.py": "",
    "late.py": "from pkg.cycle import y\n",
    "cycle.py": "import pkg.late\n",
    "relative.py": "",
    "unused.py": "import pkg.late\n",
    "deep/__init__.py": "from pkg.deep.sibling import z\n",
    "deep/inner.py": "",
    "deep/sibling.py": "",
}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        file = tmp_path / "pkg" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return tmp_path / "pkg"


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        # a package's __init__ runs, and what that imports
        (
            "one",
            {"steps/one.py", "plain.py", "deep/__init__.py", "deep/inner.py", "deep/sibling.py"},
        ),
        # imports within functions, and a cycle
        ("two", {"steps/two.py", "late.py", "cycle.py"}),
        # relative imports
        ("three", {"steps/three.py", "relative.py", "steps/two.py", "late.py", "cycle.py"}),
    ],
)
def test_the_closure_of_a_step(package: Path, step: str, expected: set[str]) -> None:
    found = step_sources(step, package)
    assert found == sorted(found)
    names = {path.relative_to(package).as_posix() for path in found}
    assert names == {"__init__.py", "steps/__init__.py"} | expected


def test_paths_are_relative_to_the_working_directory(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(package.parent)
    assert Path("pkg/steps/two.py") in step_sources("two", package)


def test_steps_depend_on_what_they_run_alone() -> None:
    link = {path.resolve().relative_to(PACKAGE).as_posix() for path in step_sources("link")}
    assert {"steps/link.py", "variants.py", "errors.py"} <= link
    assert not {"quantization.py", "backends/xnnpack.py", "cli.py", "listing.py"} & link


def test_a_step_without_what_it_does_not_run(package: Path) -> None:
    found = step_sources("three", package, without=["steps.two"])
    names = {path.relative_to(package).as_posix() for path in found}
    assert names == {"__init__.py", "steps/__init__.py", "steps/three.py", "relative.py"}


def test_an_edit_of_one_backend_concerns_no_other() -> None:
    lower = step_sources("lower", without=["backends.portable"])
    names = {path.resolve().relative_to(PACKAGE).as_posix() for path in lower}
    assert {"backends/xnnpack.py", "backends/weight_only.py"} <= names
    assert not {"backends/portable.py", "backends/bf16.py"} & names


def test_tool_versions() -> None:
    assert tool_versions("snakemake", "no-such-tool").startswith("snakemake==")
    assert tool_versions("snakemake", "no-such-tool").endswith(" no-such-tool==missing")


def test_what_lies_beside_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "package" / "templates"
    (folder / "older").mkdir(parents=True)
    for name in ("b.jinja", "a.css"):
        (folder / name).write_text("", encoding="utf-8")
    package = tmp_path / "package"
    assert data_files("templates", package) == [folder / "a.css", folder / "b.jinja"]
    monkeypatch.chdir(tmp_path)
    below = Path("package") / "templates"
    assert data_files("templates", package) == [below / "a.css", below / "b.jinja"]
    # Those that rules name are there.
    assert data_files("catalog/cards")
    assert data_files("catalog/page")
