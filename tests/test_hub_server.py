"""The Hub's own client against the server that stands for the Hub in other tests."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import httpx2
import pytest
from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationDelete,
    HfApi,
    get_hf_file_metadata,
    hf_hub_download,
    hf_hub_url,
    snapshot_download,
)
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import http_get

from tests.hub import (
    READ_TOKEN,
    WRITE_TOKEN,
    Before,
    Cut,
    Endless,
    HubServer,
    Lost,
    Slow,
    Stall,
    Status,
    Wrong,
)

REPO = "tester/model"
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
LARGE = bytes(range(256)) * 1024
STORED = "GET /storage"


@pytest.fixture(autouse=True)
def plain_client(monkeypatch):
    """No Xet, no token of whoever runs the tests, and no waiting before the client tries again."""
    monkeypatch.setattr("huggingface_hub.utils._headers.get_token", lambda: None)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    patient = SimpleNamespace(sleep=lambda _: None)
    for module in ("file_download", "utils._http"):
        monkeypatch.setattr(f"huggingface_hub.{module}.time", patient)


@pytest.fixture
def hub(tmp_path):
    with HubServer(tmp_path / "hub") as server:
        yield server
    assert not server.errors
    assert not server.faults_left


@pytest.fixture
def api(hub):
    return HfApi(endpoint=hub.url, token=WRITE_TOKEN)


def add(path, content):
    return CommitOperationAdd(path_in_repo=path, path_or_fileobj=content)


def commit(api, files, **more):
    operations = [add(path, content) for path, content in files.items()]
    return api.create_commit(REPO, operations, commit_message="change", **more)


def seen(hub, pattern):
    return [item for item in hub.requests if pattern in f"{item.method} {item.path}"]


def large_repo(hub):
    """Returns the address of its large file in the storage."""
    hub.create(REPO)
    hub.commit(REPO, {"model.pte": LARGE})
    return location(hub)


def location(hub):
    url = hf_hub_url(REPO, "model.pte", endpoint=hub.url)
    return get_hf_file_metadata(url, token=WRITE_TOKEN).location


def fetched(url, **more):
    file = io.BytesIO()
    http_get(url, file, **more)
    return file.getvalue()


def test_a_repository_is_made_once(hub, api):
    url = api.create_repo(REPO, private=True)
    assert url.repo_id == REPO
    assert hub.is_private(REPO)
    assert list(hub.tree(REPO)) == [".gitattributes"]
    assert api.create_repo(REPO, exist_ok=True).repo_id == REPO
    with pytest.raises(HfHubHTTPError) as caught:
        api.create_repo(REPO)
    assert caught.value.response.status_code == 409
    with pytest.raises(HfHubHTTPError) as caught:
        api.create_repo("tester/other", token=READ_TOKEN)
    assert caught.value.response.status_code == 403
    with pytest.raises(HfHubHTTPError) as caught:
        api.create_repo("tester/other", token=False)
    assert caught.value.response.status_code == 401
    assert api.whoami()["name"] == "tester"
    assert not hub.exists("tester/other")


def test_regular_and_large_files_are_committed(hub, api, tmp_path):
    api.create_repo(REPO)
    (tmp_path / "model.pte").write_bytes(LARGE)
    files = {
        "README.md": b"# A model\n",
        "a/b/tokens.json": b"{}",
        "a/model.pte": tmp_path / "model.pte",
        "empty.bin": b"",
    }
    info = commit(api, files, parent_commit=hub.head(REPO))
    assert info.oid == hub.head(REPO)
    assert info.commit_url == f"{hub.url}/{REPO}/commit/{info.oid}"
    tree = hub.tree(REPO)
    assert tree["a/model.pte"].sha256 == hashlib.sha256(LARGE).hexdigest()
    assert tree["empty.bin"].sha256 is None
    assert hub.read(REPO, "a/model.pte") == LARGE
    assert [commit.title for commit in hub.commits(REPO)] == ["change", "initial commit"]
    listed = {item.path: item for item in api.list_repo_tree(REPO, recursive=True, expand=True)}
    assert list(listed) == sorted(["a", "a/b", ".gitattributes", *files])
    assert listed["a/model.pte"].lfs.sha256 == tree["a/model.pte"].sha256
    assert listed["a/model.pte"].blob_id == tree["a/model.pte"].sha1
    assert listed["a/model.pte"].last_commit.oid == info.oid
    assert [item.path for item in api.list_repo_tree(REPO, "a")] == ["a/b", "a/model.pte"]
    found = api.get_paths_info(REPO, ["README.md", "a", "missing"])
    assert [item.path for item in found] == ["README.md", "a"]
    model = api.model_info(REPO, files_metadata=True)
    assert model.sha == info.oid
    assert {item.rfilename: item.size for item in model.siblings}["a/model.pte"] == len(LARGE)
    folder = snapshot_download(REPO, endpoint=hub.url, local_dir=tmp_path / "snapshot")
    for path in files:
        assert Path(folder, path).read_bytes() == hub.read(REPO, path)
        got = hf_hub_download(REPO, path, endpoint=hub.url, cache_dir=tmp_path / "cache")
        assert Path(got).read_bytes() == hub.read(REPO, path)
    # As git has it.
    assert tree["a/b/tokens.json"].sha1 == "9e26dfeeb6e641a33dae4961196235bdb965b21b"


def test_what_is_there_is_not_sent_again(hub, api):
    api.create_repo(REPO)
    files = {"a.json": b"{}", "model.pte": LARGE}
    first = commit(api, files)
    assert commit(api, files).oid == first.oid
    assert len(seen(hub, "PUT /storage")) == 1
    assert len(seen(hub, "/commit/")) == 1
    commit(api, {"copy.pte": LARGE})
    assert len(seen(hub, "PUT /storage")) == 1
    assert hub.tree(REPO)["copy.pte"] == hub.tree(REPO)["model.pte"]


def test_files_and_folders_are_deleted(hub, api):
    api.create_repo(REPO)
    commit(api, {"a/b.json": b"1", "a/c.json": b"2", "d.json": b"3"})
    gone = [CommitOperationDelete("a/"), CommitOperationDelete("d.json")]
    api.create_commit(REPO, gone, commit_message="less")
    assert list(hub.tree(REPO)) == [".gitattributes"]
    with pytest.raises(RemoteEntryNotFoundError, match="doesn't exist"):
        api.create_commit(REPO, [add("x", b"x"), *gone], commit_message="nothing")
    assert len(hub.commits(REPO)) == 3
    hub.tag(REPO, "v1", hub.commits(REPO)[1].id)
    assert api.model_info(REPO, revision="v1").sha == hub.commits(REPO)[1].id
    assert api.list_repo_refs(REPO).tags[0].name == "v1"


def test_a_commit_on_another_parent_is_refused(hub, api):
    api.create_repo(REPO)
    parent = hub.head(REPO)
    hub.commit(REPO, {"theirs": b"1"})
    with pytest.raises(HfHubHTTPError, match="A commit has happened since") as caught:
        commit(api, {"ours": b"2"}, parent_commit=parent)
    assert caught.value.response.status_code == 412
    assert "ours" not in hub.tree(REPO)


def test_a_pull_request(hub, api):
    api.create_repo(REPO)
    parent = hub.head(REPO)
    hub.commit(REPO, {"theirs": b"1"})
    with pytest.raises(HfHubHTTPError) as caught:
        commit(api, {"model.pte": LARGE}, token=READ_TOKEN)
    assert caught.value.response.status_code == 403
    info = commit(api, {"model.pte": LARGE}, create_pr=True, parent_commit=parent, token=READ_TOKEN)
    assert (info.pr_num, info.pr_revision) == (1, "refs/pr/1")
    assert "model.pte" not in hub.tree(REPO)
    assert hub.commits(REPO, "refs/pr/1")[0].parent == parent
    assert hub.read(REPO, "model.pte", "refs/pr/1") == LARGE
    second = commit(api, {"more.json": b"{}"}, revision="refs/pr/1", token=READ_TOKEN)
    assert hub.head(REPO, "refs/pr/1") == second.oid
    assert api.model_info(REPO, revision="refs/pr/1").sha == second.oid
    (discussion,) = api.get_repo_discussions(
        REPO, discussion_type="pull_request", discussion_status="open"
    )
    assert (discussion.num, discussion.author) == (1, "reader")
    details = api.get_discussion_details(REPO, 1)
    assert [event.type for event in details.events] == ["comment", "commit", "commit"]
    assert details.git_reference == "refs/pr/1"
    refs = api.list_repo_refs(REPO, include_pull_requests=True)
    assert refs.pull_requests[0].target_commit == second.oid
    assert [item.title for item in api.list_repo_commits(REPO, revision="refs/pr/1")] == [
        "change",
        "change",
        "initial commit",
    ]
    hub.close_pull_request(REPO, 1, merge=True)
    assert {"theirs", "model.pte", "more.json"} <= set(hub.tree(REPO))
    assert not list(api.get_repo_discussions(REPO, discussion_status="open"))
    assert hub.pull_requests(REPO)[0].status == "merged"


def test_long_lists_come_in_pages(tmp_path):
    with HubServer(tmp_path, page_size=2) as hub:
        api = HfApi(endpoint=hub.url, token=WRITE_TOKEN)
        hub.create(REPO)
        for number in range(4):
            hub.commit(REPO, {f"a b/{number}": b"x"})
            commit(api, {"mine": b"x"}, create_pr=True)
        assert len(list(api.list_repo_tree(REPO, recursive=True))) == 6
        assert len(seen(hub, "/tree/")) == 3
        assert len(api.list_repo_commits(REPO)) == 5
        assert [item.num for item in api.get_repo_discussions(REPO)] == [4, 3, 2, 1]


def test_a_folder_is_served_again(tmp_path):
    with HubServer(tmp_path) as hub:
        hub.create(REPO, private=True)
        hub.commit(REPO, {"a": b"1", "model.pte": LARGE})
        commit(HfApi(endpoint=hub.url, token=WRITE_TOKEN), {"b": b"2"}, create_pr=True)
        commits, port = hub.commits(REPO), hub.port
    with HubServer(tmp_path, port=port) as hub:
        assert hub.commits(REPO) == commits
        assert hub.pull_requests(REPO)[0].revision == "refs/pr/1"
        assert hub.read(REPO, "model.pte") == LARGE
        assert hub.is_private(REPO)


def test_an_upload_in_parts(tmp_path):
    with HubServer(tmp_path / "hub", part_bytes=100_000) as hub:
        api = HfApi(endpoint=hub.url, token=WRITE_TOKEN)
        hub.create(REPO)
        (tmp_path / "model.pte").write_bytes(LARGE)
        hub.fail("PUT /storage/.*/2$", Cut(after=50_000))
        commit(api, {"model.pte": tmp_path / "model.pte"})
        assert hub.read(REPO, "model.pte") == LARGE
        assert [item.received for item in seen(hub, "PUT")] == [100_000, 50_000, 100_000, 62_144]
        hub.fail("/complete_multipart", Status(503))
        commit(api, {"other.pte": LARGE[1:]})
        assert hub.read(REPO, "other.pte") == LARGE[1:]
        assert not list((tmp_path / "hub").rglob("uploads/*"))


def test_a_large_file_must_be_uploaded_first(hub, api):
    api.create_repo(REPO)
    operation = add("model.pte", LARGE)
    api.preupload_lfs_files(REPO, [operation])
    assert hub.has_object(REPO, hashlib.sha256(LARGE).hexdigest())
    other = add("other.pte", LARGE[1:])
    other._upload_mode, other._is_uploaded = "lfs", True
    with pytest.raises(HfHubHTTPError, match="does not exist") as caught:
        api.create_commit(REPO, [operation, other], commit_message="change")
    assert caught.value.response.status_code == 400
    assert len(hub.commits(REPO)) == 1


def test_the_token_stays_with_the_hub(hub, api, tmp_path):
    url = large_repo(hub)
    got = hf_hub_download(
        REPO, "model.pte", endpoint=hub.url, token=WRITE_TOKEN, cache_dir=tmp_path
    )
    assert Path(got).read_bytes() == LARGE
    # Followed by the client of its own, as the downloader does when it has no metadata.
    resolve = hf_hub_url(REPO, "model.pte", endpoint=hub.url)
    headers = {"Authorization": f"Bearer {WRITE_TOKEN}"}
    assert fetched(resolve, headers=headers) == LARGE
    stored = seen(hub, STORED)
    assert [item.status for item in stored] == [200, 200]
    assert not any("authorization" in item.headers for item in stored)
    assert all("authorization" in item.headers for item in seen(hub, "/resolve/"))
    assert httpx2.get(url, headers=headers).status_code == 400
    assert httpx2.get(url.partition("?")[0]).status_code == 403
    commit(api, {"other.pte": LARGE[1:]})
    assert not any("authorization" in item.headers for item in seen(hub, "PUT /storage"))


def test_a_download_goes_on_where_it_stopped(hub):
    url = large_repo(hub)
    assert fetched(url, resume_size=1000, expected_size=len(LARGE)) == LARGE[1000:]
    assert seen(hub, STORED)[-1].status == 206
    hub.commit(REPO, {"a.txt": b"0123456789"})
    regular = hf_hub_url(REPO, "a.txt", endpoint=hub.url)
    assert fetched(regular, resume_size=4) == b"456789"
    for asked, status, body in (("2-3", 206, b"23"), ("-3", 206, b"789"), ("10-", 416, b"")):
        answer = httpx2.get(regular, headers={"Range": f"bytes={asked}"})
        assert (answer.status_code, answer.content) == (status, body)
    metadata = get_hf_file_metadata(regular)
    assert (metadata.size, metadata.etag) == (10, hub.tree(REPO)["a.txt"].sha1)
    assert metadata.commit_hash == hub.head(REPO)


def test_who_may_see_what(hub, api):
    hub.create(REPO, private=True)
    hub.create("tester/gated", gated=True)
    hub.commit("tester/gated", {"a": b"1"})
    nobody = HfApi(endpoint=hub.url, token=False)
    for repo in (REPO, "tester/none"):
        with pytest.raises(RepositoryNotFoundError) as caught:
            nobody.model_info(repo)
        assert caught.value.response.status_code == 401
    with pytest.raises(RepositoryNotFoundError) as caught:
        api.model_info("tester/none")
    assert caught.value.response.status_code == 404
    with pytest.raises(HfHubHTTPError, match="Invalid credentials") as caught:
        api.model_info(REPO, token="hf_wrong")
    assert not isinstance(caught.value, RepositoryNotFoundError)
    assert api.model_info(REPO, token=READ_TOKEN).private
    hub.strangers.add(READ_TOKEN)
    with pytest.raises(RepositoryNotFoundError) as caught:
        api.model_info(REPO, token=READ_TOKEN)
    assert caught.value.response.status_code == 404
    assert nobody.model_info("tester/gated").gated == "auto"
    url = hf_hub_url("tester/gated", "a", endpoint=hub.url)
    for token, status in ((False, 401), (READ_TOKEN, 403)):
        with pytest.raises(GatedRepoError) as caught:
            get_hf_file_metadata(url, token=token)
        assert caught.value.response.status_code == status
    hub.granted.add(READ_TOKEN)
    assert get_hf_file_metadata(url, token=READ_TOKEN).size == 1
    with pytest.raises(RevisionNotFoundError):
        api.model_info(REPO, revision="none")
    with pytest.raises(RemoteEntryNotFoundError):
        get_hf_file_metadata(hf_hub_url(REPO, "none", endpoint=hub.url), token=WRITE_TOKEN)


def test_names_of_files_may_be_hostile(hub, api, tmp_path):
    hub.create(REPO)
    names = ["../../up.txt", "/etc/absolute", "a/../../b", "C:\\a", "con", "a\nb", "ü?#%2F", "..."]
    hub.commit(REPO, dict.fromkeys(names, b"evil"))
    listed = {item.path for item in api.list_repo_tree(REPO, recursive=True)}
    assert set(names) <= listed
    for name in names:
        assert hub.read(REPO, name) == b"evil"
    assert not list(tmp_path.rglob("up.txt"))
    encoded = httpx2.URL(hub.url).copy_with(
        raw_path=f"/{REPO}/resolve/main/..%2F..%2Fup.txt".encode()
    )
    assert httpx2.get(encoded).content == b"evil"
    operation = add("a", b"x")
    operation.path_in_repo = "../a"
    with pytest.raises(HfHubHTTPError) as caught:
        api.create_commit(REPO, [operation], commit_message="change")
    assert caught.value.response.status_code == 400


# Faults


def test_a_status(hub, api):
    hub.create(REPO)
    hub.fail("GET /api/models", Status(429, {"Retry-After": "1"}, message="Slow down"), skip=1)
    assert api.model_info(REPO).sha
    with pytest.raises(HfHubHTTPError, match="Slow down") as caught:
        api.model_info(REPO)
    assert caught.value.response.headers["Retry-After"] == "1"
    hub.fail("PUT /storage", Status(500), times=2)
    commit(api, {"model.pte": LARGE})
    uploads = seen(hub, "PUT /storage")
    assert [(item.status, item.received) for item in uploads] == [
        (500, len(LARGE)),
        (500, len(LARGE)),
        (200, len(LARGE)),
    ]


def test_a_cut_download(hub, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 500)
    url = large_repo(hub)
    hub.fail(STORED, Cut(after=1000))
    assert fetched(url) == LARGE
    assert [(item.status, item.sent) for item in seen(hub, STORED)] == [
        (200, 1000),
        (206, len(LARGE) - 1000),
    ]
    # A reset is none of the errors that the client goes on after.
    hub.fail(STORED, Cut(after=1000, reset=True))
    with pytest.raises(httpx2.ReadError):
        fetched(url)
    hub.fail("HEAD .*/resolve/", Cut())
    with pytest.raises(httpx2.RemoteProtocolError):
        location(hub)


def test_a_cut_upload(hub, api):
    hub.create(REPO)
    hub.fail("PUT /storage", Cut(after=1000), times=2)
    commit(api, {"model.pte": LARGE})
    assert hub.read(REPO, "model.pte") == LARGE
    assert [item.received for item in seen(hub, "PUT")] == [1000, 1000, len(LARGE)]


def test_wrong_bytes(hub):
    url = large_repo(hub)
    hub.fail(STORED, Wrong())
    got = fetched(url)
    assert got[0] != LARGE[0]
    assert got[1:] == LARGE[1:]


def test_slowness(hub, api):
    url = large_repo(hub)
    hub.fail(STORED, Slow(bytes_per_second=1_000_000))
    started = time.monotonic()
    assert fetched(url) == LARGE
    assert time.monotonic() - started > 0.19
    hub.fail("PUT /storage", Slow(bytes_per_second=1_000_000))
    started = time.monotonic()
    commit(api, {"other.pte": LARGE[1:]})
    assert time.monotonic() - started > 0.19


def test_a_stalled_client_that_leaves(hub):
    url = large_repo(hub)
    hub.fail(STORED, Stall(after=100_000))
    with httpx2.stream("GET", url) as answer:
        pieces = answer.iter_raw()
        got = b""
        while len(got) < 100_000:
            got += next(pieces)
        assert got == LARGE[:100_000]
        assert seen(hub, STORED)[-1].sent == 100_000


def test_a_stall_does_not_keep_the_server(tmp_path):
    code = """
import sys
from huggingface_hub import HfApi
HfApi(token=sys.argv[1]).upload_file(
    path_or_fileobj=sys.argv[2], path_in_repo="model.pte", repo_id=sys.argv[3])
"""
    (tmp_path / "model.pte").write_bytes(LARGE * 40)
    with HubServer(tmp_path / "hub") as hub:
        hub.create(REPO)
        hub.fail("PUT /storage", Stall(after=50_000), times=10)
        arguments = [sys.executable, "-c", code, WRITE_TOKEN, tmp_path / "model.pte", REPO]
        environment = os.environ | {"HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1"}
        client = subprocess.Popen(arguments, env=environment, stderr=subprocess.DEVNULL)
        while not seen(hub, "PUT /storage"):
            assert client.poll() is None
            time.sleep(0.02)
        client.kill()
        client.wait()
        started = time.monotonic()
    assert time.monotonic() - started < 1
    assert seen(hub, "PUT /storage")[0].received == 50_000
    assert not [path for path in (tmp_path / "hub").rglob("lfs/*") if path.is_file()]


def test_a_lost_answer(hub, api):
    hub.create(REPO)
    hub.fail("/commit/", Lost())
    with pytest.raises(httpx2.RemoteProtocolError):
        commit(api, {"a": b"1"})
    assert hub.read(REPO, "a") == b"1"
    assert seen(hub, "/commit/")[0].status == 0


def test_somebody_else_is_faster(hub, api):
    hub.create(REPO)
    hub.fail("/commit/", Before(lambda: hub.commit(REPO, {"theirs": b"1"})))
    with pytest.raises(HfHubHTTPError) as caught:
        commit(api, {"ours": b"2"}, parent_commit=hub.head(REPO))
    assert caught.value.response.status_code == 412
    assert "theirs" in hub.tree(REPO)


def test_a_download_without_end(hub):
    url = large_repo(hub)
    hub.fail(STORED, Endless(), times=2)
    assert fetched(url) == LARGE * 3
    with pytest.raises(OSError, match="Consistency check failed"):
        fetched(url, expected_size=len(LARGE))


def test_many_clients_at_once(hub, api):
    hub.create(REPO)
    before = len(hub.commits(REPO))
    threads = [
        threading.Thread(target=commit, args=(api, {f"{number}.bin": b"%d\0" % number}))
        for number in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(hub.tree(REPO)) == 9
    assert len(hub.commits(REPO)) == before + 8
