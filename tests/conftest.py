"""What several test files use."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

# Before torch is imported. Two workers with two threads each on two cores wait for one another:
# small models then run ten times slower than on one thread.
os.environ.setdefault("OMP_NUM_THREADS", "1")

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture
def repository() -> Path:
    return REPOSITORY


@pytest.fixture
def matrix_data() -> dict[str, Any]:
    """A fresh copy of config/matrix.yaml's content."""
    text = (REPOSITORY / "config" / "matrix.yaml").read_text(encoding="utf-8")
    data: dict[str, Any] = yaml.safe_load(text)
    return data
