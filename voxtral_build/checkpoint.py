"""The three files of a checkpoint as Mistral ships it, and what is found in their place."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from voxtral_build import strict_json
from voxtral_build.errors import CheckpointError
from voxtral_build.settings import CheckpointFile

PARAMS: CheckpointFile = "params.json"
WEIGHTS: CheckpointFile = "consolidated.safetensors"
TOKENIZER: CheckpointFile = "tekken.json"
FILES = (PARAMS, WEIGHTS, TOKENIZER)

REPOSITORY = "mistralai/Voxtral-Mini-4B-Realtime-2602"
# What Mistral has published, by the content of the weights: a copy tells as well as the
# original where it comes from, and a folder's name tells nothing.
_RELEASES = {
    "263f178fe752c90a2ae58f037a95ed092db8b14768b0978b8c48f66979c8345d": (
        "2769294da9567371363522aac9bbcfdd19447add",
        {
            PARAMS: "2ace010ebf7f0b62c60747d91c6d140e3c7238632d3e9c63d60a2bd2065ea301",
            TOKENIZER: "8434af1d39eba99f0ef46cf1450bf1a63fa941a26933a1ef5dbbf4adf0d00e44",
        },
    ),
}
_MAX_JSON_BYTES = 200_000_000  # the real tekken.json has 15 MB
_LFS_POINTER = b"version https://git-lfs"
_PAGE = (b"<!doctype", b"<html", b"<head", b"<?xml")
_SHARD = re.compile(r"-\d+-of-\d+\.safetensors$|\.safetensors\.index\.json$")

# Fields of params.json that tell this model from its relatives.
_TELLING = ("dim", "n_layers", "vocab_size", "ada_rms_norm_t_cond_dim", "multimodal")
# Keys that give away what lies in place of params.json.
_RELATIVES = {
    "Hugging Face's config.json": {"architectures", "model_type", "transformers_version"},
    "OpenAI's Whisper": {"n_audio_ctx", "n_text_ctx"},
    "a tokenizer": {"special_tokens", "added_tokens", "vocab"},
    "a model with a vision encoder": {"vision_encoder"},
}


class Release(NamedTuple):
    """A checkpoint that was published.

    Attributes:
        repository: on the Hugging Face Hub.
        revision: a commit of it that has these files.
    """

    repository: str
    revision: str


def known_release(hashes: Mapping[str, str]) -> Release | None:
    """The release that files are, by their SHA-256; None where one of them is another's."""
    revision, others = _RELEASES.get(hashes[WEIGHTS], (None, {}))
    if revision is None or any(hashes[name] != digest for name, digest in others.items()):
        return None
    return Release(REPOSITORY, revision)


def require_files(folder: Path) -> None:
    """See that a folder has the three files, and not something else under their names.

    Raises:
        CheckpointError: names the file that is missing, sharded, empty, or a stand-in.
    """
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if not (folder / WEIGHTS).is_file():
        _refuse_other_weights(folder, [name for name in names if ".safetensors" in name])
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        listing = _shortened(names) or "an empty folder"
        raise CheckpointError(
            f"checkpoint folder {folder}: {', '.join(missing)} missing",
            got=listing if folder.is_dir() else "not a folder",
            allowed=FILES,
            next_step="point checkpoint.path in config/matrix.yaml at a folder that has "
            "Mistral's three files",
        )
    for name in FILES:
        refuse_stand_in(folder / name)


def _refuse_other_weights(folder: Path, names: list[str]) -> None:
    """Tell sharded weights, and Hugging Face's, by the names that are there."""
    shards = [name for name in names if _SHARD.search(name)]
    if any(name.startswith("consolidated") for name in shards):
        next_step = (
            f"join the shards in {WEIGHTS}: load_file of each, save_file of all together "
            "(safetensors.torch)"
        )
    else:
        next_step = (
            f"download {WEIGHTS} of {REPOSITORY}: files named model... hold the same tensors "
            "under Hugging Face's names"
        )
    if names:
        how = "sharded weights" if shards else "weights under another name"
        raise CheckpointError(
            f"checkpoint folder {folder} has {how}, and no {WEIGHTS}",
            got=_shortened(shards or names),
            allowed=f"all weights in one {WEIGHTS}",
            next_step=next_step,
        )


def refuse_stand_in(path: Path) -> None:
    """Tell what a failed download leaves under a file's name.

    Raises:
        CheckpointError: unreadable, empty, a Git-LFS pointer, or a web page.
    """
    try:
        with path.open("rb") as file:
            start = file.read(100)
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read", got=error.strerror, next_step="check that it is there"
        ) from None
    what, next_step = None, "download the file itself"
    if not start:
        what = "empty"
    elif start.startswith(_LFS_POINTER):
        what, next_step = "a Git-LFS pointer, not the file", "run `git lfs pull`, or " + next_step
    elif start.removeprefix(b"\xef\xbb\xbf").lstrip().lower().startswith(_PAGE):
        what = "a web page, not the file"
        next_step += "; where a repository asks for a login, it sends a page without one"
    if what:
        raise CheckpointError(
            f"{path} is {what}",
            got=f"{path.stat().st_size:,} bytes{beginning(start)}",
            next_step=next_step,
        )


def beginning(start: bytes, limit: int = 40) -> str:
    """`, beginning with "..."` where a file starts with text; else nothing."""
    line = start[:limit].split(b"\n")[0].strip()
    readable = line.isascii() and line.decode("ascii").isprintable() if line else False
    return f', beginning with "{line.decode("ascii")}"' if readable else ""


def read_json(path: Path) -> dict[str, Any]:
    """Read `params.json` or `tekken.json`.

    Raises:
        CheckpointError: missing, a stand-in, or not one JSON object.
    """
    refuse_stand_in(path)
    size = path.stat().st_size
    if size > _MAX_JSON_BYTES:
        raise CheckpointError(
            f"{path} is too long for what its name says",
            got=f"{size:,} bytes",
            allowed=f"at most {_MAX_JSON_BYTES:,}",
            next_step=f"take {path.name} from {REPOSITORY}",
        )
    data = path.read_bytes()
    try:
        content = strict_json.parse(data)
    except ValueError as error:
        raise CheckpointError(
            f"{path} is not JSON",
            got=f"{error}{beginning(data)}",
            next_step="download the file again",
        ) from None
    if not isinstance(content, dict):
        raise CheckpointError(
            f"{path} is not a JSON object",
            got=f"a {type(content).__name__}",
            next_step=f"take {path.name} from {REPOSITORY}",
        )
    return content


def read_params(path: Path) -> dict[str, Any]:
    """Read `params.json`, and tell another model's by what it lacks.

    Raises:
        CheckpointError: as `read_json`, or of another model.
    """
    params = read_json(path)
    missing = [field for field in _TELLING if field not in params]
    relative = _relative(params) if missing else None
    if relative:
        raise CheckpointError(
            f"{path} is of another model",
            got=f"what looks like {relative}, without {', '.join(missing)}",
            allowed="params.json of a Voxtral Realtime model",
            next_step=f"take {path.name} from {REPOSITORY}",
        )
    return params


def _relative(params: dict[str, Any]) -> str | None:
    for name, keys in _RELATIVES.items():
        if not keys.isdisjoint(params):
            return name
    if "dim" not in params:
        return None
    if "multimodal" not in params:
        return "a text model of Mistral's"
    return "a Voxtral that does not stream" if "ada_rms_norm_t_cond_dim" not in params else None


def _shortened(names: list[str]) -> str:
    return ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
