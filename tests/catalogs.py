"""Catalogs for tests: of any size, with every status, and with figures that look like some."""

from __future__ import annotations

import hashlib
import random

from voxtral_build.catalog.entries import Catalog, Entry

BACKENDS = {"xnnpack": "any", "portable": "any", "cuda": "CUDA", "metal": "macOS", "vulkan": "any"}
SCHEMES = {
    "none": (32, "none", "none"),
    "8w": (8.1, "8w.axis", "8w.axis"),
    "8da8w": (8.1, "8da8w.axis", "8w.axis"),
    "8da4w": (4.6, "8da4w.g32", "8w.axis"),
}
OUTCOMES = ("validated", "validated", "validated", "failed", "built", "not built")


def catalog(count, seed=0):
    """`count` variants; the first is validated, and from six on every status occurs."""
    draw = random.Random(seed)
    entries = []
    for index in range(count):
        backend = [*BACKENDS][index % len(BACKENDS)]
        base = [*SCHEMES][index // len(BACKENDS) % len(SCHEMES)]
        scheme = base if index < 40 else f"{base}_v{index // 40}"
        mode = ("offline", "streaming")[index // 20 % 2]
        status = OUTCOMES[index % len(OUTCOMES)]
        if BACKENDS[backend] != "any":
            status = "not built"
        entries.append(entry(backend, scheme, base, mode, status, draw))
    return Catalog(entries=entries)


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()


def entry(backend, scheme, base, mode, status, draw):
    bits, linears, embedding = SCHEMES[base]
    variant = f"{backend}-fp32-{scheme}-{mode}"
    model = int(3_700_000 * bits / 8 * draw.uniform(1, 1.1))
    files = {
        "model.pte": {"bytes": model, "sha256": digest(f"{variant} model")},
        "preprocessor.pte": {"bytes": 78_000, "sha256": digest(f"{mode} preprocessor")},
        "tekken.json": {"bytes": 190_000, "sha256": digest("tekken")},
    }
    built = status != "not built"
    return Entry.model_validate(
        {
            "variant": variant,
            "backend": backend,
            "dtype": "fp32",
            "scheme": scheme,
            "mode": mode,
            "encoder": linears,
            "decoder": linears,
            "embedding": embedding,
            "host": BACKENDS[backend],
            "status": status,
            "files": files if built else {},
            "provenance": provenance(variant) if built else None,
            "report": report(variant, mode, status, model, bits, draw)
            if status in ("validated", "failed")
            else None,
        }
    )


def provenance(variant):
    return {
        "checkpoint": {
            "name": None,
            "revision": None,
            "files": {"consolidated.safetensors": {"bytes": 6_740_000, "sha256": digest("c")}},
        },
        "settings": {"max_seq_len": 1024, "delay_tokens": 6, "fidelity": "reference"},
        "left_as_is": {},
        "dependencies": {
            f"units/{variant}-{method}.pte": {"bytes": 1_000_000, "sha256": digest(method)}
            for method in ("encoder", "text_decoder", "token_embedding")
        },
        "versions": {"torch": "2.13.0", "executorch": "1.5.1", "torchao": "0.18.0"},
        "source": {"commit": "42d3349" + "0" * 33, "modified": False},
        "host": {"system": "Linux", "machine": "x86_64", "python": "3.11.9"},
        "manifest_sha256": digest(variant),
    }


def report(variant, mode, status, model, bits, draw):
    rounds = "8da" in variant
    divergence = {32: 1e-7, 8.1: 1e-5, 4.6: 2e-4}[bits] * draw.uniform(0.5, 2)
    errors = draw.randint(3, 9)
    method_names = (
        "audio_encoder" if mode == "offline" else "encode_audio_chunk",
        "text_decoder",
        "token_embedding",
    )
    gates = [
        {
            "gate": "token_agreement",
            "passed": True,
            "figure": 1.0,
            "min": 0.9,
            "reason": "A near tie may fall the other way.",
        },
        {
            "gate": "divergence",
            "passed": status == "validated",
            "figure": divergence,
            "max": 1e-3 if status == "validated" else divergence / 3,
            "reason": "Five times what this scheme was measured at.",
        },
        {
            "gate": "text_decoder.delegated",
            "passed": True,
            "detail": "0 linears outside of delegates",
            "reason": "A linear that runs in a portable kernel is ten times slower.",
        },
    ]
    step = draw.uniform(1, 15)
    return {
        "variant": variant,
        "status": status,
        "gates": gates,
        "manifest_sha256": digest(variant),
        "model_bytes": model,
        "methods": {
            name: {
                "delegates": {"XnnpackBackend": 43} if "xnnpack" in variant else {},
                "operators": {"aten::mul.out": 12, "llama::custom_sdpa.out": 4},
                "undelegated_linears": 0,
                "planned_bytes": 1_675_040,
                "ring_slots": 128 if mode == "streaming" and name == "text_decoder" else None,
                "positions": 302,
                "weights": 1_200_000,
                "weight_bytes": int(1_200_000 * bits / 8),
                "promised_weight_bytes": int(1_200_000 * bits / 8.1),
                "parity": {
                    "max_abs_difference": 1.8e-5,
                    "max_abs_output": 19.9,
                    "cosine": 0.999999,
                    "top1_agreement": 1.0 if name == "text_decoder" else None,
                    "divergence": 1e-8 if name == "text_decoder" else None,
                    "noise_ratio": 1.01 if rounds else None,
                    "draw_ratio": 0.3 if rounds else None,
                },
            }
            for name in method_names
        },
        "preprocessor_difference": 3e-6,
        "speech": {
            "audio_s": 5.0,
            "text": "play music in the bathroom",
            "text_float32": "play music in the bathroom",
            "token_agreement": 1.0,
        },
        "against_float32": {
            "audio_cosine": 1 - divergence,
            "top1_agreement": 1.0,
            "divergence": divergence,
            "token_agreement": 1.0,
        },
        "words": {
            "spoken": 194,
            "substitutions": errors,
            "deletions": 0,
            "insertions": 1,
            "rate": (errors + 1) / 194,
            "rate_float32": 6 / 194,
            "clips": {
                f"clip-{index}.flac": {
                    "spoken": "open the yellow door the weather tomorrow",
                    "written": "open the yellow door the weather tomorrow",
                    "written_float32": "open the yellow door the weather tomorrow",
                }
                for index in range(10)
            },
        },
        "speed": {
            "load_s": draw.uniform(0.05, 0.5),
            "prefill_s": draw.uniform(0.05, 0.5),
            "step_ms_median": step,
            "step_ms_p95": step * draw.uniform(1.1, 2),
            "steps": 100,
            "real_time_factor": step / 80,
            "audio_s": 8.0,
            "peak_rss_bytes": int(4e8 + 2 * model),
            "libraries_rss_bytes": 380_000_000,
            "machine": {
                "system": "Linux",
                "machine": "x86_64",
                "processor": "Some Processor",
                "cores": 2,
                "memory_bytes": 24 << 30,
            },
        },
    }
