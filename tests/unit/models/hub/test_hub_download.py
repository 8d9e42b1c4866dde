"""Models from the Hub: its client runs against a server in this process."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.file_download
import pytest
import torch
from fake_hub import FakeHub, Repo, serving
from huggingface_hub import constants
from model_files import random_weights, write_gguf, write_hf

from outpace.errors import DownloadError, ModelError
from outpace.models.hf.config import config_from_hf
from outpace.models.hub import download, names
from outpace.models.hub.download import HubName, parse
from outpace.models.open import open_checkpoint
from outpace.models.tensors import check_tensors

NAME = "org/name"
NOT_WANTED = {
    "README.md": b"# A model",
    "modeling_own.py": b"raise SystemExit",
    "tokenization_own.py": b"raise SystemExit",
    "consolidated.safetensors": b"the same again",
    "flax_model.msgpack": b"the same again",
    "tf_model.h5": b"the same again",
    "onnx/model.onnx": b"the same again",
    "original/consolidated.00.pth": b"the same again",
    "training_args.bin": b"a pickle",
}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """An empty Hub, an empty cache, and nobody logged in."""
    with serving(FakeHub()) as fake:
        monkeypatch.setattr(constants, "ENDPOINT", fake.url)
        template = fake.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        # The client pauses between its tries.
        monkeypatch.setattr(time, "sleep", lambda seconds: None)
        yield fake


@pytest.fixture
def sharded(server: FakeHub, tmp_path: Path) -> dict[str, bytes]:
    """A repository of two shards; only what is wanted of it."""
    wanted = contents(write_hf(tmp_path / "source", num_shards=2))
    bins = {"pytorch_model.bin": b"the same again", "pytorch_model.bin.index.json": b"{}"}
    server.repos[NAME] = Repo(wanted | NOT_WANTED | bins)
    return wanted


def contents(directory: Path) -> dict[str, bytes]:
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in files}


def refusal(name: str) -> str:
    with pytest.raises(ModelError) as caught:
        names.resolve(name)
    return str(caught.value)


# --- what is fetched --------------------------------------------------------------------------


def test_a_sharded_model_is_fetched_without_the_rest(
    server: FakeHub, sharded: dict[str, bytes]
) -> None:
    path = names.resolve(NAME)
    assert contents(path) == sharded
    check_tensors(open_checkpoint(path))
    downloads = server.downloads()
    assert sorted(downloads) == sorted(sharded)
    assert all(file.endswith(".safetensors") for file in downloads[-2:])


def test_second_use_asks_whether_it_moved_and_downloads_nothing(
    server: FakeHub, sharded: dict[str, bytes]
) -> None:
    path = names.resolve(NAME)
    server.requests.clear()
    calls: list[tuple[int, int]] = []
    assert names.resolve(NAME, progress=lambda *counts: calls.append(counts)) == path
    assert server.downloads() == []
    assert calls == []
    server.repos[NAME].commits["main"] = "b" * 40
    server.repos[NAME].files["tokenizer_config.json"] = b"{}"
    moved = names.resolve(NAME)
    assert moved != path
    assert contents(moved) == sharded | {"tokenizer_config.json": b"{}"}


def test_progress_counts_bytes_of_what_is_downloaded(
    server: FakeHub, sharded: dict[str, bytes]
) -> None:
    calls: list[tuple[int, int]] = []
    names.pull(NAME, progress=lambda *counts: calls.append(counts))
    # Needed to know what else is: the configuration and the index come before counting starts.
    total = sum(
        len(data) for name, data in sharded.items() if not name.endswith(("g.json", "x.json"))
    )
    total += len(sharded["tokenizer_config.json"])
    assert {all_bytes for _, all_bytes in calls} == {total}
    done = [count for count, _ in calls]
    assert done == sorted(done)
    assert done[-1] == total
    assert len(done) >= 4


@pytest.mark.parametrize("num_shards", [1, 2])
def test_bin_weights_are_fetched_where_there_are_no_others(
    server: FakeHub, tmp_path: Path, num_shards: int
) -> None:
    source = write_hf(tmp_path / "source")
    (source / "model.safetensors").unlink()
    weights = random_weights(config_from_hf(json.loads((source / "config.json").read_text())))
    tensors = sorted(weights)
    if num_shards == 1:
        torch.save(weights, source / "pytorch_model.bin")
    else:
        weight_map = {name: f"pytorch_model-{i % 2}.bin" for i, name in enumerate(tensors)}
        for file in set(weight_map.values()):
            torch.save({n: weights[n] for n in tensors if weight_map[n] == file}, source / file)
        index = json.dumps({"weight_map": weight_map})
        (source / "pytorch_model.bin.index.json").write_text(index)
    server.repos[NAME] = Repo(contents(source) | NOT_WANTED)
    path = names.resolve(NAME)
    assert contents(path) == contents(source)
    check_tensors(open_checkpoint(path))


@pytest.fixture
def ggufs(server: FakeHub, tmp_path: Path) -> bytes:
    data = write_gguf(tmp_path / "source.gguf").read_bytes()
    server.repos[NAME] = Repo({"tiny-Q8.gguf": data, "sub/tiny-Q4.gguf": b"GGUF", "README.md": b""})
    return data


@pytest.mark.parametrize(
    "name",
    [f"{NAME}:tiny-Q8.gguf", f"{NAME}/tiny-Q8.gguf", f"{NAME}@main:tiny-Q8.gguf"],
)
def test_one_gguf_file_of_a_repository(server: FakeHub, ggufs: bytes, name: str) -> None:
    calls: list[tuple[int, int]] = []
    path = names.resolve(name, progress=lambda *counts: calls.append(counts))
    assert path.name == "tiny-Q8.gguf"
    assert path.read_bytes() == ggufs
    assert server.downloads() == ["tiny-Q8.gguf"]
    assert calls[-1] == (len(ggufs), len(ggufs))
    assert names.resolve(name) == path
    assert server.downloads() == ["tiny-Q8.gguf"]


def test_gguf_files_to_choose_from(server: FakeHub, ggufs: bytes) -> None:
    choice = "choose one as org/name:FILE, FILE being sub/tiny-Q4.gguf, tiny-Q8.gguf"
    assert refusal(NAME) == f"org/name holds several GGUF files; {choice}"
    assert refusal(f"{NAME}:other.gguf") == f"org/name holds no file other.gguf; {choice}"
    assert names.resolve(f"{NAME}/sub/tiny-Q4.gguf").read_bytes() == b"GGUF"
    server.repos[NAME].files["config.json"] = b"{}"
    assert refusal(NAME) == f"org/name holds GGUF files; {choice}"
    del server.repos[NAME].files["sub/tiny-Q4.gguf"], server.repos[NAME].files["config.json"]
    assert names.resolve(NAME).read_bytes() == ggufs


def test_repositories_without_a_model(server: FakeHub) -> None:
    server.repos[NAME] = Repo({"README.md": b"#", "unet/config.json": b"{}"})
    assert refusal(NAME) == "org/name: the repository holds no config.json and no GGUF file"
    assert refusal(f"{NAME}:x.gguf") == "org/name:x.gguf: the repository holds no GGUF file"
    server.repos[NAME] = Repo({"config.json": b"{}", "adapter_config.json": b"{}"})
    assert "org/name is a LoRA adapter without weights that can be read" in refusal(NAME)


# --- revisions and access ---------------------------------------------------------------------


def test_revisions(server: FakeHub, sharded: dict[str, bytes]) -> None:
    commit = "c" * 40
    server.repos[NAME].commits |= {"refs/pr/1": commit}
    path = names.resolve(f"{NAME}@refs/pr/1")
    assert path.name == commit
    assert contents(path) == sharded
    server.requests.clear()
    assert names.resolve(f"{NAME}@{commit}") == path
    assert server.requests == []
    assert refusal(f"{NAME}@v2") == "org/name@v2: org/name has no branch, tag or commit v2"


def test_a_branch_that_moves_while_it_is_fetched(
    server: FakeHub, sharded: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = download._sizes

    def move(info: object) -> dict[str, int]:
        server.repos[NAME].commits["main"] = "b" * 40
        return sizes(info)  # type: ignore[arg-type]

    monkeypatch.setattr(download, "_sizes", move)
    assert refusal(NAME) == "org/name changed while it was being fetched; try again"
    assert contents(names.resolve(NAME)) == sharded


@pytest.mark.parametrize(
    ("access", "reason"),
    [
        ("gated", "accept the conditions on {url}/org/name and log in with `hf auth login`"),
        ("private", "does not exist or may not be read by you; check the name, and for a private"),
    ],
)
def test_access(
    server: FakeHub,
    sharded: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
    access: str,
    reason: str,
) -> None:
    server.repos[NAME].access = access
    assert reason.format(url=server.url) in refusal(NAME)
    monkeypatch.setenv("HF_TOKEN", server.token)
    assert contents(names.resolve(NAME)) == sharded


def test_repositories_that_do_not_exist(server: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refusal("org/nothing").startswith("org/nothing: no such local path, and on the Hub")
    monkeypatch.setenv("HF_TOKEN", server.token)
    assert refusal("org/nothing").startswith("org/nothing: no such local path, and on the Hub")


# --- networks ---------------------------------------------------------------------------------


def test_a_broken_connection_is_resumed_where_it_broke(
    server: FakeHub, sharded: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 10_000)
    server.cut_after = [100_000, 30_000]
    calls: list[tuple[int, int]] = []
    path = names.resolve(NAME, progress=lambda *counts: calls.append(counts))
    assert contents(path) == sharded
    assert server.ranges == ["bytes=100000-", "bytes=130000-"]
    assert calls[-1][0] == calls[-1][1]


def test_a_connection_that_keeps_breaking(server: FakeHub, sharded: dict[str, bytes]) -> None:
    server.cut_after = [0] * 100
    assert "could not be fetched from" in refusal(NAME)
    server.cut_after = []
    assert contents(names.resolve(NAME)) == sharded


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, OSError])
def test_an_interrupted_download_leaves_no_partial_file(
    server: FakeHub, sharded: dict[str, bytes], error: type[BaseException]
) -> None:
    def interrupt(done: int, total: int) -> None:
        if done > total // 2:
            raise error("enough")

    with pytest.raises(error, match="enough"):
        names.resolve(NAME, progress=interrupt)
    cache = Path(constants.HF_HUB_CACHE)
    assert list(cache.rglob("*.safetensors")) == []
    assert list(cache.rglob("*.incomplete")) == []
    assert contents(names.resolve(NAME)) == sharded


@pytest.fixture
def no_network(server: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The address of a server that is gone."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
    monkeypatch.setattr(constants, "ENDPOINT", url)


def test_without_a_network_what_is_cached_runs(
    server: FakeHub, sharded: dict[str, bytes], request: pytest.FixtureRequest
) -> None:
    path = names.resolve(NAME)
    server.repos["org/gguf"] = Repo({"a.gguf": b"GGUF"})
    gguf = names.resolve("org/gguf:a.gguf")
    request.getfixturevalue("no_network")
    assert names.resolve(NAME) == path
    assert names.resolve("org/gguf:a.gguf") == gguf
    reason = refusal("org/other")
    assert f"org/other is not in the cache {constants.HF_HUB_CACHE} and could not be" in reason
    assert f"fetched from {constants.ENDPOINT} (ConnectError" in reason
    assert "check the network, or give the path of a local model" in reason


def test_offline_says_so(
    server: FakeHub, sharded: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = names.resolve(NAME)
    server.requests.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert names.resolve(NAME) == path
    reason = refusal(f"{NAME}@other")
    assert "org/name@other cannot be fetched, because HF_HUB_OFFLINE is set, and it is" in reason
    assert f"in the cache {constants.HF_HUB_CACHE}; unset it, or give the path of a" in reason
    (path / "model-00002-of-00002.safetensors").unlink()
    assert "is not, or not wholly, in the cache" in refusal(NAME)
    assert server.requests == []


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (500, r"could not be fetched from .*500"),
        (429, r"org/name could not be fetched: .*429"),
        (403, r"may not be read by you"),
        (200, r"could not be fetched from .*JSON"),
    ],
)
def test_servers_that_answer_something_else(
    server: FakeHub, sharded: dict[str, bytes], status: int, reason: str
) -> None:
    server.status = status
    with pytest.raises(DownloadError, match=reason):
        names.resolve(NAME)


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), PermissionError(13, "no")]
)
def test_a_cache_that_cannot_be_written(
    server: FakeHub,
    sharded: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
    error: OSError,
) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(huggingface_hub.file_download, "http_get", refuse)
    reason = refusal(NAME)
    assert f"could not be stored in {constants.HF_HUB_CACHE}: {error.strerror}; set HF_HU" in reason


def test_a_server_that_never_answers(
    server: FakeHub, sharded: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "_LISTING_TIMEOUT_S", 0.05)
    server.hang_s = 0.3
    assert "could not be fetched from" in refusal(NAME)


@pytest.mark.parametrize("place", ["../../../evil.safetensors", "/evil.safetensors"])
def test_an_index_that_leaves_the_directory(
    server: FakeHub, sharded: dict[str, bytes], place: str
) -> None:
    index = json.dumps({"weight_map": {"x": place}}).encode()
    server.repos[NAME].files["model.safetensors.index.json"] = index
    assert "outside the model's directory" in refusal(NAME)


def test_an_index_with_a_shard_that_is_not_there(
    server: FakeHub, sharded: dict[str, bytes]
) -> None:
    del server.repos[NAME].files["model-00002-of-00002.safetensors"]
    assert "names model-00002-of-00002.safetensors, which is not there" in refusal(NAME)


CODE = "import sys; from outpace.models.hub import names; print(names.resolve(sys.argv[1]))"


def test_the_environment_of_the_hubs_client(
    server: FakeHub, sharded: dict[str, bytes], tmp_path: Path
) -> None:
    """HF_ENDPOINT, HF_HOME and HF_HUB_OFFLINE mean what they mean everywhere.

    Two processes may fetch the same model at once.
    """
    environment = os.environ | {"HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path / "home")}

    def start(**changes: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", CODE, NAME]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, env=environment | changes, stdout=pipe, stderr=pipe, text=True
        )

    assert "HF_HUB_OFFLINE is set" in start(HF_HUB_OFFLINE="1").communicate()[1]
    first, second = (process.communicate() for process in [start(), start()])
    assert first == second
    output, errors = first
    assert errors == ""
    assert contents(Path(output.strip())) == sharded
    assert str(tmp_path / "home") in output
    assert start(HF_HUB_OFFLINE="1").communicate()[0] == output


# --- names ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("org/name", HubName("org/name")),
        ("Org-1/Name_2.5-GGUF", HubName("Org-1/Name_2.5-GGUF")),
        ("org/name@v1.0", HubName("org/name", "v1.0")),
        ("org/name@refs/pr/1", HubName("org/name", "refs/pr/1")),
        ("org/name:a.gguf", HubName("org/name", "main", "a.gguf")),
        ("org/name@v1:sub/a.gguf", HubName("org/name", "v1", "sub/a.gguf")),
        ("org/name/sub/a.gguf@v1", HubName("org/name", "v1", "sub/a.gguf")),
        ("name", None),
        ("models/a.gguf", None),
        ("./org/name", None),
        ("../name", None),
        ("/org/name", None),
        ("~/models", None),
        ("org/name/more", None),
        ("org/name:a.safetensors", None),
        ("org/name/../../a.gguf", None),
        ("org/name@../x", None),
        ("org/na me", None),
        ("org/name@", None),
        ("org/" + "n" * 5000, None),
    ],
)
def test_names(name: str, parts: HubName | None) -> None:
    assert parse(name) == parts


def test_names_are_shown_as_they_are_given() -> None:
    for name in ("org/name", "org/name@v1", "org/name:a.gguf", "org/name@v1:sub/a.gguf"):
        assert str(parse(name)) == name


def test_pull_of_a_hub_id_from_a_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="org/name is not an alias, and only an alias can be"):
        names.pull(NAME, from_file=tmp_path)


def test_failed_attempts_are_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The client's notes on each attempt are silent while we ask, and for nobody else."""
    client = logging.getLogger("huggingface_hub.utils._http")
    monkeypatch.setattr(client, "propagate", True)

    def failing(*_: object, **__: object) -> None:
        client.warning("thrown while requesting, retrying")
        raise ConnectionError("no route")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", failing)
    with pytest.raises(DownloadError, match="no route"):
        download.fetch_config(HubName("org/name"))
    assert not caplog.records
    client.warning("somebody else's")
    assert [record.message for record in caplog.records] == ["somebody else's"]
