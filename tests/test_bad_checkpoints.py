"""What is refused in place of a checkpoint: by name, before much is read, leaving nothing.

Wrong files are made byte by byte here. Where the safetensors package and mistral-common
refuse them too, the tests see that they do.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mistral_common.tokens.tokenizers.tekken import Tekkenizer
from safetensors import SafetensorError, safe_open

from tests.models import ONE_LAYER, TWO_LAYERS, checkpoint
from voxtral_build import scan
from voxtral_build.errors import CheckpointError
from voxtral_build.settings import CheckpointSource
from voxtral_build.steps import download, meta_load
from voxtral_build.steps.synth import make_params, make_tekken
from voxtral_build.tensor_file import read_header

PARAMS, WEIGHTS, TOKENIZER = "params.json", "consolidated.safetensors", "tekken.json"
KEY = "layers.0.attention.wk.weight"  # (64, 96), somewhere in the file's middle
NEXT = "layers.0.attention.wv.weight"  # the tensor after it
LAST = "norm.weight"  # (96,)
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 8859462744\n"
PAGE = b"\xef\xbb\xbf\n<!DOCTYPE html><html><head><title>Sign in</title></head></html>\n"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(checkpoint(ONE_LAYER), tmp_path / "copy"))


def join(header: dict[str, Any] | bytes, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def split(blob: bytes) -> tuple[dict[str, Any], bytes]:
    end = 8 + int.from_bytes(blob[:8], "little")
    return json.loads(blob[8:end]), blob[end:]


def link(folder: Path, output: Path) -> None:
    nowhere = folder.parent / "nowhere"
    download.run(
        source=CheckpointSource(path=folder), store=nowhere, lock=nowhere / "lock", output=output
    )
    assert not nowhere.exists()


def refused_by_download(folder: Path) -> CheckpointError:
    output = folder.parent / "linked"
    with pytest.raises(CheckpointError) as caught:
        link(folder, output)
    assert not output.exists()
    return caught.value


def refused(folder: Path) -> CheckpointError:
    """What meta_load says of a folder; it leaves that as it was, and nothing else."""
    before = sorted(path.name for path in folder.iterdir())
    output = folder.parent / "out" / "inventory.json"
    with pytest.raises(CheckpointError) as caught:
        meta_load.run(checkpoint=folder, output=output)
    assert not output.parent.exists()
    assert sorted(path.name for path in folder.iterdir()) == before
    assert caught.value.next_step
    return caught.value


@pytest.fixture
def nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails where tensors are read: what the header tells comes first."""
    monkeypatch.setattr(meta_load, "read_through", lambda _: pytest.fail("tensors were read"))


# --- the weights' header ------------------------------------------------------------------


def entry(**change: Any) -> Callable[[dict[str, Any], bytes], bytes]:
    """The weights with other fields in the entry of `KEY`."""

    def spoil(header: dict[str, Any], data: bytes) -> bytes:
        header[KEY] |= change
        return join(header, data)

    return spoil


def shifted(begin: int, end: int) -> Callable[[dict[str, Any], bytes], bytes]:
    """The weights with `KEY` at other offsets, relative to its own."""

    def spoil(header: dict[str, Any], data: bytes) -> bytes:
        offsets = header[KEY]["data_offsets"]
        header[KEY]["data_offsets"] = [offsets[0] + begin, offsets[1] + end]
        return join(header, data)

    return spoil


def added(key: str, value: Any) -> Callable[[dict[str, Any], bytes], bytes]:
    return lambda header, data: join(header | {key: value}, data)


def twice(header: dict[str, Any], data: bytes) -> bytes:
    text = json.dumps(header)
    return join(f'{text[:-1]}, "{KEY}": {json.dumps(header[KEY])}}}'.encode(), data)


def twice_inside(header: dict[str, Any], data: bytes) -> bytes:
    text = json.dumps(header)
    return join(text.replace('"shape": [', '"shape": [7], "shape": [', 1).encode(), data)


def with_gap(header: dict[str, Any], data: bytes) -> bytes:
    """Two bytes that no tensor has, before all that follow `KEY`."""
    end = header[KEY]["data_offsets"][1]
    for info in header.values():
        if info["data_offsets"][0] >= end:
            info["data_offsets"] = [offset + 2 for offset in info["data_offsets"]]
    return join(header, data[:end] + b"\0\0" + data[end:])


def a_tera(header: dict[str, Any], data: bytes) -> bytes:
    """The last tensor with 10^12 elements, consistent but for the file's size."""
    begin = header[LAST]["data_offsets"][0]
    header[LAST] |= {"shape": [10**12], "data_offsets": [begin, begin + 2 * 10**12]}
    return join(header, data)


# What is done to header and data; what the message says, all of it.
HEADERS: dict[str, tuple[Callable[[dict[str, Any], bytes], bytes], list[str]]] = {
    "cut": (lambda h, d: join(h, d[:-1]), [f"cut short in tensor {LAST}", "bytes, where"]),
    "cut in two": (lambda h, d: join(h, d[: len(d) // 2]), ["cut short in tensor"]),
    "cut in the header": (lambda h, d: join(h, d)[:100], ["header length", "100 bytes"]),
    "one byte more": (lambda h, d: join(h, d + b"x"), ["longer than its header says", LAST]),
    "length 2^63": (
        lambda h, d: (2**63).to_bytes(8, "little") + join(h, d)[8:],
        ["not a safetensors file", "header length 9,223,372,036,854,775,808"],
    ),
    "text": (lambda *_: b"Entry not found", ['the text "Entry no"', "15 bytes"]),
    "seven bytes": (lambda *_: bytes(7), ["not a safetensors file", "7 bytes"]),
    "zip": (lambda h, d: b"PK\x03\x04" + join(h, d)[4:], ["not a safetensors file"]),
    "no JSON": (lambda _, d: join(b"{" + bytes(20), d), ["header is not one of safetensors"]),
    "no UTF-8": (lambda _, d: join(b'{"\xff":1}', d), ["header is not", "utf-8"]),
    "nested": (lambda *_: join(b"[" * 10**6), ["header is not", "nested too deeply"]),
    "list": (lambda _, d: join(b"[]", d), ["header is not", "a list"]),
    "entry": (added(KEY, [1]), [f"tensor {KEY}: not a tensor", "[1]"]),
    "no offsets": (added(KEY, {"dtype": "BF16", "shape": []}), [f"tensor {KEY}: not a tensor"]),
    "metadata": (added("__metadata__", {"a": 1}), ["__metadata__ {'a': 1}"]),
    "metadata list": (added("__metadata__", ["a"]), ["__metadata__ ['a']"]),
    "twice": (twice, [f"key '{KEY}' appears twice"]),
    "twice inside": (twice_inside, ["key 'shape' appears twice"]),
    "dtype": (entry(dtype="BF17"), [f"tensor {KEY}: unknown dtype", "BF17", "BF16"]),
    "dtype no text": (entry(dtype=["BF16"]), [f"tensor {KEY}: unknown dtype", "['BF16']"]),
    "negative dim": (entry(shape=[-64, -96]), [f"tensor {KEY}: wrong shape", "[-64, -96]"]),
    "bool dim": (entry(shape=[True, 6144]), [f"tensor {KEY}: wrong shape", "[True, 6144]"]),
    "float dim": (entry(shape=[64.0, 96]), [f"tensor {KEY}: wrong shape", "[64.0, 96]"]),
    "shape no list": (entry(shape=6144), [f"tensor {KEY}: wrong shape", "6144"]),
    "10^12 elements": (
        entry(shape=[10**12]),
        [f"tensor {KEY}: shape and data_offsets differ", "12,288", "2,000,000,000,000 bytes: BF16"],
    ),
    "10^12 elements, offsets too": (a_tera, [f"cut short in tensor {LAST}", "2,000,000,"]),
    "a million dims": (
        entry(shape=[2**40] * 10**6),
        [f"tensor {KEY}: shape and data_offsets differ", "more bytes than a file can have"],
    ),
    "shape and offsets": (
        entry(shape=[64, 95]),
        [
            f"tensor {KEY}: shape and data_offsets differ",
            "12,288 bytes",
            "12,160 bytes: BF16 [64, 95]",
        ],
    ),
    "negative offsets": (entry(data_offsets=[-12288, 0]), [f"tensor {KEY}: wrong data_offsets"]),
    "backward offsets": (entry(data_offsets=[12288, 0]), [f"tensor {KEY}: wrong data_offsets"]),
    "float offsets": (entry(data_offsets=[0.0, 12288.0]), [f"tensor {KEY}: wrong data_offsets"]),
    "three offsets": (entry(data_offsets=[0, 1, 2]), [f"tensor {KEY}: wrong data_offsets"]),
    "offsets of 70 bits": (
        entry(data_offsets=[2**70, 2**70 + 12288]),
        [f"tensor {KEY}: wrong data_offsets"],
    ),
    "outside": (shifted(10**12, 10**12), [f"tensor {KEY} lies outside the file"]),
    "overlap": (shifted(-2, -2), [f"tensor {KEY} overlaps"]),
    "shifted": (shifted(2, 2), [f"tensor {KEY} leaves a gap after"]),
    "gap": (with_gap, [f"tensor {NEXT} leaves a gap after {KEY}"]),
}


@pytest.mark.usefixtures("nothing_is_read")
@pytest.mark.parametrize("name", HEADERS)
def test_a_wrong_header_is_refused(copy: Path, name: str) -> None:
    spoil, messages = HEADERS[name]
    path = copy / WEIGHTS
    path.write_bytes(spoil(*split(path.read_bytes())))
    for error in (refused(copy), refused_by_download(copy)):
        assert str(path) in error.what
        assert error.got
        assert error.allowed
        assert len(str(error)) < 1000
        for message in messages:
            assert message in str(error)
    assert package_refuses(path) == (name != "twice")  # of two it takes the last


def test_what_the_package_refuses_is_refused(tmp_path: Path) -> None:
    """Any byte of a header changed: never a crash, and never more lenient."""
    generator = random.Random(0)
    header = {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]},
        "b": {"dtype": "F32", "shape": [1], "data_offsets": [12, 16]},
        "c": {"dtype": "F16", "shape": [10], "data_offsets": [16, 36]},
    }
    blob = join(header, bytes(36))
    path = tmp_path / WEIGHTS
    counts: Counter[tuple[bool, bool]] = Counter()
    for _ in range(3000):
        changed = bytearray(blob)
        position = generator.randrange(len(blob) - 36)
        changed[position] = generator.choice(b'0123456789-.,:[]{}" \\eBF\x00\xff')
        path.write_bytes(changed)
        counts[package_refuses(path), we_refuse(path)] += 1
    assert counts[True, False] == 0
    assert counts[True, True] > 1000
    assert counts[False, False] > 50


def package_refuses(path: Path) -> bool:
    try:
        with safe_open(str(path), "pt"):
            return False
    except SafetensorError:
        return True


def we_refuse(path: Path) -> bool:
    try:
        read_header(path)
    except CheckpointError:
        return True
    return False


@pytest.mark.usefixtures("nothing_is_read")
def test_two_terabytes_are_not_read(copy: Path) -> None:
    path = copy / WEIGHTS
    blob = a_tera(*split(path.read_bytes()))
    path.write_bytes(blob)
    header, _ = split(blob)
    os.truncate(path, len(join(header)) + header[LAST]["data_offsets"][1])  # holes, no blocks
    error = refused(copy)
    path.unlink()
    assert str(path) in error.what
    assert f"misshapen: {LAST} [1000000000000], expected [96]" in str(error)


@pytest.mark.usefixtures("nothing_is_read")
@pytest.mark.parametrize("dtype", ["F64", "I8", "U16", "F8_E4M3"])
def test_a_wrong_dtype_is_named(copy: Path, dtype: str) -> None:
    path = copy / WEIGHTS
    header, data = split(path.read_bytes())
    size = {"F64": 8, "I8": 1, "U16": 2, "F8_E4M3": 1}[dtype]
    begin = header[LAST]["data_offsets"][0]
    header[LAST] |= {"dtype": dtype, "data_offsets": [begin, begin + 96 * size]}
    path.write_bytes(join(header, data[:begin] + bytes(96 * size)))
    error = refused(copy)
    assert str(path) in error.what
    assert f"wrong dtype: {LAST} {dtype}, expected BF16, F32 or F16" in str(error)


@pytest.mark.usefixtures("nothing_is_read")
def test_an_empty_tensor_is_named(copy: Path) -> None:
    path = copy / WEIGHTS
    header, data = split(path.read_bytes())
    begin = header[LAST]["data_offsets"][0]
    header[LAST] |= {"shape": [0], "data_offsets": [begin, begin]}
    path.write_bytes(join(header, data[:begin]))
    error = refused(copy)
    assert str(path) in error.what
    assert f"misshapen: {LAST} [0], expected [96]" in str(error)


@pytest.mark.usefixtures("nothing_is_read")
def test_names_of_another_format_are_told(copy: Path) -> None:
    path = copy / WEIGHTS
    header, data = split(path.read_bytes())
    path.write_bytes(join({f"language_model.{key}": info for key, info in header.items()}, data))
    error = refused(copy)
    assert "no name is one of Mistral's" in str(error)
    assert len(str(error)) < 1500  # ten tensors by name, and the number of the others


# --- the weights' values ------------------------------------------------------------------

# Bits of: the largest finite values, the smallest, both zeros, one; then of what is none.
FINITE = {
    "BF16": [0x7F7F, 0xFF7F, 0x0001, 0x8000, 0x0000, 0x3F80],
    "F16": [0x7BFF, 0xFBFF, 0x0001, 0x8000, 0x0000, 0x3C00],
    "F32": [0x7F7FFFFF, 0xFF7FFFFF, 0x00000001, 0x80000000, 0x00000000, 0x3F800000],
}
INFINITE = {
    "BF16": {"infinity": [0x7F80, 0xFF80], "NaN": [0x7FC0, 0xFF81]},
    "F16": {"infinity": [0x7C00, 0xFC00], "NaN": [0x7E00, 0xFC01]},
    "F32": {"infinity": [0x7F800000, 0xFF800000], "NaN": [0x7FC00000, 0xFF800001]},
}


def rewrite(folder: Path, dtype: str, bad: dict[str, dict[int, int]]) -> None:
    """Write the weights in a dtype, of finite values, but for `bad`: key -> index -> bits."""
    header, _ = split((folder / WEIGHTS).read_bytes())
    parts, begin = [], 0
    for key, info in header.items():
        integers = "<u4" if dtype == "F32" else "<u2"
        values = np.resize(np.array(FINITE[dtype], dtype=integers), np.prod(info["shape"]))
        for index, bits in bad.get(key, {}).items():
            values[index] = bits
        parts.append(values.tobytes())
        end = begin + len(parts[-1])
        info |= {"dtype": dtype, "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header).encode()
    text += b" " * (1 - len(text) % 2)  # values at odd places, as the format allows
    (folder / WEIGHTS).write_bytes(join(text, b"".join(parts)))


@pytest.fixture(params=["one block", "many blocks"])
def _blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small blocks and slices, which end within tensors and within the header."""
    if request.param == "many blocks":
        monkeypatch.setattr(scan, "_BLOCK", 1024)
        monkeypatch.setattr(scan, "_SLICE", 100)


@pytest.mark.usefixtures("_blocks")
@pytest.mark.parametrize("dtype", FINITE)
def test_every_finite_value_is_accepted_and_hashed(
    copy: Path, dtype: str, caplog: pytest.LogCaptureFixture
) -> None:
    rewrite(copy, dtype, {})
    caplog.set_level("INFO", "voxtral_build")
    meta_load.run(checkpoint=copy, output=copy.parent / "inventory.json")
    inventory = json.loads((copy.parent / "inventory.json").read_text())
    assert inventory["files"] == {
        name: {
            "bytes": len((copy / name).read_bytes()),
            "sha256": hashlib.sha256((copy / name).read_bytes()).hexdigest(),
        }
        for name in (PARAMS, WEIGHTS, TOKENIZER)
    }
    assert {tensor["dtype"] for tensor in inventory["tensors"]} == {dtype}
    assert "read 100 % of" in caplog.text


@pytest.mark.usefixtures("_blocks")
@pytest.mark.parametrize("sign", [0, 1])
@pytest.mark.parametrize("kind", ["NaN", "infinity"])
@pytest.mark.parametrize("dtype", FINITE)
def test_a_value_that_is_not_finite_is_found(copy: Path, dtype: str, kind: str, sign: int) -> None:
    bits = INFINITE[dtype][kind][sign]
    other = INFINITE[dtype]["infinity" if kind == "NaN" else "NaN"][sign]
    bias = next(key for key in split((copy / WEIGHTS).read_bytes())[0] if key.endswith(".bias"))
    cases: list[tuple[str, dict[int, int], str, int]] = [
        (LAST, {95: bits}, "[95]", 1),  # the file's last value
        (bias, {0: bits}, "[0]", 1),
        (KEY, {96 * 3 + 17: bits, 96 * 60: other, 96 * 64 - 1: bits}, "[3, 17]", 3),
    ]
    for key, bad, index, count in cases:
        rewrite(copy, dtype, {key: bad})
        error = refused(copy)
        assert error.what == f"{copy / WEIGHTS}: tensor {key} has values that are not finite"
        assert error.got is not None
        assert error.got.startswith(f"{kind} at {index}, the first of {count} in [")
        assert error.got.endswith(f"] {dtype}")


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_bytes(path.read_bytes() + b"x"),
        lambda path: os.truncate(path, path.stat().st_size - 1),
        lambda path: os.utime(path, (1, 1)),
        lambda path: path.unlink(),
    ],
    ids=["longer", "shorter", "touched", "gone"],
)
@pytest.mark.parametrize("name", [WEIGHTS, TOKENIZER])
def test_a_file_that_changes_meanwhile_is_refused(
    copy: Path, monkeypatch: pytest.MonkeyPatch, name: str, change: Callable[[Path], None]
) -> None:
    def check_then_change(folder: Path) -> Any:
        result = checked(folder)
        change(copy / name)
        return result

    checked = meta_load.check
    monkeypatch.setattr(meta_load, "check", check_then_change)
    with pytest.raises(CheckpointError, match="changed while it was read") as caught:
        meta_load.run(checkpoint=copy, output=copy.parent / "inventory.json")
    assert str(copy / name) in caught.value.what
    assert not (copy.parent / "inventory.json").exists()


# --- what lies in a file's place ----------------------------------------------------------


@pytest.mark.usefixtures("nothing_is_read")
@pytest.mark.parametrize("name", [PARAMS, WEIGHTS, TOKENIZER])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (LFS, "is a Git-LFS pointer"),
        (PAGE, "is a web page"),
        (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "is a web page"),
        (b"", "is empty"),
    ],
    ids=["lfs", "html", "xml", "empty"],
)
def test_a_stand_in_is_told(copy: Path, name: str, content: bytes, message: str) -> None:
    (copy / name).write_bytes(content)
    for error in (refused(copy), refused_by_download(copy)):
        assert error.what.startswith(f"{copy / name} {message}")
        assert error.got is not None
        assert error.got.startswith(f"{len(content)} bytes")


@pytest.mark.usefixtures("nothing_is_read")
@pytest.mark.parametrize("name", [PARAMS, TOKENIZER])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"dim": 96', "is not JSON"),
        (b"Entry not found", 'beginning with "Entry not found"'),
        (b'{"dim": 96, "dim": 96}', "key 'dim' appears twice"),
        (b'{"dim": NaN}', "NaN is no number"),
        (b'{"dim": "\xe9"}', "utf-8"),
        (b"[" * 10**5, "nested too deeply"),
        (b"[1]", "is not a JSON object"),
    ],
    ids=["cut", "text", "twice", "nan", "latin-1", "nested", "list"],
)
def test_json_that_is_none_is_told(copy: Path, name: str, content: bytes, message: str) -> None:
    (copy / name).write_bytes(content)
    error = refused(copy)
    assert str(copy / name) in error.what
    assert message in str(error)


@pytest.mark.parametrize("name", [PARAMS, TOKENIZER])
def test_gigabytes_are_not_parsed(copy: Path, name: str) -> None:
    """The weights under another file's name, here a file of holes."""
    (copy / name).write_bytes(b"{")
    os.truncate(copy / name, 9 * 10**9)
    error = refused(copy)
    assert error.what == f"{copy / name} is too long for what its name says"
    assert error.got == "9,000,000,000 bytes"
    (copy / name).unlink()


@pytest.mark.parametrize(
    ("files", "what", "got", "next_step"),
    [
        (
            ["consolidated.safetensors.index.json", "consolidated-00001-of-00002.safetensors"],
            "has sharded weights, and no consolidated.safetensors",
            "consolidated-00001-of-00002.safetensors, consolidated.safetensors.index.json",
            "join the shards",
        ),
        (
            ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"],
            "has sharded weights",
            "model-00001-of-00002.safetensors, model-00002-of-00002.safetensors",
            "download consolidated.safetensors",
        ),
        (
            ["model.safetensors.index.json"],
            "has sharded weights",
            "model.safetensors.index.json",
            "Hugging Face's names",
        ),
        (
            ["model.safetensors"],
            "has weights under another name",
            "model.safetensors",
            "Hugging Face's names",
        ),
    ],
    ids=["mistral", "shards", "index", "plain"],
)
def test_sharded_weights_are_refused_by_name(
    copy: Path, files: list[str], what: str, got: str, next_step: str
) -> None:
    (copy / WEIGHTS).unlink()
    for name in files:
        (copy / name).write_bytes(b"{}")
    for error in (refused(copy), refused_by_download(copy)):
        assert str(copy) in error.what
        assert what in error.what
        assert error.got == got
        assert error.next_step is not None
        assert next_step in error.next_step
        assert error.allowed == "all weights in one consolidated.safetensors"


def test_other_weights_beside_mistrals_do_no_harm(copy: Path) -> None:
    (copy / "model.safetensors").write_bytes(b"")
    meta_load.run(checkpoint=copy, output=copy.parent / "inventory.json")
    link(copy, copy.parent / "linked")


def test_a_folder_is_not_linked_into_itself(copy: Path) -> None:
    with pytest.raises(CheckpointError, match="into itself"):
        link(copy, copy)
    assert (copy / WEIGHTS).is_file()
    assert not (copy / WEIGHTS).is_symlink()


# --- another model's files ----------------------------------------------------------------

TEXT_MODEL = {"dim": 5120, "n_layers": 40, "n_heads": 32, "vocab_size": 131072}
VOXTRAL = TEXT_MODEL | {"multimodal": {"whisper_model_args": {"encoder_args": {}}}}


@pytest.mark.usefixtures("nothing_is_read")
@pytest.mark.parametrize(
    ("params", "got"),
    [
        (
            {"architectures": ["VoxtralRealtimeForConditionalGeneration"], "vocab_size": 131072},
            "Hugging Face's config.json, without dim, n_layers, ada_rms_norm_t_cond_dim",
        ),
        ({"model_type": "whisper", "d_model": 1280}, "Hugging Face's config.json, without dim"),
        ({"n_mels": 128, "n_audio_ctx": 1500, "n_audio_state": 1280}, "OpenAI's Whisper"),
        (TEXT_MODEL, "a text model of Mistral's, without ada_rms_norm_t_cond_dim, multimodal"),
        (TEXT_MODEL | {"vision_encoder": {}}, "a model with a vision encoder"),
        (VOXTRAL, "a Voxtral that does not stream, without ada_rms_norm_t_cond_dim"),
        (make_tekken(1280, make_params(ONE_LAYER)), "a tokenizer"),
    ],
    ids=["hf", "hf whisper", "whisper", "text", "vision", "voxtral", "tekken"],
)
def test_params_of_another_model_are_told(copy: Path, params: dict[str, Any], got: str) -> None:
    (copy / PARAMS).write_text(json.dumps(params))
    error = refused(copy)
    assert error.what == f"{copy / PARAMS} is of another model"
    assert error.got is not None
    assert error.got.startswith(f"what looks like {got}")


@pytest.mark.usefixtures("nothing_is_read")
def test_params_of_another_size_name_the_tensors(copy: Path) -> None:
    (copy / PARAMS).write_text(json.dumps(make_params(TWO_LAYERS)))
    error = refused(copy)
    assert str(copy / WEIGHTS) in error.what
    assert str(copy / PARAMS) in error.what
    assert f"misshapen: {KEY} [64, 96], expected [96, 128]" in str(error)


@pytest.mark.usefixtures("nothing_is_read")
@pytest.mark.parametrize(
    ("change", "what", "got"),
    [
        ({"n_layers": 10**9}, "of different models", "1,000,000,001 layers and"),
        ({"hidden_dim": 10**18}, "larger than can be", "64 bits"),
        ({"dim": 10**30}, "larger than can be", "64 bits"),
    ],
)
def test_absurd_params_are_refused_at_once(
    copy: Path, change: dict[str, int], what: str, got: str
) -> None:
    (copy / PARAMS).write_text(json.dumps(make_params(ONE_LAYER) | change))
    error = refused(copy)
    assert str(copy / PARAMS) in error.what
    assert what in error.what
    assert error.got is not None
    assert got in error.got


def of_size(vocab_size: int) -> dict[str, Any]:
    return make_tekken(vocab_size, make_params(ONE_LAYER))


def tekken(**change: Any) -> dict[str, Any]:
    return of_size(1280) | change


@pytest.mark.usefixtures("nothing_is_read")
@pytest.mark.parametrize(
    ("content", "what", "got"),
    [
        (of_size(2000), "of another vocabulary than params.json", "default_vocab_size 2000"),
        (
            tekken(vocab=of_size(1280)["vocab"][:-1]),
            "lacks tokens of its own vocabulary",
            "1000 special tokens and 279 pieces",
        ),
        (tekken(config=[]), "no Tekken tokenizer", "TypeError"),
        (tekken(config={}), "no Tekken tokenizer", "default_vocab_size"),
        (tekken(vocab=None), "no Tekken tokenizer", "TypeError"),
        (tekken(special_tokens=None), "no tokenizer of a realtime model", "TypeError"),
        (
            tekken(special_tokens=[{"rank": 1, "token_str": "<s>"}]),
            "no tokenizer of a realtime model",
            "[STREAMING_PAD]",
        ),
        (tekken(audio={}), "no tokenizer of a realtime model", "streaming_n_left_pad_tokens"),
        ({"model": {"vocab": {}}}, "no tokenizer of a realtime model", "special_tokens"),
    ],
    ids=["size", "pieces", "config", "no sizes", "no vocab", "no specials", "text", "audio", "hf"],
)
def test_another_tokenizer_is_told(
    copy: Path, content: dict[str, Any], what: str, got: str
) -> None:
    (copy / TOKENIZER).write_text(json.dumps(content))
    error = refused(copy)
    assert str(copy / TOKENIZER) in error.what
    assert what in error.what
    assert error.got is not None
    assert got in error.got


def test_pieces_are_counted_as_mistral_common_does(copy: Path) -> None:
    """More pieces than are used, as in the published file, are right; fewer are not."""
    content = of_size(1280)
    content["vocab"] = of_size(1300)["vocab"]
    (copy / TOKENIZER).write_text(json.dumps(content))
    assert Tekkenizer.from_file(copy / TOKENIZER).n_words == 1280
    meta_load.run(checkpoint=copy, output=copy.parent / "inventory.json")
    content["vocab"] = of_size(1279)["vocab"]
    (copy / TOKENIZER).write_text(json.dumps(content))
    with pytest.raises(AssertionError):
        Tekkenizer.from_file(copy / TOKENIZER)
    assert "lacks tokens" in refused(copy).what
