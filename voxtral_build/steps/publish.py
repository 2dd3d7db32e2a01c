"""Publish validated artifacts to a repository on the Hugging Face Hub, in one commit."""

from __future__ import annotations

import itertools
import logging
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from voxtral_build.catalog.card import repository_card
from voxtral_build.catalog.entries import Catalog
from voxtral_build.errors import BuildError, ConfigError, HubError
from voxtral_build.hub.calls import brief, may_pass, moved, page_of, retry_after, told
from voxtral_build.hub.fetch import fetch
from voxtral_build.hub.repository import State, open_proposals, read_state
from voxtral_build.hub.upload import Upload, Uploads, create_repository, told_without_cause
from voxtral_build.manifest import source
from voxtral_build.matrix import Matrix
from voxtral_build.publication import (
    CATALOG,
    Artifacts,
    Plan,
    artifacts_to_publish,
    as_text,
    make_plan,
)
from voxtral_build.variants import Variant

log = logging.getLogger(__name__)

_TRIES = 5
_LONGEST_CATALOG = 100_000_000  # bytes; that of 36 variants has 0.5 MB


@dataclass(frozen=True)
class Options:
    """How to publish.

    Attributes:
        private: a repository that is made is private; one that is there has to be.
        create_pr: propose the commit as a pull request, and leave the branch alone.
        prune: remove artifacts that are no longer of the matrix.
        inspected: publish those that were read back and not run as well.
        dry_run: print what would be done, and do nothing.
    """

    private: bool = False
    create_pr: bool = False
    prune: bool = False
    inspected: bool = False
    dry_run: bool = False


def run(*, matrix: Matrix, artifacts: Path, repository: str, options: Options) -> None:
    """Make a repository hold every validated artifact, and its catalog.

    What is there already is not sent; where nothing has changed, there is no commit. A commit
    of somebody else's meanwhile is noticed, and the plan made again on top of it. Afterwards
    the repository is read back and held against the plan.

    Args:
        artifacts: the folder of artifacts' folders.
        repository: `organization/name`; made where it is not there.

    Raises:
        BuildError: an artifact is not what its manifest says, or none is validated; nothing
            was sent.
        HubError: the Hub cannot be reached, or refuses; the repository is as it was.
    """
    here = artifacts_to_publish(matrix, artifacts, inspected=options.inspected)
    failure: _NotCommittedError | None = None
    for tries in itertools.count():
        state = _state(repository, options)
        if not state.commit and not options.dry_run:
            # Before the plan: somebody else may make it too, and publish to it.
            state = _created(repository, options)
        plan = make_plan(
            repository, here, state, _catalog_at(repository, state), prune=options.prune
        )
        if options.dry_run:
            _print_dry_run(repository, state, plan, options)
            return
        log.info("%s at %s:\n%s", repository, state.commit, as_text(plan))
        if plan.is_empty:
            what = "holds all of it already: no commit" if failure is None else "holds all of it"
            log.info("%s %s", page_of(repository), what)
            return
        if failure is not None and tries == _TRIES:
            raise HubError(
                f"{repository}: could not be committed to; it is as others left it",
                got=f"{failure} ({tries} times)",
                next_step="run it again: what has arrived is not sent twice",
            )
        try:
            _publish(repository, state, plan, here, options)
            return
        except _NotCommittedError as again:
            failure = again
            wait = max(2**tries, again.wait)
            log.warning("%s: %s; planning again in %d s", repository, again, wait)
            time.sleep(wait)


class _NotCommittedError(Exception):
    """A commit did not land, or nobody knows whether it did.

    Attributes:
        wait: seconds that the Hub asked for.
    """

    def __init__(self, cause: Exception) -> None:
        super().__init__(brief(cause))
        self.wait = retry_after(cause)


def _state(repository: str, options: Options) -> State:
    state = read_state(repository)
    if state is None:
        return State("", private=options.private, files={})
    if options.private and not state.private:
        raise ConfigError(
            f"{repository} is public",
            got="--private",
            allowed="a repository that is private, or not there yet",
            next_step=f"make it private on {page_of(repository)}/settings, or leave --private out",
        )
    return state


def _created(repository: str, options: Options) -> State:
    create_repository(repository, private=options.private)
    state = _state(repository, options)
    if not state.commit:
        raise HubError(
            f"{repository} is there, and cannot be read",
            got="no such repository, or one that the token has no access to",
            next_step="set HF_TOKEN to a token that may also read there, and run it again",
        )
    return state


def _catalog_at(repository: str, state: State) -> Catalog | None:
    """The catalog that a repository has; one of another version says nothing."""
    there = state.files.get(CATALOG)
    if there is None or there.bytes > _LONGEST_CATALOG:
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / CATALOG
        fetch(repository, state.commit, CATALOG, path, there)
        try:
            catalog = Catalog.load(path)
            _require_consistent(catalog)
        except BuildError as error:
            log.warning(
                "%s: its %s cannot be read (%s): what others published is not in the new one",
                repository,
                CATALOG,
                error.what,
            )
            return None
    return catalog


def _require_consistent(catalog: Catalog) -> None:
    """Whoever writes to the repository can have changed it: ours has to be made of it after all.

    Raises:
        BuildError: an entry contradicts itself.
    """
    for entry in catalog.entries:
        axes = Variant.parse(entry.variant).axes
        if axes != {axis: getattr(entry, axis) for axis in axes}:
            raise BuildError(f"{entry.variant} is on {entry.backend}")
    repository_card(catalog)


def _print_dry_run(repository: str, state: State, plan: Plan, options: Options) -> None:
    if state.commit:
        where = f"{repository} at {state.commit}, {'private' if state.private else 'public'}"
    else:
        where = f"{repository}, to be created{', private' if options.private else ''}"
    print(where)
    print(as_text(plan))
    if plan.is_empty:
        print("nothing to do: no commit")
    else:
        print("one pull request" if options.create_pr else "one commit on main")
    sys.stdout.flush()


def _publish(repository: str, state: State, plan: Plan, here: Artifacts, options: Options) -> None:
    """Send, commit and read back."""
    title, description = _message(plan, here)
    if options.create_pr:
        for proposal in open_proposals(repository, title):
            proposed = read_state(repository, revision=proposal.revision)
            if proposed is not None and _lacks(proposed, plan) == []:
                log.info("%s is open already: no other one is made", proposal.url)
                return
    files = [Upload(item.path, item.source, item.record) for item in plan.sent]
    uploads = Uploads(repository, files, create_pr=options.create_pr)
    uploads.send()
    with told(repository, "commit", writing=True), told_without_cause(repository):
        try:
            commit = uploads.commit(
                plan.removed, title=title, description=description, parent=state.commit
            )
        except Exception as error:
            # With its parent held, a commit that did land after all is not made twice.
            if moved(error) or may_pass(error):
                raise _NotCommittedError(error) from None
            raise
    _read_back(repository, commit.oid, plan)
    log.info(
        "sent %s bytes; %s: %s", f"{uploads.sent:,}", title, commit.pr_url or commit.commit_url
    )


def _message(plan: Plan, here: Artifacts) -> tuple[str, str]:
    """Title and description of the commit: the same for the same artifacts."""
    title = f"Publish {_counted(len(here.items), 'artifact')}"
    if plan.removed:
        title += f", remove {_counted(len(plan.removed), 'file')}"
    made_at = source()
    made = f"voxtral-build at commit {made_at['commit']}" if made_at else "voxtral-build"
    return title, "\n".join([f"Made by {made}.", "", *(f"- {variant}" for variant in here.items)])


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _read_back(repository: str, commit: str, plan: Plan) -> None:
    """Hold what is there after the commit against the manifests, and all else that was planned."""
    state = read_state(repository, revision=commit)
    lacks = ["the commit itself"] if state is None else _lacks(state, plan)
    if lacks:
        raise HubError(
            f"{repository}: the commit {commit} does not hold what was published",
            got=", ".join(lacks[:10]) + (", ..." if len(lacks) > 10 else ""),
            allowed="every file of the plan, with its size and hash",
            next_step=f"see what a .gitignore there keeps out, or undo the commit: "
            f"{page_of(repository)}/commits/main",
        )
    log.info("read back: all %d files are right", len(plan.sent) + len(plan.unchanged))


def _lacks(state: State, plan: Plan) -> list[str]:
    """Paths that are not as planned."""
    return [
        *(item.path for item in (*plan.sent, *plan.unchanged) if not item.is_at(state)),
        *(path for path in plan.removed if path in state.files),
    ]
