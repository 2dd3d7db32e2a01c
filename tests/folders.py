"""Folders of artifacts that say what a test wants them to."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from voxtral_build.manifest import FileRecord, Manifest

QUANTIZATIONS = {
    name: {"quantization": {"type": "none"}} for name in ("encoder", "decoder", "embedding")
}


def artifact(artifacts: Path, variant: str) -> Path:
    """A model of a few bytes, and a manifest that gives it more."""
    folder = artifacts / variant
    folder.mkdir(parents=True)
    (folder / "model.pte").write_bytes(b"x" * 1000)
    Manifest(
        variant=variant,
        release=None,
        settings={"max_seq_len": 256},
        components=QUANTIZATIONS,
        files={"model.pte": FileRecord(2_500_000, "1" * 64)},
        dependencies={
            "checkpoint/consolidated.safetensors": FileRecord(7, "2" * 64),
            "units/a.pte": FileRecord(8, "3" * 64),
        },
        builder={"torch": "2.13.0"},
        source={"commit": "4" * 40, "modified": True},
        host={"system": "Linux"},
    ).write(folder / "manifest.json")
    return folder


def report(folder: Path, **changes: Any) -> dict[str, Any]:
    """Write its report, of the artifact as it is; `changes` replace fields."""
    status = changes.get("status", "validated")
    digest = hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
    mode = folder.name.rpartition("-")[2]
    encoder = "audio_encoder" if mode == "offline" else "encode_audio_chunk"
    content = {
        "variant": folder.name,
        "status": status,
        "gates": [
            {
                "gate": "divergence",
                "passed": status == "validated",
                "figure": 0.013,
                "max": 0.1 if status == "validated" else 0.001,
                "reason": "Because.",
            }
        ],
        "manifest_sha256": digest,
        "model_bytes": 1000,
        "methods": {
            name: {
                "delegates": {},
                "operators": {},
                "undelegated_linears": 0,
                "planned_bytes": 1000,
                "weights": 40,
                "weight_bytes": 12,
                "promised_weight_bytes": 10,
                "parity": None,
            }
            for name in (encoder, "text_decoder", "token_embedding")
        },
        "preprocessor_difference": 1e-6,
        "speech": None,
        "against_float32": {
            "audio_cosine": 0.99,
            "top1_agreement": 0.995,
            "divergence": 0.013,
            "token_agreement": 1.0,
        },
        "words": {
            "spoken": 40,
            "substitutions": 1,
            "deletions": 0,
            "insertions": 0,
            "rate": 0.025,
            "rate_float32": 0.0,
            "clips": {},
        },
        "speed": {
            "load_s": 0.5,
            "prefill_s": 0.25,
            "step_ms_median": 12.25,
            "step_ms_p95": 14.5,
            "steps": 50,
            "real_time_factor": 0.1531,
            "audio_s": 5.0,
            "peak_rss_bytes": 414_000_000,
            "libraries_rss_bytes": 385_000_000,
            "machine": {
                "system": "Linux",
                "machine": "x86_64",
                "processor": "P",
                "cores": 2,
                "memory_bytes": 2**34,
            },
        },
    } | changes
    name = "report.json" if status == "validated" else "report.failed.json"
    (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return content
