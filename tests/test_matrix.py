"""The matrix: what it expands to, and what it says of every kind of mistake."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from voxtral_build.backends import BACKENDS
from voxtral_build.errors import ConfigError
from voxtral_build.matrix import Matrix, graph_for, json_schema
from voxtral_build.quant import QUANT_TYPES, Quant, Scheme
from voxtral_build.settings import Settings
from voxtral_build.variants import Unit, Variant, WeightsKey

Data = dict[str, Any]


def error_of(data: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        Matrix.parse(data, "matrix.yaml")
    return str(caught.value)


def test_the_default_matrix(repository: Path) -> None:
    matrix = Matrix.load(repository / "config" / "matrix.yaml")
    assert [variant.slug for variant in matrix.variants] == [
        f"{cell}-{mode}"
        for cell in (
            *(f"xnnpack-fp32-{scheme}" for scheme in ("none", "8da4w", "8w", "8da8w", "8w_8da4w")),
            *(f"portable-fp32-{scheme}" for scheme in ("none", "8da4w", "8w", "8w_8da4w")),
            *("mlx-bf16-none", "mlx-bf16-8w", "mlx-bf16-4w"),
            *("vulkan-fp32-none", "vulkan-fp32-8da4w"),
            *("metal-bf16-none", "metal-bf16-fpa4w"),
            *("cuda-bf16-none", "cuda-bf16-4w_tiles"),
        )
        for mode in ("offline", "streaming")
    ]
    assert matrix.settings == Settings(max_seq_len=1024)
    assert (matrix.checkpoint.path, matrix.clips) == (Path("demo/checkpoint"), Path("demo/clips"))


def test_units_of_a_quantized_variant(matrix_data: Data) -> None:
    matrix = Matrix.parse(matrix_data)
    units = matrix.units(matrix.variant("xnnpack-fp32-8da4w-streaming"))
    assert [unit.slug for unit in units] == [
        "xnnpack-fp32-encode_audio_chunk-streaming-8da4w.g32",
        "xnnpack-fp32-text_decoder-streaming-8da4w.g32",
        "xnnpack-fp32-token_embedding-shared-8w.axis",
    ]
    assert [graph_for(unit).slug for unit in units] == [
        "custom_sdpa-fp32-encode_audio_chunk-streaming-8da4w.g32",
        "custom_sdpa-fp32-text_decoder-streaming-8da4w.g32",
        "custom_sdpa-fp32-token_embedding-shared-8w.axis",
    ]
    assert [unit.weights and unit.weights.slug for unit in units] == [
        "encoder-fp32-8da4w.g32",
        "decoder-fp32-8da4w.g32",
        "embedding-fp32-8w.axis",
    ]


def test_both_modes_share_the_embedding_and_both_backends_the_graphs(matrix_data: Data) -> None:
    matrix = Matrix.parse(matrix_data)
    units = [unit for variant in matrix.variants for unit in matrix.units(variant)]
    # Five units a scheme where it shares none: two encoders, two decoders, one embedding.
    backends = {"xnnpack": 18, "portable": 14, "mlx": 15, "vulkan": 10, "metal": 9, "cuda": 10}
    assert Counter(unit.backend for unit in set(units)) == backends
    assert len(units) == 3 * len(matrix.variants)
    # portable has no graph of its own, and cuda shares mlx's of bf16 without quantization.
    assert len({graph_for(unit) for unit in units}) == 52


def test_an_unquantized_unit_has_no_weights_of_its_own(matrix_data: Data) -> None:
    matrix = Matrix.parse(matrix_data)
    for unit in matrix.units(matrix.variant("portable-fp32-none-offline")):
        assert unit.weights is None


@pytest.mark.parametrize(
    "slug",
    [
        "none",
        "8da4w.g32",
        "8da4w.g64.hqq",
        "4w.axis",
        "8w.axis.skip",
        "8da8w.g128.hqq.skip",
        "fpa4w.g32",
        "4w.g64.hqq.skip.tile_packed_to_4d",
    ],
)
def test_quantization_slugs_round_trip(slug: str) -> None:
    assert Quant.parse(slug).slug == slug


def test_packing_changes_neither_weights_nor_graph() -> None:
    packed = Quant.parse("4w.g32.hqq.tile_packed_to_4d")
    assert packed.values == Quant.parse("4w.g32.hqq")
    assert packed.layout == Quant.parse("4w.g32")
    unit = Unit("cuda", "bf16", "text_decoder", "streaming", packed)
    assert unit.weights == WeightsKey("decoder", "bf16", packed.values)
    assert graph_for(unit).quant == packed.layout


@pytest.mark.parametrize(("size", "possible"), [(32, True), (256, True), (0, False), (96, False)])
def test_cuda_packs_groups_that_its_kernel_is_made_for(size: int, possible: bool) -> None:
    packed = {"type": "4w", "group_size": size, "packing_format": "tile_packed_to_4d"}
    scheme = Scheme.model_validate({"encoder": packed, "decoder": "none", "embedding": "none"})
    objections = list(BACKENDS["cuda"].capability.objections("bf16", scheme))
    assert bool(objections) != possible
    for objection in objections:
        assert objection.what == "encoder packing_format"
        assert objection.allowed == "group_size: 32, 64, 128, 256"
        assert "kernel" in str(objection.reason)


def test_an_embedding_is_not_packed() -> None:
    packed = {"type": "4w", "packing_format": "tile_packed_to_4d"}
    scheme = Scheme.model_validate({"encoder": "none", "decoder": "none", "embedding": packed})
    (objection,) = BACKENDS["cuda"].capability.objections("bf16", scheme)
    assert (objection.what, objection.allowed) == ("embedding packing_format", "plain")


def test_group_size_defaults_to_the_type() -> None:
    assert Quant(type="8da4w").group_size == 32
    assert Quant(type="8w").group_size == 0


@pytest.mark.parametrize(
    "slug",
    [
        "",
        "8da4w",
        "8da4w.32",
        "8da4w.g0",
        "8da4w.g33",
        "none.g32",
        "9w.axis",
        "4w.g32.tile_packed_to_4d.skip",
        "8w.axis.tile_packed_to_4d",
        "none.tile_packed_to_4d",
        "8w.axis.skip.hqq",
    ],
)
def test_what_is_no_quantization_slug(slug: str) -> None:
    with pytest.raises(ConfigError):
        Quant.parse(slug)


def test_variant_slugs_round_trip() -> None:
    variant = Variant("xnnpack", "fp32", "8da4w_g64", "streaming")
    assert Variant.parse(variant.slug) == variant


@pytest.mark.parametrize("slug", ["", "xnnpack-fp32-none", "a-b-c-d", "a-b-c-d-e"])
def test_what_is_no_variant(slug: str) -> None:
    with pytest.raises(ConfigError, match="<backend>-"):
        Variant.parse(slug)


def test_duplicates_merge_and_order_follows_the_lists(matrix_data: Data) -> None:
    product = {**matrix_data["variants"][1], "scheme": ["none"]}
    matrix_data["variants"] = [{**product, "mode": ["streaming", "offline"]}, product]
    assert [variant.mode for variant in Matrix.parse(matrix_data).variants] == [
        "streaming",
        "offline",
    ]


def test_exclude_leaves_combinations_out(matrix_data: Data) -> None:
    matrix_data["variants"] = [
        {
            "backend": ["xnnpack", "portable"],
            "dtype": ["fp32"],
            "scheme": ["none", "8da4w"],
            "mode": ["offline"],
            "exclude": [{"backend": "portable", "scheme": "8da4w"}],
        }
    ]
    assert [variant.slug for variant in Matrix.parse(matrix_data).variants] == [
        "xnnpack-fp32-none-offline",
        "xnnpack-fp32-8da4w-offline",
        "portable-fp32-none-offline",
    ]


def settings(**values: object) -> Callable[[Data], None]:
    return lambda data: data["settings"].update(values)


def decoder(value: object) -> Callable[[Data], None]:
    return lambda data: data["schemes"]["8da4w"].update(decoder=value)


def product(**values: object) -> Callable[[Data], None]:
    return lambda data: data["variants"][1].update(values)


def top(**values: object) -> Callable[[Data], None]:
    return lambda data: data.update(values)


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (top(variant=[]), ["matrix.yaml: variant: unknown key", 'did you mean "variants"?']),
        (top(variants={}), ["variants: wrong value", "allowed: a list"]),
        (top(variants=[]), ["variants: wrong value", "at least one"]),
        (lambda data: data.pop("checkpoint"), ["checkpoint: missing", "add checkpoint"]),
        (top(checkpoint={}), ["checkpoint: exactly one", "got:     none", "synth, path or repo"]),
        (
            lambda data: data["checkpoint"].update(synth={"size": "toy"}),
            ["checkpoint: exactly one", "synth and path", "path: null", "synth: null"],
        ),
        (
            top(checkpoint={"repo": "org/name"}),
            ["checkpoint.revision: a repository without", "commit", "org/name/commits/main"],
        ),
        (
            top(checkpoint={"repo": "org/name", "revision": "main"}),
            ["checkpoint.revision: not a commit", "got:     main", "40 hexadecimal digits"],
        ),
        (
            top(checkpoint={"repo": "name", "revision": "0" * 40}),
            ["checkpoint.repo: not a repository's name", "organization/name"],
        ),
        (
            lambda data: data["checkpoint"].update(revision="0" * 40),
            ["checkpoint.revision: a revision of no repository", "repo"],
        ),
        (
            lambda data: data["checkpoint"].update(sha256={"params.json": "123"}),
            ["checkpoint.sha256.params.json: not a SHA-256", "64 hexadecimal digits"],
        ),
        (
            top(checkpoint={"synth": {"size": "toy"}, "sha256": {"params.json": "0" * 64}}),
            ["checkpoint.sha256: a random checkpoint has no pins", "the seed decides"],
        ),
        (
            top(hub_repo="main"),
            ["hub_repo: not a repository's name", "got:     main", "organization/name"],
        ),
        (
            top(checkpoint={"synth": {"size": "big", "seed": 0}}),
            ["checkpoint.synth.size", "got:     big", "toy, mid, full"],
        ),
        (
            settings(max_seqlen=8),
            ["settings.max_seqlen: unknown key", "sliding_window", 'did you mean "max_seq_len"?'],
        ),
        (settings(max_seq_len="512"), ["settings.max_seq_len", '"512"', "a whole number"]),
        (settings(max_seq_len=39), ["settings.max_seq_len", "39 tokens", "more than 39"]),
        (settings(delay_tokens=31), ["settings.delay_tokens", "got:     31", "30"]),
        (settings(fidelity="exact"), ["settings.fidelity", "reference, executorch"]),
        (
            settings(delay_tokens=0, fidelity="exact"),
            ["settings.delay_tokens", "then mend settings.fidelity"],
        ),
        (
            decoder("8da4"),
            ["schemes.8da4w.decoder.type: unknown", "8w, 8da4w", 'did you mean "8da4w"?'],
        ),
        (
            lambda data: data["schemes"]["8da4w"].update(embedding="8da4w"),
            ["schemes.8da4w.embedding.type: 8da4w cannot", "allowed: none, 4w, 8w"],
        ),
        (
            decoder({"type": "none", "algorithm": "hqq"}),
            ["schemes.8da4w.decoder.algorithm: algorithm without quantization"],
        ),
        (
            decoder({"type": "8w", "group_size": 32}),
            ["xnnpack-fp32-8da4w-offline cannot be built", "one scale per row", "group_size: 0"],
        ),
        (
            decoder("4w"),
            ["xnnpack-fp32-8da4w-offline cannot be built", "float activations", "8da4w"],
        ),
        (
            decoder("fpa4w"),
            ["xnnpack-fp32-8da4w-offline cannot be built", "Metal", "got:     decoder quant"],
        ),
        (
            decoder({"type": "8da4w", "packing_format": "tile_packed_to_4d"}),
            ["schemes.8da4w.decoder.packing_format: 8da4w cannot be packed so", "allowed: plain"],
        ),
        (
            decoder({"type": "4w", "group_size": 0, "packing_format": "tile_packed_to_4d"}),
            ["xnnpack-fp32-8da4w-offline cannot be built", "CUDA", "packing_format plain"],
        ),
        (
            decoder({"type": "8da4w", "group_size": 33}),
            ["schemes.8da4w.decoder.group_size", "got:     33", "multiple of 32"],
        ),
        (decoder({"type": "none", "group_size": 32}), ["decoder.group_size", "without"]),
        (decoder({"type": "8da4w", "group": 32}), ["decoder.group: unknown key", "group_size"]),
        (decoder({"group_size": 32}), ["schemes.8da4w.decoder.type: missing"]),
        (decoder(None), ["schemes.8da4w.decoder: not a quantization", "got:     None"]),
        (
            lambda data: data["schemes"].update({"My-Scheme": data["schemes"]["none"]}),
            ["schemes.My-Scheme: not a name", "lower-case"],
        ),
        (
            product(backend=["portabel"]),
            ["variants[1].backend[0]: no such backend", "portabel", 'did you mean "portable"'],
        ),
        (product(backend="portable"), ["variants[1].backend", "a list, such as"]),
        (
            product(scheme=["8da4"]),
            ["variants[1].scheme[0]: no such scheme", "none, 8da4w", 'did you mean "8da4w"?'],
        ),
        (
            (lambda data: data["schemes"]["8w"].update(encoder="4w")),
            ["variants[0]: xnnpack-fp32-8w-offline cannot be built", "of one scale per row only"],
        ),
        (
            product(backend=["xnnpack"], dtype=["bf16"]),
            ["xnnpack-bf16-none-offline cannot be built", "delegates nothing", "allowed: dtype"],
        ),
        (product(exclude=[{"backend": "xnnpack"}]), ["variants[1].exclude[0]: matches no"]),
        (product(exclude=[{"mod": "offline"}]), ["exclude[0].mod: unknown key", '"mode"']),
        (product(exclude=[{"scheme": "8x"}]), ["variants[1].exclude[0].scheme: no such scheme"]),
        (product(exclude=[{}]), ["variants[1].exclude[0]: leaves everything out"]),
        (product(exclude=[{"backend": "portable"}]), ["variants[1]: nothing is left"]),
    ],
)
def test_mistakes(matrix_data: Data, change: Callable[[Data], None], parts: list[str]) -> None:
    change(matrix_data)
    message = error_of(matrix_data)
    assert message.startswith("matrix.yaml: ")
    for part in parts:
        assert part in message


@pytest.mark.parametrize("data", [None, [], "variants"])
def test_what_is_no_matrix_at_all(data: object) -> None:
    assert "a mapping of keys" in error_of(data)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml cannot be read"):
        Matrix.load(tmp_path / "none.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("variants: [", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"broken\.yaml is not YAML"):
        Matrix.load(broken)


def test_an_unknown_variant_is_told_with_the_known_ones(matrix_data: Data) -> None:
    with pytest.raises(ConfigError) as caught:
        Matrix.parse(matrix_data).variant("xnnpack-fp32-nona-offline")
    assert "portable-fp32-none-streaming" in str(caught.value)
    assert 'did you mean "xnnpack-fp32-none-offline"?' in str(caught.value)


def test_capabilities_speak_of_known_types_and_give_reasons() -> None:
    for backend in BACKENDS.values():
        capability = backend.capability
        for name in (*capability.linear, *capability.embedding):
            assert name in QUANT_TYPES
        for name in capability.reasons:
            kind, _, groups = name.partition(" ")
            if groups:
                assert (capability.linear | capability.packing)[kind] != "any"
            else:
                assert name not in (*capability.dtypes, *capability.linear)


def test_the_schema_file_is_current(repository: Path) -> None:
    file = repository / "workflow" / "schemas" / "matrix.schema.json"
    assert json.loads(file.read_text(encoding="utf-8")) == json_schema(), (
        "run: python -m voxtral_build schema > workflow/schemas/matrix.schema.json"
    )


def test_the_schema_takes_what_the_matrix_takes(matrix_data: Data) -> None:
    validator = jsonschema.Draft202012Validator(json_schema())
    validator.validate(matrix_data)
    matrix_data["schemes"]["8da4w"]["decoder"] = {"type": "4w", "algorithm": "hqq"}
    matrix_data["schemes"]["8da4w"]["encoder"] = {"type": "8w", "skip_incompatible_shapes": True}
    validator.validate(matrix_data)
    matrix_data["schemes"]["8da4w"]["embedding"] = "8da8w"
    assert not validator.is_valid(matrix_data)
