"""Write an artifact's model card, from its report and its manifest."""

from __future__ import annotations

from pathlib import Path

from voxtral_build.catalog.card import artifact_card
from voxtral_build.catalog.collect import artifact_entry
from voxtral_build.files import write_text


def run(*, artifact: Path, output: Path) -> None:
    """Write the card.

    Raises:
        BuildError: it was not validated.
    """
    write_text(output, artifact_card(artifact_entry(artifact)))
