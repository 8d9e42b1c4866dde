"""`outpace train` on a tiny model: its files, its options, and a way to run it and to kill it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence as List
from pathlib import Path

from model_files import write_hf

KINDS = ("eagle3", "eagle", "medusa", "draft-model", "early-exit")
METHODS = {kind: kind.replace("-", "_") for kind in KINDS}

# Lets so many calls of the observer's method pass, then kills its process, unannounced.
_KILLED = """\
import os, signal, sys
import torch
torch.set_num_threads(1)
from outpace.cli import training_progress
from outpace.cli.main import main
from outpace.training import jsonl

jsonl.SYNC_EVERY = 4
method, left, args = sys.argv[1], [int(sys.argv[2])], sys.argv[3:]
real = getattr(training_progress.TrainingProgress, method)

def counting(self, *values, **named):
    if method == "counted" and values[0] != "answers":
        return real(self, *values, **named)
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left[0] -= 1
    return real(self, *values, **named)

setattr(training_progress.TrainingProgress, method, counting)
main(args)
"""


def tiny_target(folder: Path) -> Path:
    """A random model of two layers in a Hugging Face directory."""
    return write_hf(folder / "target")


def prompts_file(path: Path, count: int = 16, subject: str = "thing") -> Path:
    """Prompts of two sources, with a licence."""
    rows = [
        {
            "prompt": f"Tell me what {subject} number {i} is about",
            "source": f"source {i % 2}",
            "category": f"category {i % 2}",
            "license": "CC0-1.0",
        }
        for i in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def train_args(kind: str, target: Path, out: Path, *more: str) -> list[str]:
    """A run of a second or so."""
    return [
        *("train", kind, "--model", str(target), "--out", str(out), "--threads", "1"),
        *("--max-tokens", "10", "--steps", "4", "--tokens-per-step", "40"),
        *("--held-out", "0.3", "--checkpoint-minutes", "0", *more),
    ]


def run_killed(method: str, calls: int, args: List[str]) -> None:
    """Run the command in a process that is killed at the `calls`-th call of the observer's
    `method` ("counted": of answers; "trained")."""
    command = [sys.executable, "-c", _KILLED, method, str(calls), *args]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
