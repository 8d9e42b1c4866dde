"""Measuring at start what target passes take, once per machine, model and format.

In the given time, passes of several shapes are run in turn, again and again, on sequences that are
thrown away. Whatever disturbs a pass makes it slower, so that of each shape the lower quartile over
the rounds counts. The result is kept on disk, as a file that appears under its name only when it is
complete; what is damaged, or about something else, is measured anew.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import random
import re
import tempfile
from collections.abc import Mapping
from collections.abc import Sequence as List
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from outpace.control.costs import CostTable, PassShape
from outpace.models.hub import aliases
from outpace.models.load import LoadedModel
from outpace.models.native.decoder import NativeDecoder
from outpace.models.threads import in_own_thread
from outpace.params import SamplingParams
from outpace.runner import Runner
from outpace.types import Draft, Sequence

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1
"""Raised whenever what is measured, or how it is written down, changes."""

SHORT_CONTEXT, LONG_CONTEXT = 16, 256
CHUNK_TOKENS = 64
NUM_ROUNDS = 7
NUM_NEEDED = 2
"""How many shapes are measured however long it takes."""
SHARE_FOR_ROUND, SHARE_FOR_LONG = 0.3, 0.5
"""A first round over one sequence alone ends when the first share of the time is over: three rounds
over fewer shapes say more than one over many. Other sequences are measured if it was done by then,
and a long context is fed until the second share is over."""
WORTH_KEEPING_S, ROUNDS_WORTH_KEEPING = 0.05, 3
"""What was measured in less time is not written down, nor is what there was not the time to measure
so many times: a machine that is busy at this start need not be so at the next."""
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class _Case:
    """A shape of pass to measure: rows of each sequence, over a short or a long context."""

    num_seqs: int
    rows_each: int
    is_long: bool = False


# In the order of what is to be known first. 17: kernels work on blocks of 16 rows.
_ONE_SEQUENCE = [_Case(1, rows) for rows in (1, 8, 4, 2, 16, 32, 17)]
_LONG = [_Case(1, 1, True), _Case(1, 8, True)]
_SEVERAL = [_Case(4, 1), _Case(4, 4), _Case(2, 1)]


def measure_costs(
    runner: Runner,
    target: LoadedModel,
    capture: List[int] = (),
    *,
    budget_s: float = 1.0,
    cache_dir: Path | None = None,
) -> CostTable:
    """What passes of the runner's model take, from disk if it was measured before.

    runner: has at least one free row; the rows that are free are emptied, and given back.
    target: the model it runs. capture: layers whose outputs a pass is to return. budget_s: seconds
    after which no pass is started, once two of different sizes were. cache_dir: where tables are
    kept; None: see `default_directory`.
    A model whose fingerprint is not a SHA-256 is measured every time.
    """
    cases = _possible_cases(runner)
    path = None
    if _SHA256.fullmatch(target.fingerprint):
        subject = _subject(runner, target, capture, cases)
        key = hashlib.sha256(json.dumps(subject, sort_keys=True).encode()).hexdigest()
        path = (cache_dir or default_directory()) / f"{key[:32]}.json"
        found = _read(path, subject)
        if found is not None:
            return found
    started = perf_counter()
    # In a thread that takes with it what torch keeps for the threads that compute.
    seconds = in_own_thread(lambda: _Bench(runner, capture, budget_s).measure(cases))
    table = fitted(
        {case: _lower(found, 4) for case, found in seconds.items()}, _short_context(runner)
    )
    has_settled = all(len(seconds.get(case, ())) >= ROUNDS_WORTH_KEEPING for case in cases)
    if path is not None and has_settled and perf_counter() - started >= WORTH_KEEPING_S:
        _write(path, subject, table)
    return table


def default_directory() -> Path:
    """Where tables are kept: `costs` in the cache directory. Files in it may be deleted at any
    time; costs are measured again when they are needed."""
    return aliases.cache_dir() / "costs"


def _possible_cases(runner: Runner) -> list[_Case]:
    """What can be measured in the rows that are free, which may be few and short."""
    num_rows, room = runner.cache.num_free_rows, runner.max_len - _short_context(runner)
    long_rows = int(num_rows > 1 and runner.max_len >= 2 * LONG_CONTEXT)
    cases = _ONE_SEQUENCE + _LONG * long_rows + _SEVERAL
    free = num_rows - long_rows
    return [case for case in cases if case.rows_each <= room and case.num_seqs <= free]


def _short_context(runner: Runner) -> int:
    return min(SHORT_CONTEXT, runner.max_len // 2)


class _Bench:
    """One measurement, on sequences of its own."""

    def __init__(self, runner: Runner, capture: List[int], budget_s: float) -> None:
        self._runner, self._capture = runner, list(capture)
        self._started, self._budget_s = perf_counter(), budget_s
        self._random = random.Random(0)
        self._opened: list[Sequence] = []
        self._seconds: dict[_Case, list[float]] = {}

    def measure(self, cases: List[_Case]) -> dict[_Case, list[float]]:
        """Seconds of every pass of the cases for which there was time. Raises whatever the model
        raises; the rows are given back in any case."""
        try:
            self._measure(cases)
        finally:
            for seq in self._opened:
                self._runner.rewind(seq, 0)
                self._runner.release(seq)
        return self._seconds

    def _measure(self, cases: List[_Case]) -> None:
        seqs = [self._open()]
        alone = [case for case in cases if case.num_seqs == 1 and not case.is_long]
        self._round(alone, seqs, SHARE_FOR_ROUND)
        rounds = [([case for case in alone if case in self._seconds], seqs)]
        if self._spent() < SHARE_FOR_ROUND:
            several = [case for case in cases if case.num_seqs > 1]
            while len(seqs) < max((case.num_seqs for case in several), default=1):
                seqs.append(self._open(seqs[0]))
            rounds.append((several, seqs))
            of_long = [case for case in cases if case.is_long]
            if of_long and self._lengthen(long := self._open()):
                rounds.append((of_long, [long]))
        for _ in range(NUM_ROUNDS - 1):
            for some, of_them in rounds:
                self._round(some, of_them, 1.0)

    def _spent(self) -> float:
        """Share of the time that is over."""
        return (perf_counter() - self._started) / self._budget_s

    def _open(self, like: Sequence | None = None) -> Sequence:
        """A sequence with the short context in its row; a copy of another one's if it can be."""
        runner, length = self._runner, _short_context(self._runner)
        tokens = self._tokens(length + 1) if like is None else list(like.tokens)
        # Ids of requests are not negative.
        seq = Sequence(-1 - len(self._opened), tokens, len(tokens), SamplingParams())
        if like is None:
            runner.open(seq, reuse=False)
        else:
            runner.fork(like, seq)
        self._opened.append(seq)
        if runner.num_cached(seq) < length:
            self._feed(seq)
        return seq

    def _tokens(self, count: int) -> list[int]:
        num_logits = self._runner.model.num_logits
        return [self._random.randrange(num_logits) for _ in range(count)]

    def _feed(self, seq: Sequence) -> None:
        self._runner.extend([seq], last_only=True).on_host()
        self._runner.commit([seq])

    def _lengthen(self, seq: Sequence) -> bool:
        """Feed the long context; False if there is not the time for it."""
        chunk = CHUNK_TOKENS / 8 * min(self._seconds[_Case(1, 8)]) / self._budget_s
        while len(seq.tokens) <= LONG_CONTEXT:
            if self._spent() + chunk > SHARE_FOR_LONG:
                return False
            seq.tokens += self._tokens(min(CHUNK_TOKENS, LONG_CONTEXT + 1 - len(seq.tokens)))
            self._feed(seq)
        return True

    def _round(self, cases: List[_Case], seqs: List[Sequence], until: float) -> None:
        """until: share of the time after which no pass is started."""
        for case in cases:
            if self._spent() >= until and len(self._seconds) >= NUM_NEEDED:
                return
            seconds = self._pass_s(seqs[: case.num_seqs], case.rows_each)
            self._seconds.setdefault(case, []).append(seconds)

    def _pass_s(self, seqs: List[Sequence], rows_each: int) -> float:
        drafts = [Draft(tuple(self._tokens(rows_each - 1))) for _ in seqs]
        started = perf_counter()
        self._runner.extend(seqs, drafts, capture=self._capture).on_host()
        seconds = perf_counter() - started
        self._runner.commit(seqs)
        return seconds


def _lower(values: List[float], parts: int) -> float:
    """The value with one of so many parts of the others below it: 2 for the median."""
    return sorted(values)[(len(values) - 1) // parts]


def fitted(seconds: Mapping[_Case, float], short: int) -> CostTable:
    """The table that explains measured passes. short: tokens of the short context."""
    found = {c.rows_each: s for c, s in seconds.items() if c.num_seqs == 1 and not c.is_long}
    # What is measured too long is measured so by chance: fewer rows never take more time.
    alone = {rows: min(s for more, s in found.items() if more >= rows) for rows in sorted(found)}
    slower = {c.rows_each: s - alone[c.rows_each] for c, s in seconds.items() if c.is_long}
    per_token_s, per_token_row_s = _context_costs(slower, LONG_CONTEXT - short)
    # Noise must leave a pass some duration, and more of it with more rows.
    bare = accumulate(
        (
            max(s - (per_token_s + per_token_row_s * rows) * short, s / 2)
            for rows, s in alone.items()
        ),
        max,
    )
    knots = tuple(zip(alone, bare, strict=True))
    table = CostTable(knots, 0.0, per_token_s, per_token_row_s)
    extra = [
        (s - table.seconds(_shape(case, short))) / (case.num_seqs - 1)
        for case, s in seconds.items()
        if case.num_seqs > 1
    ]
    return replace(table, per_seq_s=max(_lower(extra, 2), 0.0)) if extra else table


def _context_costs(slower: Mapping[int, float], more_tokens: int) -> tuple[float, float]:
    """Seconds per cached token, and per cached token and row.

    slower: by number of rows, what passes took longer with so many more tokens cached.
    """
    if not slower:
        return 0.0, 0.0
    (few, few_s), (many, many_s) = min(slower.items()), max(slower.items())
    per_row = max(many_s - few_s, 0.0) / max(many - few, 1)
    per_pass = max((few_s + many_s - per_row * (few + many)) / 2, 0.0)
    return per_pass / more_tokens, per_row / more_tokens


def _shape(case: _Case, context: int) -> PassShape:
    return PassShape(case.num_seqs, case.num_seqs * case.rows_each, case.num_seqs * context)


def _subject(
    runner: Runner, target: LoadedModel, capture: List[int], cases: List[_Case]
) -> dict[str, Any]:
    """What a table is about: everything that passes may depend on."""
    decoder = target.decoder
    threads, kv_cache = torch.get_num_threads(), ""
    if isinstance(decoder, NativeDecoder):
        threads, kv_cache = decoder.num_threads, decoder.kv_cache_dtype
    return {
        "format": FORMAT_VERSION,
        "processor": _processor(decoder.device),
        "cores": usable_cores(),
        "threads": threads,
        "model": target.fingerprint,
        "dtype": target.dtype,
        "runs_on": target.runs_on,
        "kv_cache": kv_cache,
        "num_logits": decoder.num_logits,
        "capture": sorted(set(capture)),
        "cases": [[case.num_seqs, case.rows_each, case.is_long] for case in cases],
        "context": _short_context(runner),
    }


def _processor(device: torch.device) -> str:
    """The name of what computes."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type != "cpu":
        return str(device)
    try:
        listed = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        listed = ""
    name = re.search(r"^model name\s*:\s*(.+)$", listed, re.MULTILINE)
    return name[1] if name else f"{platform.machine()} {platform.processor()}"


def usable_cores() -> int:
    """Processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _read(path: Path, subject: Mapping[str, Any]) -> CostTable | None:
    """The table in a file; None if there is none, it is damaged or about something else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["subject"] != subject or content["digest"] != _digest(content["table"]):
            return None
        table = content["table"]
        knots = tuple((int(rows), float(seconds)) for rows, seconds in table.pop("knots"))
        return CostTable(knots, **{name: float(value) for name, value in table.items()})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        logger.info("%s cannot be used (%s): what passes cost is measured again", path, error)
        return None


def _write(path: Path, subject: Mapping[str, Any], table: CostTable) -> None:
    """Replace the file as a whole; where it cannot be written, nothing is kept."""
    values = json.loads(json.dumps(asdict(table)))
    content = {"subject": subject, "table": values, "digest": _digest(values)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=".partial-", dir=path.parent)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(content, file, indent=1)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        logger.info(
            "what passes cost cannot be kept in %s (%s): it is measured at every start; set "
            "OUTPACE_CACHE to a directory that can be written to",
            path.parent,
            error.strerror or error,
        )


def _digest(table: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()
