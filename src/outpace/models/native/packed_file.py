"""Packed weights on disk: laid out once, mapped into memory by every later start.

A file holds all packed matrices of one model in one choice of formats:

    magic (8 bytes), format version (u32), header length (u32), SHA-256 of the header (32 bytes),
    the header (JSON: key, label, sources, size in bytes, SHA-256 of all that follows, table of
    matrices), the matrices, each at a multiple of ALIGNMENT bytes

It is mapped read-only and shared, so that all processes that run the model share its pages. Its
name and key come from the SHA-256 of the checkpoint's files, the model's configuration and the
formats. The instruction set is no part of the key: the packed layout is the same for all of them.
A file appears under its name only when it is complete. What is damaged or was made by another
version is made again; the content of files beyond CHECKED_BYTES is taken on trust, because reading
it takes longer than a start should. Where nothing can be written, and for models so small that
packing them takes no time, weights are packed in memory at every start.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import mmap
import os
import re
import struct
from collections.abc import Callable, Iterator
from collections.abc import Sequence as List
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from jaxtyping import UInt8

from outpace.models.checkpoint import Checkpoint
from outpace.models.hub.aliases import cache_dir
from outpace.models.native.file_hashes import file_hash
from outpace.models.native.weights import Matrix, PackedData, WeightSource
from outpace.native.weights import aligned_empty

logger = logging.getLogger(__name__)

Progress = Callable[[int, int], None]

FORMAT_VERSION = 1
"""Raised whenever the layout of packed matrices, or what they are made of, changes."""

SMALLEST_FILE = 32 << 20
"""Models with fewer bytes of packed weights get no file."""

ALIGNMENT = 64
CHECKED_BYTES = 1 << 30
_UNKNOWN_DIGEST = "0" * 64
_FIELDS = {"key", "label", "sources", "num_bytes", "digest", "table"}
_MAGIC = b"OUTPACKD"
_PREAMBLE = struct.Struct("<8sII32s")
_MAX_HEADER_BYTES = 1 << 26
_SUFFIX = ".packed"


@dataclass(frozen=True, slots=True)
class PackedModel:
    """What a file of packed weights says of itself.

    label: the formats, in a word. sources: the checkpoint's files.
    """

    path: Path
    label: str
    sources: tuple[str, ...]
    num_bytes: int


def directory() -> Path:
    """Where packed weights are kept: `packed` in the cache directory. Files in it may be deleted at
    any time; they are made again when they are needed."""
    return cache_dir() / "packed"


def packed_weights(
    checkpoint: Checkpoint, matrices: List[Matrix], label: str, progress: Progress | None = None
) -> PackedData:
    """The packed matrices of a checkpoint: mapped from their file, which is written if need be, or
    packed in memory where it cannot be.

    label: names the formats in the file's name. progress(bytes done, bytes in all) is called while
    something is packed.
    """
    if sum(matrix.num_bytes for matrix in matrices) < SMALLEST_FILE:
        return packed_in_memory(checkpoint, matrices, progress)
    try:
        key = _key(checkpoint, matrices)
        path = directory() / f"{_stem(checkpoint.path)}-{label}-{key[:16]}{_SUFFIX}"
        found = _mapped(path, key, matrices)
        if found is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(path.parent / ".lock"):
                # Another process may have packed it while this one waited for the lock.
                found = _mapped(path, key, matrices)
                if found is None:
                    _write(path, key, label, checkpoint, matrices, progress)
                    found = _mapped(path, key, matrices)
    except (OSError, NotImplementedError) as error:
        found = None
        reason = getattr(error, "strerror", None) or error
        logger.warning(
            "packed weights cannot be kept in %s (%s): %s is packed in memory, at every start; "
            "set OUTPACE_CACHE to a directory with room that can be written to",
            directory(),
            reason,
            checkpoint.path,
        )
    return packed_in_memory(checkpoint, matrices, progress) if found is None else found


def packed_in_memory(
    source: WeightSource, matrices: List[Matrix], progress: Progress | None = None
) -> PackedData:
    """The packed matrices in memory of this process alone."""
    places, total = _places(matrices, 0)
    memory = mmap.mmap(-1, max(total, 1))
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # kernels that have no huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    packed = {}
    for matrix, (start, size) in zip(matrices, places, strict=True):
        packed[matrix.name] = np.frombuffer(memory, np.uint8, count=size, offset=start)
        matrix.pack_into(source, packed[matrix.name])
        if progress is not None:
            progress(start + size, total)
    return packed


def list_packed() -> list[PackedModel]:
    """The packed models on disk, by name; files of other versions of the format are not among
    them."""
    found = []
    for path in sorted(directory().glob(f"*{_SUFFIX}")):
        header = _read_header(path)
        if header is not None:
            sources = tuple(header["sources"])
            found.append(PackedModel(path, header["label"], sources, header["num_bytes"]))
    return found


def remove_packed() -> list[Path]:
    """Delete all packed models, of whatever version; returns their paths. Processes that run one
    of them are not disturbed."""
    removed = sorted(directory().glob(f"*{_SUFFIX}"))
    for path in removed:
        path.unlink(missing_ok=True)
    return removed


def _key(checkpoint: Checkpoint, matrices: List[Matrix]) -> str:
    """Hex SHA-256 of everything that the packed bytes depend on."""
    config = asdict(checkpoint.config)
    del config["name"]
    hashes = [file_hash(file, directory()) for file in checkpoint.files()]
    content = [FORMAT_VERSION, hashes, config, [asdict(matrix) for matrix in matrices]]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _stem(path: Path) -> str:
    name = path.stem if path.is_file() else path.resolve().name
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name)[:80]


def _places(matrices: List[Matrix], start: int) -> tuple[list[tuple[int, int]], int]:
    """Where each matrix begins, after `start` bytes, and its size; and where the last one ends."""
    places = []
    for matrix in matrices:
        begin = -(-start // ALIGNMENT) * ALIGNMENT
        places.append((begin, matrix.num_bytes))
        start = begin + matrix.num_bytes
    return places, start


def _table(matrices: List[Matrix]) -> list[list[Any]]:
    """Name, format, shape and size of each matrix, as the header has them."""
    return [[m.name, int(m.weight_format), m.out, m.in_, m.num_bytes] for m in matrices]


def _write(
    path: Path,
    key: str,
    label: str,
    checkpoint: Checkpoint,
    matrices: List[Matrix],
    progress: Progress | None,
) -> None:
    """Pack into a file that takes its name when it is complete. Call under the directory's lock.

    Matrices pass through one buffer each and are written, not stored through a mapping: a disk that
    fills up is then an error and not a signal.
    """
    temporary = path.with_name(f".partial-{path.name}")
    sources = [str(file.resolve()) for file in checkpoint.files()]
    header = _header(key, label, sources, matrices, _UNKNOWN_DIGEST)
    places, total = _places(matrices, len(header))
    digest = hashlib.sha256()
    try:
        with temporary.open("wb") as file:
            file.write(header)
            for matrix, (start, size) in zip(matrices, places, strict=True):
                buffer = aligned_empty(size)
                matrix.pack_into(checkpoint, buffer)
                for part in (bytes(start - file.tell()), buffer.data):
                    file.write(part)
                    digest.update(part)
                if progress is not None:
                    progress(start + size, total)
            file.seek(0)
            file.write(_header(key, label, sources, matrices, digest.hexdigest()))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    _remove_outdated(path, label, sources)


def _header(key: str, label: str, sources: list[str], matrices: List[Matrix], digest: str) -> bytes:
    values: dict[str, Any] = {
        "key": key,
        "label": label,
        "sources": sources,
        "num_bytes": 0,
        "digest": digest,
        "table": _table(matrices),
    }
    # The size of the whole file stands in the header, whose own size depends on its digits.
    while True:
        text = json.dumps(values).encode()
        _, total = _places(matrices, _PREAMBLE.size + len(text))
        if values["num_bytes"] == total:
            checksum = hashlib.sha256(text).digest()
            return _PREAMBLE.pack(_MAGIC, FORMAT_VERSION, len(text), checksum) + text
        values["num_bytes"] = total


def _remove_outdated(path: Path, label: str, sources: list[str]) -> None:
    """Delete what the new file at `path` takes the place of (the same checkpoint before it was
    changed), files whose checkpoint is gone or that are damaged, and those of older versions."""
    for other in path.parent.glob(f"*{_SUFFIX}"):
        if other == path or _version(other) > FORMAT_VERSION:
            continue
        header = _read_header(other)
        is_kept = (
            header is not None
            and all(map(os.path.exists, header["sources"]))
            and (header["sources"], header["label"]) != (sources, label)
        )
        if not is_kept:
            other.unlink(missing_ok=True)


def _mapped(path: Path, key: str, matrices: List[Matrix]) -> PackedData | None:
    """The matrices in the file; None if there is none, or not the one that is wanted."""
    header = _read_header(path)
    if header is None or header["key"] != key or header["table"] != _table(matrices):
        return None
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    places, total = _places(matrices, header["end"])
    if len(mapped) != total:
        return None
    if total <= CHECKED_BYTES and _digest(mapped, header["end"]) != header["digest"]:
        logger.warning("%s is damaged and is made again", path)
        return None
    return dict(_views(mapped, matrices, places))


def _digest(mapped: mmap.mmap, start: int) -> str:
    with memoryview(mapped) as whole, whole[start:] as content:
        return hashlib.sha256(content).hexdigest()


def _views(
    mapped: mmap.mmap, matrices: List[Matrix], places: list[tuple[int, int]]
) -> Iterator[tuple[str, UInt8[np.ndarray, " nbytes"]]]:
    for matrix, (start, size) in zip(matrices, places, strict=True):
        yield matrix.name, np.frombuffer(mapped, np.uint8, count=size, offset=start)


def _version(path: Path) -> int:
    """The format version that a file states; 0 where it states none."""
    try:
        with path.open("rb") as file:
            magic, version, _, _ = _PREAMBLE.unpack(file.read(_PREAMBLE.size))
    except (OSError, struct.error):
        return 0
    return int(version) if magic == _MAGIC else 0


def _read_header(path: Path) -> dict[str, Any] | None:
    """The header of a whole file of this version, and at which byte it ends; None for any other."""
    try:
        with path.open("rb") as file:
            preamble = file.read(_PREAMBLE.size)
            magic, version, length, digest = _PREAMBLE.unpack(preamble)
            if magic != _MAGIC or version != FORMAT_VERSION or length > _MAX_HEADER_BYTES:
                return None
            text = file.read(length)
            size = os.fstat(file.fileno()).st_size
    except (OSError, struct.error):
        return None
    if hashlib.sha256(text).digest() != digest:
        return None
    header: dict[str, Any] = json.loads(text)
    header["end"] = _PREAMBLE.size + length
    return header if header.keys() >= _FIELDS and header["num_bytes"] == size else None
