"""What a repository on the Hub holds, at one commit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from huggingface_hub.errors import EntryNotFoundError, GatedRepoError, RepositoryNotFoundError
from huggingface_hub.hf_api import RepoFile

from voxtral_build.hub.calls import api, retried, told, understood
from voxtral_build.hub.fetch import Identity


@dataclass(frozen=True)
class State:
    """A repository at a commit.

    Attributes:
        commit: its id.
        private: whether only some may read it.
        files: by path, from `/` on the Hub's side: names that somebody else chose.
    """

    commit: str
    private: bool
    files: Mapping[str, Identity]


def read_state(
    repository: str, *, revision: str = "main", folder: str | None = None
) -> State | None:
    """What a repository holds, or one folder of it.

    Returns:
        None where there is no such repository, or a private one that is not ours to see.
        A folder that is not there has no files.

    Raises:
        HubError: the Hub cannot be reached, or refuses.
    """
    with told(repository, "read what it holds"), understood(repository):
        try:
            info = retried(
                lambda: api().model_info(repository, revision=revision, timeout=60), repository
            )
        except GatedRepoError:
            raise
        except RepositoryNotFoundError:
            return None
        commit = info.sha
        if commit is None:
            raise TypeError("no commit")
        try:
            listed = list(
                api().list_repo_tree(
                    repository, path_in_repo=folder, recursive=True, revision=commit
                )
            )
        except EntryNotFoundError:
            listed = []
        files = {item.path: _identity(item) for item in listed if isinstance(item, RepoFile)}
    return State(commit, bool(info.private), files)


def _identity(file: RepoFile) -> Identity:
    if file.lfs is not None:
        return Identity(file.lfs.size, file.lfs.sha256, "sha256")
    return Identity(file.size, file.blob_id, "git")


@dataclass(frozen=True)
class Proposal:
    """An open pull request: where it can be read, by programs and by people."""

    revision: str
    url: str


def open_proposals(repository: str, title: str) -> list[Proposal]:
    """Open pull requests of a title.

    Raises:
        HubError: the Hub cannot be reached, or refuses.
    """

    def ask() -> list[Proposal]:
        found = api().get_repo_discussions(
            repository, discussion_type="pull_request", discussion_status="open"
        )
        return [Proposal(f"refs/pr/{item.num}", item.url) for item in found if item.title == title]

    with told(repository, "list its pull requests"), understood(repository):
        return retried(ask, repository)
