"""Traces as files: one JSON object a line; the first is the header, the last the summary.

A trace is written as it grows, to a file beside the one that was asked for, which takes its place
at the end. So a file of that name is always whole; a run that was interrupted leaves what it had
got to, complete lines without a summary. Only the owner may read it: it holds prompt and answer.
"""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import nullcontext, suppress
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from types import NoneType, TracebackType, UnionType
from typing import Any, Literal, TextIO, TypeVar, get_args, get_origin, get_type_hints

from outpace.errors import OptionError
from outpace.files import check_writable, read_text
from outpace.measure.trace.consistency import inconsistency
from outpace.measure.trace.records import FORMAT, VERSION, Header, Step, Summary, Trace
from outpace.strict_json import without_duplicates

_Record = TypeVar("_Record", Header, Step, Summary)


class TraceWriter:
    """Writes a trace line by line. Use as a context manager.

    Raises OptionError where there can be no such file. Left by an exception, it keeps what was
    written if that holds a step, and leaves nothing otherwise.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file, self._temporary = private_file(path)
        self._num_steps = 0

    def header(self, header: Header) -> None:
        self._line({"format": FORMAT, "version": VERSION, **asdict(header)})

    def step(self, step: Step) -> None:
        self._line({"type": "step", **asdict(step)})
        self._num_steps += 1

    def summary(self, summary: Summary) -> None:
        self._line({"type": "summary", **asdict(summary)})

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with suppress(OSError) if error else nullcontext():  # a full disk has been reported
            self._file.close()
        if error is None or self._num_steps:
            os.replace(self._temporary, self._path)
        else:
            self._temporary.unlink()

    def _line(self, values: dict[str, Any]) -> None:
        # One write a line: whatever ends the process, a line is there or not.
        self._file.write(json.dumps(values, allow_nan=False) + "\n")
        self._file.flush()


def private_file(path: Path) -> tuple[TextIO, Path]:
    """(a new file beside `path`, readable by its owner alone, and its name): to take its place.

    Raises OptionError where that cannot be.
    """
    check_writable(path, regular=True)
    try:
        descriptor, name = tempfile.mkstemp(
            dir=path.parent, prefix=f".{path.name}.", suffix=".part"
        )
    except OSError as error:
        raise OptionError(f"{path} cannot be written: {error.strerror or error}") from error
    return os.fdopen(descriptor, "w", encoding="utf-8"), Path(name)


def write_private(path: Path, text: str) -> None:
    """Write a file whole or not at all; only its owner may read it. Raises OptionError where there
    can be no such file."""
    file, temporary = private_file(path)
    try:
        with file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_trace(trace: Trace, path: Path) -> None:
    """Write a trace that is in memory. Raises OptionError where there can be no such file."""
    with TraceWriter(path) as writer:
        writer.header(trace.header)
        for step in trace.steps:
            writer.step(step)
        if trace.summary is not None:
            writer.summary(trace.summary)


def read_trace(path: Path) -> Trace:
    """Read what `TraceWriter` wrote; without its end it has no summary.

    A last line that was cut off is left out, and its number told. Raises OptionError for another
    kind of file, for one of a newer version, and for damage, with the line's number.
    """
    *lines, last = read_text(path).split("\n")
    is_cut = bool(last) and not _is_whole(last)
    if last and not is_cut:
        lines.append(last)
    objects = [_parsed(path, number, line) for number, line in enumerate(lines, start=1)]
    if not objects or objects[0].pop("format", None) != FORMAT:
        raise OptionError(f"{path} is not a trace: its first line is not the header of one")
    version = objects[0].pop("version", None)
    if version != VERSION:
        raise OptionError(
            f"{path} has version {version!r:.20} of the trace format, and this Outpace reads "
            f"{VERSION}; read it with the Outpace that wrote it, or a newer one"
        )
    header = _record(Header, objects[0], path, 1)
    steps: list[Step] = []
    summary: Summary | None = None
    for number, values in enumerate(objects[1:], start=2):
        kind = values.pop("type", None)
        if summary is not None or kind not in ("step", "summary"):
            raise _damaged(path, number, f"an object of type {kind!r:.40} cannot stand here")
        if kind == "step":
            step = _record(Step, values, path, number)
            strange = [p.answer for p in step.sequences if not 0 <= p.answer < header.num_answers]
            if strange:
                raise _damaged(path, number, f"there is no answer {strange[0]}")
            steps.append(step)
        else:
            summary = _record(Summary, values, path, number)
    return Trace(header, steps, summary, len(lines) + 1 if is_cut else None)


def _is_whole(line: str) -> bool:
    """Whether a line without an end is one; an object whose writing was cut off is not JSON."""
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _parsed(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        values = json.loads(line, object_pairs_hook=without_duplicates)
        # Neither numbers that are none nor halves of characters can be written again.
        json.dumps(values, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        values, reason = None, str(error).partition(";")[0]
    else:
        reason = "it is no JSON object"
    if isinstance(values, dict):
        return values
    if number == 1:
        raise OptionError(f"{path} is not a trace: its first line is not the header of one")
    raise _damaged(path, number, reason)


def _record(kind: type[_Record], values: dict[str, Any], path: Path, number: int) -> _Record:
    try:
        record = _decoded(kind, values)
    except ValueError as error:
        raise _damaged(path, number, str(error)) from error
    assert isinstance(record, kind)
    fault = inconsistency(record)
    if fault is not None:
        raise _damaged(path, number, fault)
    return record


def _damaged(path: Path, number: int, reason: str) -> OptionError:
    return OptionError(f"{path} is damaged in line {number}: {reason}")


def _decoded(kind: Any, value: Any, name: str = "the line") -> Any:
    """`value` as an instance of a record's class or of the type of one of its fields."""
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return _decoded_record(kind, value, name)
    if origin is UnionType:
        chosen = [each for each in arguments if _is_a(each, value)]
        return _decoded(chosen[0] if chosen else arguments[0], value, name)
    if origin is list and isinstance(value, list):
        return [_decoded(arguments[0], each, name) for each in value]
    if origin is Literal and value in arguments:
        return value
    if kind is float and _is_a(int, value):
        return float(value)
    if _is_a(kind, value):
        return value
    raise ValueError(f"{name} cannot be {value!r:.40}")


def _decoded_record(kind: Any, value: Any, name: str) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"{name} cannot be {value!r:.40}")
    hints = get_type_hints(kind)
    names = {field.name for field in fields(kind)}
    if names != value.keys():
        odd = sorted(names ^ value.keys())[0]
        raise ValueError(f"{odd!a:.60} is {'missing' if odd in names else 'unknown'} in {name}")
    return kind(**{key: _decoded(hints[key], each, key) for key, each in value.items()})


def _is_a(kind: Any, value: Any) -> bool:
    if value is None or kind is NoneType:
        return value is None and kind is NoneType
    base = get_origin(kind) or kind
    if isinstance(value, bool):
        return base is bool
    if base is float:
        return isinstance(value, int | float)
    return isinstance(base, type) and isinstance(value, base)
