"""The provenance of a measurement: what ran, where, and how it was called."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from outpace import __version__
from outpace.files import without_folders

_LIBRARIES = ("torch", "numpy", "transformers")
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "MKL_NUM_THREADS", "KMP_BLOCKTIME")
BUSY_SHARE = 0.5
"""Load for each core from which a machine is too busy to be measured."""


def describe() -> dict[str, Any]:
    """Everything needed to judge or repeat a run; None for what is not known here."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(_command()),
        "outpace": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        **{name: _version(name) for name in _LIBRARIES},
        "platform": platform.platform(),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "cores_usable": _num_usable_cores(),
        "torch_threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "load_average": _load_average(),
        "variables": {n: os.environ[n] for n in _THREAD_VARIABLES if n in os.environ},
    }


def load_note() -> str | None:
    """A warning where the machine is too busy for its times to mean anything; None where not, or
    where that is not known."""
    load, cores = _load_average(), os.cpu_count() or 1
    if load is None or load[0] <= BUSY_SHARE * cores:
        return None
    return (
        f"the machine was busy when this began (load average {load[0]:.1f} on {cores} cores): its "
        "times say little"
    )


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or None
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or None


def _num_usable_cores() -> int | None:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count()


def _load_average() -> list[float] | None:
    if not hasattr(os, "getloadavg"):
        return None
    return [round(load, 2) for load in os.getloadavg()]


def _command() -> list[str]:
    """The command line without folders, which are nobody's business who reads the figures."""
    script = Path(sys.argv[0]).name
    python = [] if script == "outpace" else [Path(sys.executable).name]
    return [*python, script, *map(without_folders, sys.argv[1:])]


def _commit() -> str | None:
    """The commit of this checkout, marked if files were changed since; None of an installed
    package, which may well lie in a checkout of something else."""
    if _git("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None
    commit = _git("rev-parse", "--short=12", "HEAD")
    if commit is None:
        return None
    return f"{commit} with changes" if _git("status", "--porcelain") else commit


def _git(*arguments: str) -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
