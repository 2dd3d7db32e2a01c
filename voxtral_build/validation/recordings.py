"""Words, as a user gets them: the artifact's whole folder on recordings."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from voxtral_build.clips import Clip
from voxtral_build.errors import BuildError
from voxtral_build.report import ClipReport, WordReport
from voxtral_build.runtime.artifact import Artifact
from voxtral_build.runtime.reference import Reference
from voxtral_build.runtime.words import WordErrors, transcripts

log = logging.getLogger(__name__)


def word_report(
    artifact: Artifact, clips: Sequence[Clip], references: Mapping[str, Reference]
) -> WordReport:
    """Transcribe recordings and count errors.

    Args:
        references: what the model itself makes of each, by its file's name.

    Raises:
        BuildError: a reference is missing; or a recording cannot be transcribed.
    """
    if missing := [clip.path.name for clip in clips if clip.path.name not in references]:
        raise BuildError(
            "recordings without a reference",
            got=", ".join(missing),
            next_step="make it again with `voxtral-build reference` and the same clips",
        )
    total, total_float32 = WordErrors(), WordErrors()
    reports = {}
    for clip, written in transcripts(artifact, clips):
        own = artifact.vocabulary.text(references[clip.path.name].said)
        total += WordErrors.of(clip.text, written)
        total_float32 += WordErrors.of(clip.text, own)
        reports[clip.path.name] = ClipReport(spoken=clip.text, written=written, written_float32=own)
    log.info("%d words said, word error rate %s", total.spoken, total.rate)
    rate, rate_float32 = total.rate, total_float32.rate
    if rate is None or rate_float32 is None:
        raise BuildError(
            "no words are said in the recordings",
            got=f"{len(clips)} of them",
            allowed="words in words.tsv, in at least one",
            next_step="add recordings with words",
        )
    return WordReport(**asdict(total), rate=rate, rate_float32=rate_float32, clips=reports)
