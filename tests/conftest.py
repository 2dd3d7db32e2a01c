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


@pytest.fixture(scope="session")
def factory(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Of artifacts, each built once for all tests of a process; to be read only."""
    from tests.factory import Factory

    return Factory(tmp_path_factory.mktemp("factory"))


@pytest.fixture(scope="session")
def lively_factory(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The same of a checkpoint whose tokens follow the audio."""
    from tests.factory import Factory
    from tests.models import ONE_LAYER
    from tests.sessions import lively_checkpoint

    factory = Factory(tmp_path_factory.mktemp("lively"))
    factory.checkpoint = lively_checkpoint(ONE_LAYER)
    return factory


@pytest.fixture
def repository() -> Path:
    return REPOSITORY


@pytest.fixture
def matrix_data() -> dict[str, Any]:
    """A fresh copy of config/matrix.yaml's content."""
    text = (REPOSITORY / "config" / "matrix.yaml").read_text(encoding="utf-8")
    data: dict[str, Any] = yaml.safe_load(text)
    return data
