"""What a repository on the Hub has to hold, and what has to be done so that it does.

```
README.md, catalog.json, index.html      of all that is there
<backend>/<variant>/                     an artifact: what its manifest lists, the manifest,
                                         its report and its card
```

Nothing gets there but what is named here: no folder is ever walked.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from voxtral_build.artifact_files import (
    CARD,
    DATA,
    MANIFEST,
    MODEL,
    PREPROCESSOR,
    REPORT,
)
from voxtral_build.backends import BACKENDS
from voxtral_build.catalog.card import artifact_card, repository_card
from voxtral_build.catalog.collect import collect
from voxtral_build.catalog.entries import Catalog, Entry, Status
from voxtral_build.catalog.page import render
from voxtral_build.checkpoint import TOKENIZER
from voxtral_build.errors import BuildError, ValidationError
from voxtral_build.hub.fetch import Identity, git_blob_id
from voxtral_build.hub.repository import State
from voxtral_build.manifest import FileRecord
from voxtral_build.matrix import Matrix
from voxtral_build.variants import Variant
from voxtral_build.verify import strays, verify

log = logging.getLogger(__name__)

CATALOG = "catalog.json"
# All that a folder of an artifact may hold on the Hub.
ARTIFACT_FILES = (MODEL, DATA, PREPROCESSOR, TOKENIZER, MANIFEST, REPORT, CARD)


def folder_of(variant: Variant) -> str:
    """Where an artifact lies in a repository: a name that says everything, even on its own."""
    return f"{variant.backend}/{variant.slug}"


def variants_in(state: State) -> list[Variant]:
    """Artifacts of a repository, by its folders' names; anything else there is not ours."""
    found = {}
    for path in state.files:
        backend, _, rest = path.partition("/")
        slug, _, name = rest.partition("/")
        if name not in ARTIFACT_FILES or backend not in BACKENDS:
            continue
        try:
            variant = Variant.parse(slug)
        except BuildError:
            continue
        if variant.backend == backend:
            found[slug] = variant
    return list(found.values())


@dataclass(frozen=True)
class Item:
    """A file as it has to be in the repository.

    Attributes:
        path: there.
        source: a file here, or the content itself.
        record: size and hash of that.
    """

    path: str
    source: Path | bytes
    record: FileRecord

    @classmethod
    def of(cls, path: str, content: bytes) -> Item:
        """Of content that is made here."""
        return cls(path, content, FileRecord(len(content), hashlib.sha256(content).hexdigest()))

    def is_at(self, state: State) -> bool:
        """Whether the repository has the file with this content."""
        there = state.files.get(self.path)
        if there is None or there.bytes != self.record.bytes:
            return False
        if there.kind == "sha256":
            return there.digest == self.record.sha256
        if isinstance(self.source, Path) and not Identity.sha256(self.record).is_of(self.source):
            return False  # it has changed since it was checked, and may have been sent so
        return there.digest == git_blob_id(self.source)


@dataclass(frozen=True)
class Artifacts:
    """What is here to be published.

    Attributes:
        catalog: every variant of the matrix, with what is known of it here.
        items: the files of those that go up, checked one by one; by variant.
    """

    catalog: Catalog
    items: Mapping[str, tuple[Item, ...]]


@dataclass(frozen=True)
class Plan:
    """What has to be done to a repository.

    Attributes:
        new, changed: files to send.
        removed: paths of files to remove.
        unchanged: files that are there already.
        kept: folders of artifacts that are no longer of the matrix, and stay.
        catalog: what the repository will hold.
    """

    new: tuple[Item, ...]
    changed: tuple[Item, ...]
    removed: tuple[str, ...]
    unchanged: tuple[Item, ...]
    kept: tuple[str, ...]
    catalog: Catalog

    @property
    def sent(self) -> tuple[Item, ...]:
        """Files to send."""
        return self.new + self.changed

    @property
    def is_empty(self) -> bool:
        """Whether the repository is already as it has to be."""
        return not self.sent and not self.removed


def artifacts_to_publish(matrix: Matrix, folder: Path, *, inspected: bool) -> Artifacts:
    """Every validated artifact of the matrix, each file held against its manifest.

    Args:
        folder: of the artifacts' folders.
        inspected: also those that no runtime at hand could run, and that were read back.

    Raises:
        ValidationError: an artifact is not what its manifest says.
        BuildError: nothing is validated.
    """
    wanted: set[Status] = {"validated", "inspected"} if inspected else {"validated"}
    catalog = collect(matrix, folder)
    items = {
        entry.variant: _checked_items(entry, folder / entry.variant)
        for entry in catalog.entries
        if entry.status in wanted
    }
    for entry in catalog.entries:
        if entry.variant not in items and entry.status != "not built":
            log.info("%s: %s, it stays here", entry.variant, entry.status)
    if not items:
        statuses = dict.fromkeys(entry.status for entry in catalog.entries)
        raise BuildError(
            f"{folder}: nothing to publish",
            got=f"{len(catalog.entries)} variants: {', '.join(statuses)}",
            allowed=f"at least one {' or '.join(sorted(wanted))} artifact",
            next_step="build them: `snakemake`",
        )
    return Artifacts(catalog, items)


def _checked_items(entry: Entry, folder: Path) -> tuple[Item, ...]:
    manifest = verify(folder, alone=False)
    for name in strays(folder, manifest):
        log.warning("%s: belongs to no artifact, it stays here", folder / name)
    unknown = manifest.files.keys() - set(ARTIFACT_FILES)
    if unknown:
        raise ValidationError(
            f"{folder / MANIFEST} lists what no artifact has",
            got=", ".join(sorted(unknown)),
            allowed=ARTIFACT_FILES,
            next_step="link it again: `snakemake --forcerun link`",
        )
    base = folder_of(Variant.parse(entry.variant))
    files = {name: (folder / name, record) for name, record in manifest.files.items()}
    files |= {name: (folder / name, FileRecord.of(folder / name)) for name in (MANIFEST, REPORT)}
    listed = [Item(f"{base}/{name}", path, record) for name, (path, record) in files.items()]
    return (*listed, Item.of(f"{base}/{CARD}", artifact_card(entry).encode()))


def make_plan(
    repository: str, artifacts: Artifacts, state: State, remote: Catalog | None, *, prune: bool
) -> Plan:
    """What has to be done so that a repository holds the artifacts.

    What other hosts have published of the matrix stays, and is in the catalog; so does what has
    left the matrix, unless it is pruned.

    Args:
        repository: its name.
        state: of it now.
        remote: the catalog that it has now.
    """
    there = {entry.variant: entry for entry in remote.entries} if remote else {}
    own = [_entry(entry, artifacts, state, there) for entry in artifacts.catalog.entries]
    of_matrix = {entry.variant for entry in own}
    gone = [variant for variant in variants_in(state) if variant.slug not in of_matrix]
    kept = [] if prune else gone
    others = [
        there[variant.slug]
        for variant in kept
        if variant.slug in there and _is_there(there[variant.slug], state)
    ]
    catalog = Catalog(entries=[*own, *others])
    items = [item for files in artifacts.items.values() for item in files]
    published = [
        entry.variant
        for entry in catalog.entries
        if entry.variant in artifacts.items or _is_there(entry, state)
    ]
    items += catalog_items(catalog, repository, published)
    unchanged = tuple(item for item in items if item.is_at(state))
    sent = [item for item in items if item not in unchanged]
    return Plan(
        new=tuple(item for item in sent if item.path not in state.files),
        changed=tuple(item for item in sent if item.path in state.files),
        removed=tuple(_removed(artifacts, state, gone if prune else ())),
        unchanged=unchanged,
        kept=tuple(folder_of(variant) for variant in kept),
        catalog=catalog,
    )


def catalog_items(catalog: Catalog, repository: str, published: Sequence[str]) -> list[Item]:
    """The repository's own files, of what it holds.

    Args:
        published: variants that it holds.
    """
    return [
        Item.of(CARD, repository_card(catalog, repository, published).encode()),
        Item.of(CATALOG, (catalog.model_dump_json(indent=1) + "\n").encode()),
        Item.of("index.html", render(catalog, repository, published).encode()),
    ]


def _entry(entry: Entry, artifacts: Artifacts, state: State, there: Mapping[str, Entry]) -> Entry:
    """What the repository will have of a variant: ours, or else what it has of another host."""
    theirs = there.get(entry.variant)
    if entry.variant in artifacts.items or theirs is None or not _is_there(theirs, state):
        return entry
    return theirs


def _is_there(entry: Entry, state: State) -> bool:
    """Whether the repository holds what an entry speaks of."""
    base = folder_of(Variant.parse(entry.variant))
    return bool(entry.files) and all(
        _has(state.files.get(f"{base}/{name}"), file.bytes, file.sha256)
        for name, file in entry.files.items()
    )


def _has(there: Identity | None, size: int, sha256: str) -> bool:
    if there is None or there.bytes != size:
        return False
    return there.kind == "git" or there.digest == sha256


def _removed(artifacts: Artifacts, state: State, gone: Sequence[Variant]) -> Iterator[str]:
    """Files of pruned artifacts; and of those that are replaced, what the new ones lack."""
    for variant in gone:
        yield from _files_of(variant, state)
    for slug, items in artifacts.items.items():
        paths = {item.path for item in items}
        yield from (path for path in _files_of(Variant.parse(slug), state) if path not in paths)


def _files_of(variant: Variant, state: State) -> list[str]:
    paths = [f"{folder_of(variant)}/{name}" for name in ARTIFACT_FILES]
    return [path for path in paths if path in state.files]


def as_text(plan: Plan) -> str:
    """A line for each file that goes up or away, with its size, and the sums."""
    marks = [("new", plan.new), ("changed", plan.changed)]
    lines = [
        f"{mark:<8}  {item.record.bytes:>15,}  {item.path}"
        for mark, items in marks
        for item in items
    ]
    lines += [f"{'removed':<8}  {'':>15}  {path}" for path in plan.removed]
    lines += [
        f"{'kept':<8}  {'':>15}  {folder}/ (not in the matrix; --prune removes it)"
        for folder in plan.kept
    ]
    lines.append(
        f"{len(plan.sent)} files of {_bytes(plan.sent):,} bytes to send, "
        f"{len(plan.removed)} to remove, "
        f"{len(plan.unchanged)} of {_bytes(plan.unchanged):,} bytes there already"
    )
    return "\n".join(lines)


def _bytes(items: Sequence[Item]) -> int:
    return sum(item.record.bytes for item in items)
