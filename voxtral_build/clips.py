"""Sets of recordings whose words are known: a folder of sound files and `words.tsv`.

Each line of `words.tsv` is a file's name, a tab, and what is said in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from voxtral_build.errors import BuildError

WORDS = "words.tsv"


@dataclass(frozen=True)
class Clip:
    """A recording, and what is said in it."""

    path: Path
    text: str


def read_clips(folder: Path) -> list[Clip]:
    """The recordings of a set.

    Raises:
        BuildError: no such folder, a line that is none, or a recording that is missing.
    """
    table = folder / WORDS
    if not table.is_file():
        raise BuildError(
            f"{folder} holds no set of recordings",
            got=f"no {WORDS} in it",
            allowed=f"a folder of sound files and {WORDS}: a file's name, a tab, its words",
            next_step="take demo/clips",
        )
    clips = []
    for number, line in enumerate(table.read_text(encoding="utf-8").splitlines(), 1):
        name, tab, text = line.partition("\t")
        path = folder / name
        if not tab or Path(name).name != name or not path.is_file():
            raise BuildError(
                f"{table}, line {number}",
                got=repr(line[:80]),
                allowed="the name of a file in this folder, a tab, and what is said in it",
                next_step="correct or remove the line",
            )
        clips.append(Clip(path, text))
    return clips
