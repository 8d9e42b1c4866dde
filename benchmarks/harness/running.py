"""Running a benchmark to its end, or to where it was stopped, without losing what it measured."""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, Protocol

from outpace.errors import OutpaceError

REFUSED = 2
"""Exit status of a run that could not be begun as it was asked for."""


class Measured(Protocol):
    """Results of any benchmark. elapsed_s: how long measuring took; notes: what readers must know
    of it."""

    elapsed_s: float
    notes: list[str]


def run_to_the_end(work: Callable[[], None], results: Measured) -> int:
    """Do the work, which fills `results`, and return the exit status.

    0; 130 after Ctrl-C and 1 after a failure, with a note in `results` that says so; REFUSED after
    an error that the user can mend, or a missing library: it was told in one line, and nothing was
    measured that is worth telling.
    """
    started = time.perf_counter()
    status = 0
    try:
        work()
    except (OutpaceError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        status = REFUSED
    except KeyboardInterrupt:
        results.notes.append("interrupted: these are the results up to then")
        status = 130
    # What was measured in minutes must not be lost to whatever failed after it.
    except Exception as error:
        traceback.print_exc()
        results.notes.append(f"FAILED: {type(error).__name__}: {error}")
        status = 1
    results.elapsed_s = time.perf_counter() - started
    return status


def write_json(path: Path, header: Any, options: Any, results: Any, summary: Any) -> None:
    """Write everything that was measured, with where and how, as one JSON document."""
    document = {
        "header": header,
        "options": asdict(options),
        "results": asdict(results),
        "summary": summary,
    }
    path.write_text(json.dumps(document, default=as_plain), encoding="utf-8")


def as_plain(value: Any) -> Any:
    """For `json`, what it cannot write by itself: ratios and spreads in a summary, and paths."""
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)
