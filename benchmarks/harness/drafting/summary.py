"""From raw results of drafting to the rows of tables. Pure: the same results give the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol, TypeVar

import numpy as np

from harness.drafting.methods import Width
from harness.drafting.results import Results
from harness.results import Run
from harness.summary import Ratio, Row, category_rows, decode_speed, pass_rows, speed_ratio, unique
from outpace.engine.metrics import EngineMetrics
from outpace.measure.methods import SHAPES
from outpace.outputs import SpeculationStats


def summarise(results: Results, reference: str, seed: int) -> dict[str, Any]:
    """Everything the tables show. reference: the name of plain decoding."""
    passes = pass_rows(results.passes)
    return {
        "passes": passes,
        "drafting": [
            {
                "path": path,
                "decoding": decoding,
                "method": method,
                "rows": drafting_rows(runs, method, reference, seed),
            }
            for path, decoding, runs in groups(results.runs)
            for method in unique(run.method for run in runs)
        ],
        "widths": [
            {
                "path": path,
                "decoding": decoding,
                "rows": width_rows(runs, results.widths, reference, passes, seed),
            }
            for path, decoding, runs in groups(results.width_runs)
        ],
    }


class Grouped(Protocol):
    """What says of a run where and how it was made."""

    @property
    def dtype(self) -> str: ...

    @property
    def decoding(self) -> str: ...


AnyRun = TypeVar("AnyRun", bound=Grouped)


def groups(runs: Sequence[AnyRun]) -> list[tuple[str, str, list[AnyRun]]]:
    """Runs by path and sampling parameters, path by path."""
    return [
        (path, decoding, [r for r in runs if (r.dtype, r.decoding) == (path, decoding)])
        for path in unique(run.dtype for run in runs)
        for decoding in unique(run.decoding for run in runs if run.dtype == path)
    ]


@dataclass(frozen=True, slots=True)
class Cost:
    """Where the time of decoding steps went, means per step in milliseconds, over many runs.

    Steps are those after the first that gave tokens, except in num_rows, which counts all:
    tokens fed per target pass, the newest committed one included. rest_ms: outside drafter and
    target pass. acceptance_length: output tokens per step. tokens_per_s: of all steps together.
    """

    num_rows: float
    draft_ms: float
    pass_ms: float
    rest_ms: float
    acceptance_length: float
    tokens_per_s: float

    @property
    def draft_token_ms(self) -> float | None:
        """Milliseconds of drafting per draft token, probes included."""
        return self.draft_ms / (self.num_rows - 1) if self.num_rows > 1 else None


def cost(runs: Sequence[Run]) -> Cost | None:
    """Of runs that had more than one step; None if there is none."""
    longer = [run.timing for run in runs if run.timing.counted.num_steps and run.decode_speed]
    if not longer:
        return None
    counted, stats = EngineMetrics(), SpeculationStats()
    for timing in longer:
        stats.add(timing.stats)
        for count in fields(EngineMetrics):
            more = getattr(timing.counted, count.name)
            setattr(counted, count.name, getattr(counted, count.name) + more)
    num_tokens = sum(len(t.token_ids) - t.step_lens[0] for t in longer)
    num_steps = sum(len(t.step_lens) - 1 for t in longer)
    seconds = sum(t.total_s - t.ttft_s for t in longer)
    fed = stats.num_draft_tokens + stats.num_probe_tokens
    per_step = 1e3 / counted.num_steps
    return Cost(
        num_rows=1 + fed / stats.num_steps,
        draft_ms=counted.draft_s * per_step,
        pass_ms=counted.target_s * per_step,
        rest_ms=(counted.step_s - counted.draft_s - counted.target_s) * per_step,
        acceptance_length=num_tokens / num_steps,
        tokens_per_s=num_tokens / seconds,
    )


def drafting_rows(runs: Sequence[Run], method: str, reference: str, seed: int) -> list[Row]:
    """A method by category, then over all prompts; beside what the tables of drafters have, where
    its time went. Plain decoding is a method like any other here."""
    rows = category_rows(runs, method, reference, seed)
    for row in rows:
        here = [run for run in runs if row["category"] in ("all", run.category)]
        mine = cost([run for run in here if run.method == method])
        plain = cost([run for run in here if run.method == reference])
        stats = SpeculationStats()
        for run in here:
            if run.method == method:
                stats.add(run.timing.stats)
        c = None
        if mine is not None and plain is not None and mine.draft_token_ms is not None:
            c = mine.draft_token_ms / plain.pass_ms
        row["conditional_acceptance"] = stats.conditional_acceptance
        row["reached_per_position"] = stats.reached_per_position
        row["cost"] = mine
        row["c"] = c
    return rows


def width_rows(
    runs: Sequence[Run],
    widths: Sequence[Width],
    reference: str,
    passes: Sequence[Row],
    seed: int,
) -> list[Row]:
    """For each method and K its chain and its tree: what was predicted and what was measured.

    predicted_tokens_per_s is acceptance length / (draft time + v(rows) x plain pass), with v of
    passes of that shape; None without passes. Runs are of one path and one decoding.
    """
    plain_runs = [run for run in runs if run.method == reference]
    plain = cost(plain_runs)
    rows: list[Row] = []
    for method, k in unique((w.method, w.num_speculative_tokens) for w in widths):
        names = {
            w.shape: w.name for w in widths if (w.method, w.num_speculative_tokens) == (method, k)
        }
        of_shape = {s: [run for run in runs if run.method == names[s]] for s in SHAPES}
        if not all(of_shape.values()) or plain is None:
            continue
        row: Row = {"method": method, "num_speculative_tokens": k}
        for shape, mine in of_shape.items():
            row[shape] = _shape_row(mine, plain_runs, plain, shape, passes, seed)
        row["tree_to_chain"] = speed_ratio(of_shape["tree"], of_shape["chain"], decode_speed, seed)
        row["winner"] = winner(row["tree_to_chain"])
        rows.append(row)
    return rows


def winner(tree_to_chain: Ratio | None) -> str:
    """ "tree" or "chain" where the interval of their ratio says so; "" if no difference is seen."""
    if tree_to_chain is None or tree_to_chain.low is None or tree_to_chain.high is None:
        return ""
    if tree_to_chain.low > 1:
        return "tree"
    return "chain" if tree_to_chain.high < 1 else ""


def _shape_row(
    runs: Sequence[Run],
    plain_runs: Sequence[Run],
    plain: Cost,
    shape: str,
    passes: Sequence[Row],
    seed: int,
) -> Row:
    mine = cost(runs)
    predicted = None
    if mine is not None:
        v = v_at(passes, runs[0].dtype, shape, mine.num_rows, _context_len(runs))
        if v is not None:
            step_ms = mine.draft_ms + v * plain.pass_ms
            predicted = 1e3 * mine.acceptance_length / step_ms
    return {
        "cost": mine,
        "predicted_tokens_per_s": predicted,
        "decode_ratio": speed_ratio(runs, plain_runs, decode_speed, seed),
    }


def v_at(
    passes: Sequence[Row], path: str, shape: str, num_rows: float, context_len: float
) -> float | None:
    """v(n) of a path at a mean number of rows, between the measured ones in a straight line, after
    the measured number of cached tokens that is nearest; None if nothing was measured."""
    here = [row for row in passes if (row["dtype"], row["shape"]) == (path, shape)]
    if not here:
        return None
    nearest = min((row["context_len"] for row in here), key=lambda c: abs(c - context_len))
    curve = sorted((r["num_rows"], r["v"]) for r in here if r["context_len"] == nearest)
    return float(np.interp(num_rows, [n for n, _ in curve], [v for _, v in curve]))


def _context_len(runs: Sequence[Run]) -> float:
    """Tokens cached halfway through an answer, on average."""
    return float(np.mean([run.num_prompt + len(run.timing.token_ids) / 2 for run in runs]))
