"""Features of a target on disk: token ids and captured layers, memory-mapped, safe to interrupt.

A directory of flat files. `sequences.jsonl` is the index: a sequence exists when its line is
complete and so is all its data; whatever lies behind the last such sequence was being written when
the process ended, and is cut off when the store is opened for writing again.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from collections.abc import Sequence as List
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from outpace.errors import OptionError
from outpace.training.trainee import TrainingBatch

if TYPE_CHECKING:
    from jaxtyping import UInt16
    from torch import Tensor

FORMAT = 1
_SERIAL_VALUES = 16384
_HEADER, _INDEX, _TOKENS = "store.json", "sequences.jsonl", "tokens.bin"


def bytes_needed(num_tokens: int, capture: List[int], hidden_size: int) -> int:
    """What features of that many tokens take on disk."""
    return num_tokens * (4 + 2 * hidden_size * len(capture))


@dataclass(frozen=True, slots=True)
class Header:
    """What all sequences of a store share.

    capture: layers of the target, 0 the embedding, i the i-th layer's output. fingerprint: of the
    target whose features they are.
    """

    capture: tuple[int, ...]
    hidden_size: int
    vocab_size: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One sequence: a prompt and the target's answer to it.

    held_out: not to be trained on. key: what it was made from, so that it is made once.
    """

    num_prompt: int
    num_tokens: int
    source: str
    temperature: float
    held_out: bool
    key: str


class FeatureStore:
    """The sequences of a directory. Reading does not copy more than it returns.

    Made by `open` to read, or `open_to_write`, which creates what is missing.
    """

    def __init__(self, directory: Path, header: Header, entries: list[Entry]) -> None:
        self.directory = directory
        self.header = header
        self._entries = entries
        self._starts = np.cumsum([0, *(entry.num_tokens for entry in entries)]).tolist()

    @classmethod
    def open(cls, directory: str | Path) -> FeatureStore:
        """Raises OptionError where there is no store, or one of another version."""
        directory = Path(directory)
        header = _read_header(directory)
        return cls(directory, header, _complete_entries(directory, header))

    @classmethod
    def open_to_write(cls, directory: str | Path, header: Header) -> FeatureStore:
        """Create a store or go on with one, cutting off what was not finished.

        Raises OptionError if there is one of other layers or another target.
        """
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        if not (directory / _HEADER).exists():
            _write_header(directory, header)
        found = _read_header(directory)
        if found != header:
            raise OptionError(
                f"{directory} holds features of layers {list(found.capture)} of a target with "
                f"fingerprint {found.fingerprint:.12}, wanted are {list(header.capture)} of "
                f"{header.fingerprint:.12}; use another directory, or remove this one"
            )
        store = cls(directory, header, _complete_entries(directory, header))
        store._cut()
        return store

    @property
    def capture(self) -> tuple[int, ...]:
        return self.header.capture

    @property
    def hidden_size(self) -> int:
        return self.header.hidden_size

    @property
    def keys(self) -> set[str]:
        return {entry.key for entry in self._entries}

    def __len__(self) -> int:
        """How many sequences there are."""
        return len(self._entries)

    def source(self, index: int) -> str:
        return self._entries[index].source

    def temperature(self, index: int) -> float:
        return self._entries[index].temperature

    def key(self, index: int) -> str:
        """`Answer.key` of what it was made from."""
        return self._entries[index].key

    def num_prompt(self, index: int) -> int:
        return self._entries[index].num_prompt

    def num_tokens(self, index: int) -> int:
        """Of prompt and answer."""
        return self._entries[index].num_tokens

    def is_held_out(self, index: int) -> bool:
        return self._entries[index].held_out

    def token_ids(self, index: int) -> list[int]:
        """Of prompt and answer."""
        return [int(token) for token in self._tokens[self._span(index)]]

    def batch(self, indices: List[int]) -> TrainingBatch:
        """These sequences, one after the other. Copies them out of the memory map."""
        import torch

        spans = [self._span(index) for index in indices]
        lengths = [span.stop - span.start for span in spans]
        is_answer = torch.ones(sum(lengths), dtype=torch.bool)
        starts = np.cumsum([0, *lengths]).tolist()
        for index, start in zip(indices, starts, strict=False):
            is_answer[start : start + self.num_prompt(index)] = False
        token_ids = np.concatenate([self._tokens[span] for span in spans]).astype(np.int64)
        features = {layer: self._gathered(layer, spans) for layer in self.capture}
        return TrainingBatch(torch.from_numpy(token_ids), features, is_answer, tuple(starts))

    def append(
        self,
        token_ids: List[int],
        features: Mapping[int, UInt16[np.ndarray, "tokens hidden"]],
        entry: Entry,
    ) -> None:
        """Add a sequence. features: bfloat16 bits, for each captured layer.

        The index names it last, so that a process killed at any moment leaves what was complete;
        a power cut may cost what was added since the last `flush`. Raises OptionError if somebody
        else has written to the files.
        """
        assert len(token_ids) == entry.num_tokens
        self._write(self.directory / _TOKENS, 4, np.asarray(token_ids, np.int32))
        for layer in self.capture:
            bits = np.ascontiguousarray(features[layer], np.uint16)
            assert bits.shape == (entry.num_tokens, self.hidden_size)
            self._write(self._feature_path(layer), 2 * self.hidden_size, bits)
        with (self.directory / _INDEX).open("a", encoding="utf-8") as index:
            index.write(json.dumps(asdict(entry)) + "\n")
        self._entries.append(entry)
        self._starts.append(self._starts[-1] + entry.num_tokens)

    def _write(self, path: Path, bytes_per_token: int, values: np.ndarray[Any, Any]) -> None:
        with path.open("ab") as file:
            if file.tell() != self._starts[-1] * bytes_per_token:
                raise OptionError(
                    f"{path} has changed while features were written to it; let one process at a "
                    "time do so"
                )
            file.write(values.data)

    def flush(self) -> None:
        """Make everything so far survive a power cut; forget maps of shorter files."""
        for path in (*self._data_paths(), self.directory / _INDEX):
            if path.exists():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
        for name in ("_tokens", "_features"):
            self.__dict__.pop(name, None)

    def check_space(self, num_tokens: int) -> None:
        """Raise OptionError unless the disk has room for that many more tokens."""
        needed = bytes_needed(num_tokens, self.capture, self.hidden_size)
        free = shutil.disk_usage(self.directory).free
        if needed > free:
            raise OptionError(
                f"features of {num_tokens:,} tokens need {needed / 1e9:.2f} GB and there are "
                f"{free / 1e9:.2f} GB free where {self.directory} is; take fewer answers or a "
                "larger disk"
            )

    def _span(self, index: int) -> slice:
        return slice(self._starts[index], self._starts[index + 1])

    def _gathered(self, layer: int, spans: List[slice]) -> Tensor:
        import torch

        bits = np.concatenate([self._features[layer][span] for span in spans])
        return torch.from_numpy(bits).view(torch.bfloat16)

    @cached_property
    def _tokens(self) -> np.ndarray[Any, Any]:
        return np.memmap(self.directory / _TOKENS, np.int32, "r")

    @cached_property
    def _features(self) -> dict[int, np.ndarray[Any, Any]]:
        shape = (self._starts[-1], self.hidden_size)
        return {
            layer: np.memmap(self._feature_path(layer), np.uint16, "r", shape=shape)
            for layer in self.capture
        }

    def _feature_path(self, layer: int) -> Path:
        return _feature_path(self.directory, layer)

    def _data_paths(self) -> list[Path]:
        return [self.directory / _TOKENS, *map(self._feature_path, self.capture)]

    def _cut(self) -> None:
        """Make every file end with the last complete sequence."""
        num_tokens = self._starts[-1]
        sizes = [4 * num_tokens, *[2 * self.hidden_size * num_tokens] * len(self.capture)]
        for path, size in zip(self._data_paths(), sizes, strict=True):
            with path.open("ab") as file:
                file.truncate(size)
        lines = "".join(json.dumps(asdict(entry)) + "\n" for entry in self._entries)
        _write_atomically(self.directory / _INDEX, lines)


def bfloat16_bits(values: Tensor) -> UInt16[np.ndarray, "tokens hidden"]:
    """Floats rounded to bfloat16, as the store keeps them."""
    import torch

    bits = torch.empty(values.shape, dtype=torch.bfloat16, device=values.device)
    # So few at a time that torch starts no threads of its own: on the native path they would take
    # the processors from the next pass.
    rows = max(1, _SERIAL_VALUES // max(1, values.shape[1]))
    for start in range(0, len(values), rows):
        bits[start : start + rows] = values[start : start + rows]
    return bits.view(torch.uint16).cpu().numpy()


def _feature_path(directory: Path, layer: int) -> Path:
    return directory / f"features-{layer}.bin"


def _complete_entries(directory: Path, header: Header) -> list[Entry]:
    """The sequences whose line and data are all there."""
    index = directory / _INDEX
    if not index.exists():
        return []
    available = _size(directory / _TOKENS) // 4
    for layer in header.capture:
        rows = _size(_feature_path(directory, layer)) // (2 * header.hidden_size)
        available = min(available, rows)
    entries: list[Entry] = []
    end = 0
    for line in index.read_bytes().splitlines(keepends=True):
        try:
            entry = Entry(**json.loads(line))
        except (ValueError, TypeError):
            break
        end += entry.num_tokens
        if end > available or not line.endswith(b"\n"):
            break
        entries.append(entry)
    return entries


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _write_header(directory: Path, header: Header) -> None:
    _write_atomically(directory / _HEADER, json.dumps({"format": FORMAT, **asdict(header)}))


def _read_header(directory: Path) -> Header:
    path = directory / _HEADER
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        version = values.pop("format")
        header = Header(**{**values, "capture": tuple(values["capture"])})
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise OptionError(f"{directory} holds no features ({error}); capture them first") from error
    if version != FORMAT:
        raise OptionError(f"{directory} is of format {version}, this version reads {FORMAT}")
    return header


def _write_atomically(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.partial")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
