"""What a training run needs to go on where it was interrupted, on disk."""

from __future__ import annotations

import json
import os
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from outpace.errors import OptionError

FORMAT = 1
_CHECKPOINT, _LOG = "checkpoint.pt", "log.jsonl"


@dataclass
class RunState:
    """How far a run is, apart from parameters and optimisers.

    identity: what the run is a run of; another one cannot go on with it. steps: planned, None while
    a budget in minutes is being timed. position: of the next batch in its epoch. seconds: spent so
    far, evaluations and checkpoints included, interruptions not. evaluations: [step, evaluation as
    a list] of each. best: parameters at `best_step`.
    """

    identity: dict[str, Any]
    steps: int | None = None
    step: int = 0
    epoch: int = 0
    position: int = 0
    tokens: int = 0
    seconds: float = 0.0
    finished: bool = False
    stopped_early: bool = False
    evaluations: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    best_step: int = 0
    best: dict[str, Tensor] | None = None


def trained_parameters(module: torch.nn.Module) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}


def restore_parameters(module: torch.nn.Module, parameters: dict[str, Tensor]) -> None:
    own = trained_parameters(module)
    if own.keys() != parameters.keys():
        raise OptionError(
            "the run to go on with trained other parameters; use another directory, or remove it"
        )
    with torch.no_grad():
        for name, value in parameters.items():
            own[name].copy_(value)


def save_checkpoint(
    directory: Path,
    module: torch.nn.Module,
    optimisers: list[torch.optim.Optimizer],
    state: RunState,
) -> None:
    """Replace the directory's checkpoint in one go: a reader finds the old one or the new one."""
    content = {
        "format": FORMAT,
        "state": dict(vars(state)),
        "parameters": trained_parameters(module),
        "optimisers": [optimiser.state_dict() for optimiser in optimisers],
    }
    temporary = directory / f"{_CHECKPOINT}.{os.getpid()}.tmp"
    try:
        with temporary.open("wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, directory / _CHECKPOINT)
    finally:
        temporary.unlink(missing_ok=True)


def load_checkpoint(
    directory: Path,
    module: torch.nn.Module,
    optimisers: list[torch.optim.Optimizer],
    identity: dict[str, Any],
) -> RunState | None:
    """Put parameters and optimisers back as they were; None where there is no checkpoint.

    Raises OptionError for a checkpoint of another run, naming what differs.
    """
    path = directory / _CHECKPOINT
    if not path.exists():
        return None
    content = _read(path)
    state = RunState(**content["state"])
    different = [k for k in identity if state.identity.get(k) != identity[k]]
    if content["format"] != FORMAT or different:
        given = ", ".join(f"{k} {identity[k]!r}" for k in different)
        found = ", ".join(f"{k} {state.identity.get(k)!r}" for k in different)
        raise OptionError(
            f"{directory} holds another run, with {found or 'another format'}; this one has "
            f"{given}. Use another directory, or remove that one to start anew"
        )
    restore_parameters(module, content["parameters"])
    for optimiser, saved in zip(optimisers, content["optimisers"], strict=True):
        optimiser.load_state_dict(saved)
    return state


def _read(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = torch.load(path, weights_only=True)
    except (RuntimeError, OSError, EOFError, pickle.UnpicklingError) as error:
        reason = str(error).splitlines()[0]
        raise OptionError(
            f"{path} is damaged ({reason}); remove it to start the run anew"
        ) from error
    return content


class RunLog:
    """log.jsonl: a line for each step and each evaluation, of this run's steps only."""

    def __init__(self, directory: Path, first_step: int) -> None:
        """Lines from `first_step` on were written after the checkpoint and are done again."""
        self._path = directory / _LOG
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        kept = [line for line in lines if _step_of(line) <= first_step]
        temporary = directory / f"{_LOG}.{os.getpid()}.tmp"
        temporary.write_text("".join(f"{line}\n" for line in kept))
        os.replace(temporary, self._path)

    def add(self, step: int, **values: Any) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps({"step": step, **values}) + "\n")


def _step_of(line: str) -> float:
    """The step that a line tells of; a line cut short tells of none."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")
