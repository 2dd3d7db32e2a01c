"""Fetch one artifact from a repository on the Hub, check it, and say how to run it.

The repository may be anybody's: names of files are taken from a list of ours and never from
there, sizes are known before the first byte, and nothing is at its place before all is right.
"""

from __future__ import annotations

import errno
import logging
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from voxtral_build.artifact_files import CARD, MANIFEST, REPORT
from voxtral_build.errors import BuildError, HubError, ValidationError
from voxtral_build.hub.calls import page_of
from voxtral_build.hub.fetch import Identity, fetch, require_space
from voxtral_build.hub.repository import State, read_state
from voxtral_build.manifest import Manifest
from voxtral_build.publication import ARTIFACT_FILES, folder_of, variants_in
from voxtral_build.redaction import one_line
from voxtral_build.report import Report
from voxtral_build.strict_config import suggest
from voxtral_build.variants import Variant
from voxtral_build.verify import verify

log = logging.getLogger(__name__)

_BESIDE = (MANIFEST, REPORT, CARD)
_LONGEST = 10_000_000  # bytes of each of these; they have some 10 kB


def pull(*, repository: str, variant: Variant, revision: str, output: Path) -> Path:
    """Fetch an artifact's folder to `output`: whole and verified, or not at all.

    Interrupted, the next call goes on where it was.

    Args:
        repository: `organization/name`.
        revision: a branch, a tag or a commit.
        output: a folder that is not there yet, or that has this artifact already.

    Raises:
        HubError: it is not there, or could not be fetched.
        ValidationError: it is not what its manifest says; nothing of it is left here.
    """
    state = read_state(repository, revision=revision, folder=folder_of(variant))
    if state is None:
        raise HubError(
            f"{repository} is not there",
            got="no such repository, or a private one that HF_TOKEN gives no access to",
            next_step="check the name; for a private one, set HF_TOKEN to a token that can read it",
        )
    there = _files_there(repository, variant, state)
    if output.exists() or output.is_symlink():
        _require_same(output, there[MANIFEST])
        return output
    with _work_folder(output) as work:
        _bring(repository, variant, state, work, {MANIFEST: there[MANIFEST]})
        try:
            _require_listed(repository, variant, work / MANIFEST, there)
        except ValidationError:
            (work / MANIFEST).unlink()
            raise
        require_space(work, {work / name: item for name, item in there.items()})
        _bring(repository, variant, state, work, there)
        for path in work.iterdir():  # such as parts of what an older revision had
            if path.name not in there:
                path.unlink()
        try:
            verify(work)
        except BuildError as error:
            shutil.rmtree(work)
            found = error.got if isinstance(error, ValidationError) else _in_short(error)
            raise ValidationError(
                f"{repository}: {variant.slug} is not what its manifest says; "
                "nothing of it was kept",
                got=found,
                next_step=f"take another revision: {page_of(repository)}/commits/main",
            ) from None
        try:
            work.replace(output)
        except OSError as error:
            raise BuildError(
                f"{work} is right, and cannot become {output}",
                got=error.strerror,
                next_step="move what is there away, and run it again: nothing is fetched twice",
            ) from None
    return output


def how_to_run(folder: Path) -> str:
    """What was fetched, and the next command, for people."""
    manifest = Manifest.load(folder / MANIFEST)
    files = manifest.files.values()
    size = sum(record.bytes for record in files)
    lines = [f"{manifest.variant}: {size:,} bytes in {len(files)} files, right, in {folder}", ""]
    report = Report.load(folder / REPORT)
    place = shlex.quote(str(folder))
    if report.not_run:
        lines.append(f"Where it was made it could not be run: {one_line(report.not_run)}.")
        lines.append(f"How it is run on a device: {folder / CARD}")
    else:
        lines.append(f"voxtral-build transcribe {place} speech.wav")
        if Variant.parse(manifest.variant).mode == "streaming":
            lines.append(f"voxtral-build transcribe {place} microphone --stream")
        lines.append(f"In Python, and with ExecuTorch's C++ runner: {folder / CARD}")
    return "\n".join(lines)


def _files_there(repository: str, variant: Variant, state: State) -> dict[str, Identity]:
    """Files of an artifact in a repository, by the names that an artifact has."""
    base = folder_of(variant)
    there = {
        name: state.files[f"{base}/{name}"]
        for name in ARTIFACT_FILES
        if f"{base}/{name}" in state.files
    }
    if MANIFEST not in there:
        whole = read_state(repository, revision=state.commit)
        slugs = [item.slug for item in variants_in(whole)] if whole else []
        raise HubError(
            f"{repository} has no {variant.slug}",
            got=f"revision {state.commit}",
            allowed=slugs or "no artifact is there",
            next_step=suggest(variant.slug, slugs) or f"see {page_of(repository)}",
        )
    for name in _BESIDE:
        if name not in there:
            raise HubError(
                f"{repository}: {variant.slug} is not whole",
                got=f"no {name}",
                next_step=f"take another revision: {page_of(repository)}/commits/main",
            )
        if there[name].bytes > _LONGEST:
            raise HubError(
                f"{repository}: {base}/{name} is too long for what its name says",
                got=f"{there[name].bytes:,} bytes",
                allowed=f"at most {_LONGEST:,}",
                next_step="do not take artifacts of this repository",
            )
    return there


def _require_listed(
    repository: str, variant: Variant, path: Path, there: dict[str, Identity]
) -> None:
    """What is there has to be what the manifest lists, as far as the Hub tells hashes."""
    try:
        manifest = Manifest.load(path)
    except BuildError as error:
        raise _not_as_listed(repository, variant, _in_short(error)) from None
    if manifest.variant != variant.slug:
        raise _not_as_listed(repository, variant, f"a manifest of {manifest.variant}")
    for name, record in manifest.files.items():
        expected = Identity.sha256(record)
        if name not in ARTIFACT_FILES or name in _BESIDE:
            raise _not_as_listed(repository, variant, f"{name!r}, which no artifact has")
        if name not in there:
            raise _not_as_listed(repository, variant, f"no {name}")
        found = there[name]
        if found.bytes != expected.bytes or (found.kind == "sha256" and found != expected):
            raise _not_as_listed(
                repository,
                variant,
                f"{name} of {found.bytes:,} bytes, {found.kind} {found.digest}",
            )
    surplus = there.keys() - manifest.files.keys() - set(_BESIDE)
    if surplus:
        raise _not_as_listed(repository, variant, f"{', '.join(sorted(surplus))} beside it")


def _not_as_listed(repository: str, variant: Variant, got: str) -> ValidationError:
    return ValidationError(
        f"{repository}: {variant.slug} is not what its manifest says; nothing of it was fetched",
        got=one_line(got),
        allowed=f"of {', '.join(ARTIFACT_FILES)}, those that the manifest lists, as it lists them",
        next_step=f"take another revision: {page_of(repository)}/commits/main",
    )


def _in_short(error: BuildError) -> str:
    return one_line(f"{error.what}: {error.got}" if error.got else error.what)


@contextmanager
def _work_folder(output: Path) -> Iterator[Path]:
    """A folder beside `output`, which stays for the next call where something arrived in it.

    Links, and whatever else no call of ours leaves there, are removed and never followed.
    """
    work = output.with_name(f".{output.name}.pull")
    try:
        work.mkdir(parents=True, exist_ok=True)
        if work.is_symlink():  # to a folder; its files are not ours
            raise FileExistsError(errno.EEXIST, "a link to another folder")
        for path in work.iterdir():
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                path.unlink()
            elif path.is_dir():
                shutil.rmtree(path)
    except OSError as error:
        raise BuildError(
            f"{work} cannot be the folder where files arrive",
            got=error.strerror,
            allowed="a folder of our own, or nothing",
            next_step="move it away, or give another --output",
        ) from None
    try:
        yield work
    finally:
        with suppress(OSError):  # not empty, or not there any more
            work.rmdir()


def _bring(
    repository: str, variant: Variant, state: State, work: Path, expected: dict[str, Identity]
) -> None:
    for name, identity in expected.items():
        if not identity.is_of(work / name):
            (work / name).unlink(missing_ok=True)
            fetch(repository, state.commit, f"{folder_of(variant)}/{name}", work / name, identity)


def _require_same(output: Path, manifest: Identity) -> None:
    """A folder that is there has to be this very artifact."""
    own = output / MANIFEST
    if not manifest.is_of(own):
        raise BuildError(
            f"{output} is there already, and is something else",
            got="another artifact, or another version of this one"
            if own.is_file()
            else "no artifact",
            allowed="a folder that is not there, or has the artifact that is to be fetched",
            next_step="move it away, or give another --output",
        )
    try:
        verify(output)
    except BuildError as error:
        raise ValidationError(
            f"{output} is there already, and is damaged",
            got=error.got if isinstance(error, ValidationError) else _in_short(error),
            next_step="move it away, and run this again",
        ) from None
    log.info("%s is there already", output)
