"""ExecuTorch's LLM operators (`llama::custom_sdpa`, `llama::update_cache`, ...) in eager."""

from __future__ import annotations

import functools
import importlib


@functools.cache
def load() -> None:
    """Register the operators; importing them takes seconds, so it waits until needed."""
    importlib.import_module("executorch.extension.llm.custom_ops.custom_ops")
