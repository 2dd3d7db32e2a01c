"""Bounds: what they take, what passes them, and which variants need which."""

from __future__ import annotations

import math

import pytest
from pydantic import ValidationError

from voxtral_build.errors import ConfigError
from voxtral_build.gates import FIGURES, REQUIRED, Gate, check
from voxtral_build.matrix import Matrix
from voxtral_build.report import Report


def gate(**values):
    return Gate(**{"figure": "divergence", "reason": "Because.", **values})


@pytest.mark.parametrize(
    ("bound", "value", "passes"),
    [
        ({"max": 0.1}, 0.1, True),
        ({"max": 0.1}, 0.1001, False),
        ({"min": 0.9}, 0.9, True),
        ({"min": 0.9}, 0.8999, False),
        ({"min": 0.9, "max": 1.1}, 1.0, True),
        ({"min": 0.9, "max": 1.1}, 1.2, False),
        ({"max": 0.1}, math.nan, False),
        ({"min": 0.1}, math.nan, False),
        ({"max": 0.1}, math.inf, False),
        ({"min": 0.1}, math.inf, True),
    ],
)
def test_what_passes(bound, value, passes):
    (outcome,) = check([gate(**bound)], {"divergence": {"": value}})
    assert outcome.passed is passes
    assert outcome.gate == "divergence"
    assert outcome.figure == (value if math.isfinite(value) else None)


def test_a_message_has_gate_figure_and_bound():
    figures = {"noise_ratio": {"text_decoder": 1.25, "audio_encoder": 1.0}}
    outcomes = check([gate(figure="noise_ratio", min=0.9, max=1.1)], figures)
    assert [str(outcome) for outcome in outcomes] == [
        "text_decoder.noise_ratio 1.25, 0.9 to 1.1",
        "audio_encoder.noise_ratio 1, 0.9 to 1.1",
    ]
    (outcome,) = check([gate(max=0.1)], {"divergence": {"": math.nan}})
    assert str(outcome) == "divergence, nan, at most 0.1"


def test_to_which_variants_it_applies():
    cell = {"backend": "xnnpack", "dtype": "fp32", "scheme": "8w", "mode": "offline"}
    assert gate(max=1).applies(cell)
    assert gate(max=1, scheme=["none", "8w"], mode=["offline"]).applies(cell)
    assert not gate(max=1, scheme=["none"]).applies(cell)
    assert not gate(max=1, scheme=["8w"], dtype=["bf16"]).applies(cell)


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({}, "bounds nothing"),
        ({"min": 2, "max": 1}, "nothing can pass"),
        ({"max": 1, "reason": " "}, "without a reason"),
        ({"max": math.nan}, "finite"),
        ({"max": 1, "figure": "accuracy"}, "divergence"),
        ({"max": 1, "scheme": []}, "at least 1"),
    ],
)
def test_what_is_no_gate(values, part):
    with pytest.raises(ValidationError, match=part):
        gate(**values)


def test_every_variant_needs_a_bound_on_every_figure(matrix_data):
    """Taking away the gates of any required figure is refused, and says which."""
    assert len(REQUIRED) == 10
    assert set(REQUIRED) <= FIGURES.keys()
    for figure in REQUIRED:
        rest = [item for item in matrix_data["gates"] if item["figure"] != figure]
        with pytest.raises(ConfigError, match=f"no bound on {figure} for xnnpack-fp32-none"):
            Matrix.parse({**matrix_data, "gates": rest})
    # One for other variants does not count.
    items = matrix_data["gates"]
    for item in items:
        if item["figure"] == "divergence":
            item["mode"] = ["offline"]
    with pytest.raises(ConfigError, match="divergence for xnnpack-fp32-none-streaming"):
        Matrix.parse(matrix_data)


def test_a_matrix_without_gates(matrix_data):
    del matrix_data["gates"]
    with pytest.raises(ConfigError, match="taken on faith") as caught:
        Matrix.parse(matrix_data, "mine.yaml")
    assert "config/matrix.yaml" in str(caught.value)


def test_a_gate_on_what_is_not_there(matrix_data):
    item = {"figure": "divergence", "max": 1, "scheme": ["8da4"], "reason": "Because."}
    matrix_data["gates"].append(item)
    with pytest.raises(ConfigError, match="no such scheme") as caught:
        Matrix.parse(matrix_data, "matrix.yaml")
    assert f"gates[{len(matrix_data['gates']) - 1}].scheme" in str(caught.value)
    assert 'did you mean "8da4w"' in str(caught.value)


def test_nan_goes_through_a_report(tmp_path):
    """A broken artifact's report has to be readable."""
    from tests import folders

    folder = folders.artifact(tmp_path, "xnnpack-fp32-none-offline")
    folders.report(folder)
    report = Report.load(folder / "report.json")
    against = report.against_float32.model_copy(update={"divergence": math.nan})
    broken = report.model_copy(update={"against_float32": against, "status": "failed"})
    broken.write(tmp_path / "broken.json")
    assert "NaN" not in (tmp_path / "broken.json").read_text()
    assert math.isnan(Report.load(tmp_path / "broken.json").against_float32.divergence)
