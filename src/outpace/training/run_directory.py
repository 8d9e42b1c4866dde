"""The directory that a training run works in, and by which it is known when it goes on."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outpace.errors import OptionError

_IDENTITY = "run.json"


class RunDirectory:
    """`<out>.work`: answers, features and checkpoints of a run whose draft becomes `out`.

    `out` itself appears in one go, when everything in it is written.
    """

    def __init__(self, out: Path, identity: Mapping[str, Any]) -> None:
        """identity: JSON values that the run's result depends on; those of a run that is gone on
        with must be the same. Raises OptionError where they are not, naming what differs, and for
        an `out` that holds something."""
        if not out.name:
            raise OptionError(f"the draft needs a directory of its own, got {str(out)!r}")
        self.out = out
        self.path = out.with_name(f"{out.name}.work")
        self._identity = json.loads(json.dumps(identity))
        _check_out(out, self.path)
        found = _read_identity(self.path / _IDENTITY)
        if found is not None:
            self._check_same(found)

    @property
    def is_resumed(self) -> bool:
        """Whether a run was begun here before."""
        return (self.path / _IDENTITY).exists()

    def begin(self) -> None:
        """Create it, so that a run of other options is refused from now on."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.path / _IDENTITY, self._identity)

    @property
    def prompts(self) -> Path:
        return self.path / "self-prompts.jsonl"

    @property
    def answers(self) -> Path:
        return self.path / "answers.jsonl"

    @property
    def features(self) -> Path:
        return self.path / "features"

    @property
    def general_answers(self) -> Path:
        return self.path / "general-answers.jsonl"

    @property
    def general_features(self) -> Path:
        return self.path / "general-features"

    @property
    def training(self) -> Path:
        return self.path / "training"

    @property
    def before(self) -> Path:
        """What the draft that a run goes on from was worth."""
        return self.path / "before.json"

    def new_draft(self) -> Path:
        """An empty directory for the draft's files."""
        path = self.path / "draft"
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        return path

    def publish(self, draft: Path, *, keep: bool) -> None:
        """Make the files of `draft` the run's result, and remove everything else unless `keep`."""
        if self.out.exists():
            self.out.rmdir()  # empty, or this fails
        self.out.parent.mkdir(parents=True, exist_ok=True)
        draft.replace(self.out)
        if not keep:
            shutil.rmtree(self.path)

    def _check_same(self, found: Mapping[str, Any]) -> None:
        ours, theirs = _flat(self._identity), _flat(found)
        different = [key for key in sorted({*ours, *theirs}) if ours.get(key) != theirs.get(key)]
        if different:
            then = ", ".join(f"{key} {_shown(theirs.get(key))}" for key in different)
            now = ", ".join(f"{key} {_shown(ours.get(key))}" for key in different)
            raise OptionError(
                f"{self.path} holds a run with {then}; this one has {now}. Repeat the command as "
                "it was to go on, give another --out, or remove that directory to start anew"
            )


def file_identity(path: Path) -> dict[str, str]:
    """What tells a file from others: its name and its content. Raises OptionError if it cannot be
    read."""
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise OptionError(f"{path} cannot be read: {error.strerror or error}") from error
    return {"name": path.name, "sha256": digest}


def write_json(path: Path, values: Any) -> None:
    """Write a file whole or not at all."""
    temporary = path.with_name(f".{path.name}.partial")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(json.dumps(values, indent=2) + "\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _check_out(out: Path, work: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        done = " (the run that wrote it is finished)" if (out / "training.json").is_file() else ""
        raise OptionError(
            f"{out} is there already{done}; give a directory that does not exist yet, or remove it"
        )
    if work.exists() and not work.is_dir():
        raise OptionError(f"{work}, where this run would work, is a file; give another --out")


def _read_identity(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise OptionError(f"{path} is damaged ({error}); remove its directory") from error
    if not isinstance(values, dict):
        raise OptionError(f"{path} is damaged; remove its directory")
    return values


def _flat(values: Any, prefix: str = "") -> dict[str, Any]:
    """Nested values by dotted names."""
    if isinstance(values, dict):
        items = list(values.items())
    elif isinstance(values, list) and any(isinstance(value, dict) for value in values):
        items = list(enumerate(values, 1))
    else:
        return {prefix: values}
    flat: dict[str, Any] = {}
    for key, value in items:
        flat |= _flat(value, f"{prefix}.{key}" if prefix else str(key))
    return flat


def _shown(value: Any) -> str:
    return "-" if value is None else f"{value!r:.60}"
