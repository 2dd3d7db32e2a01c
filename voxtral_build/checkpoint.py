"""The three files of a checkpoint as Mistral ships it."""

from __future__ import annotations

PARAMS = "params.json"
WEIGHTS = "consolidated.safetensors"
TOKENIZER = "tekken.json"
