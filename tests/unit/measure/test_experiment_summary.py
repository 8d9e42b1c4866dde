"""The figures of the experiment, against numbers computed by hand."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from experiment_cases import PROMPTS, draft_runs, results_of, runs_of, stats_of

from outpace.measure.experiment.results import LengthRuns, TimedAnswer
from outpace.measure.experiment.summary import loss_shares, pass_costs, ratio_to, summarise
from outpace.measure.passes import PassTimes
from outpace.types import StepTimes


def only_row(summary: dict[str, Any]) -> dict[str, Any]:
    (draft,) = summary["drafts"]
    rows: list[dict[str, Any]] = draft["rows"]
    (row,) = rows
    return row


def test_a_row_by_hand() -> None:
    """c = 3 ms / 10 ms. Two of ten drafts accepted: E = 1.2. v(2) = 1.4.

    (1 + 0.2) / (1 + 0.3) = 0.923; 1.2 / (0.3 + 1.4) = 0.706; measured 0.55: v = 1.2 / 0.55 - 0.3.
    """
    row = only_row(summarise(results_of()))
    assert row["k"] == 1
    assert row["c"] == pytest.approx(0.3)
    assert row["alpha"] == pytest.approx(0.2)
    assert row["accepted_share"] == pytest.approx(0.2)
    assert row["expected_tokens"] == pytest.approx(1.2)
    assert row["simple_ratio"] == pytest.approx(1.2 / 1.3)
    assert row["free_ratio"] == pytest.approx(1.2 / 1.3)
    assert row["v"] == pytest.approx(1.4)
    assert row["predicted_ratio"] == pytest.approx(1.2 / 1.7)
    mean = row["measured"]["mean"]
    assert mean == pytest.approx((0.55 * 0.56 * 0.54 * 0.55) ** (1 / 4))
    assert row["measured"]["low"] < mean < row["measured"]["high"]
    assert row["measured"]["num_prompts"] == 4
    assert row["implied_v"] == pytest.approx(1.2 / mean - 0.3)
    # 1 + alpha >= c + v = 1.7
    assert row["needed_alpha"] == pytest.approx(0.7)
    assert row["step"] == pytest.approx({"draft": 0.3, "pass": 1.5, "rest": 0.2})
    assert math.prod([2, *_factors(row)]) == pytest.approx(mean)
    assert sum(row["loss"].values()) == pytest.approx(1)


def _factors(row: dict[str, Any]) -> list[float]:
    way = math.log(2 / row["measured"]["mean"])
    return [math.exp(-share * way) for share in row["loss"].values()]


def test_the_published_losses_imply_a_dear_pass() -> None:
    """0.35 with alpha 0.1 and c 0.5 (docs/misconceptions.md, 12): v(2) = 2.6."""
    draft = draft_runs(speeds=[35.0] * 4, accepted=[1, *[0] * 9], alpha=0.1, draft_ms=5.0)
    assert only_row(summarise(results_of(draft)))["implied_v"] == pytest.approx(2.643, abs=1e-3)


def test_shares_of_the_loss_by_hand() -> None:
    """k = 1, E = 1, c = 1, v = 1 and 0.5 times plain: half of the way from 2 is the alpha, the
    other half the draft."""
    shares = loss_shares(1, 1.0, 1.0, 1.0, 0.5)
    assert shares == pytest.approx({"alpha": 0.5, "draft": 0.5, "rows": 0.0, "rest": 0.0})
    # v = 2: a pass over both rows takes what two take; what is left is the rest.
    shares = loss_shares(1, 2.0, 0.0, 2.0, 0.5)
    assert shares == pytest.approx({"alpha": 0.0, "draft": 0.0, "rows": 0.5, "rest": 0.5})
    # Faster than the formula says: the rest has brought it up.
    assert loss_shares(1, 1.0, 1.0, 1.0, 0.8)["rest"] < 0
    assert set(loss_shares(1, 2.0, 0.0, 1.0, 2.0).values()) == {0.0}


def test_costs_of_passes_are_medians_over_all_lists() -> None:
    passes = [
        PassTimes("x", 160, 1, [1.0, 9.0]),
        PassTimes("x", 160, 3, [2.0]),
        PassTimes("x", 160, 1, [2.0]),
        PassTimes("x", 160, 3, [8.0, 6.0]),
    ]
    costs = pass_costs(passes)
    assert costs is not None
    assert costs.at(3) == pytest.approx(3.0)
    assert costs.at(2) == pytest.approx(2.0)
    assert pass_costs([PassTimes("x", 160, 1)]) is None


def timed(prompt: str, num_tokens: int, seconds: float) -> TimedAnswer:
    return TimedAnswer(prompt, num_tokens, seconds, stats_of(0, []))


def test_speeds_are_compared_prompt_by_prompt() -> None:
    """A prompt that one of the two did not answer long enough counts for neither."""
    plain = [timed("a", 50, 1.0), timed("a", 50, 3.0), timed("b", 50, 1.0)]
    drafted = [timed("a", 50, 1.0), timed("b", 3, 9.0)]
    ratio = ratio_to(plain, drafted)
    assert ratio is not None
    assert ratio.mean == pytest.approx(2.0)
    assert (ratio.num_prompts, ratio.low) == (1, None)
    assert ratio_to(plain, [timed("c", 50, 1.0)]) is None


def test_the_whole_summary_is_json() -> None:
    summary = summarise(results_of())
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    assert summary["schema"] == 1
    assert summary["plain"] == pytest.approx(
        {"tokens_per_s": 100.0, "pass_ms": 10.0, "rest_ms": 1.0, "num_answers": 4}
    )
    assert [each["num_rows"] for each in summary["passes"]] == [1, 2]
    assert summary["num_prompts"] == len(PROMPTS)
    assert summary["notes"] == ["A note."]


def test_after_an_interruption_only_drafts_with_all_lengths_are_told() -> None:
    half = draft_runs("half")
    half.lengths.append(LengthRuns(3))
    summary = summarise(results_of(draft_runs(), half))
    assert [draft["label"] for draft in summary["drafts"]] == ["random"]


def test_nothing_measured_at_all() -> None:
    results = results_of()
    results.plain = LengthRuns(0)
    results.passes = []
    summary = summarise(results)
    assert (summary["plain"], summary["drafts"], summary["passes"]) == (None, [], [])


def test_no_alpha_is_enough_where_a_step_costs_more_than_it_can_bring() -> None:
    draft = draft_runs(draft_ms=9.0)
    assert only_row(summarise(results_of(draft)))["needed_alpha"] is None


def test_acceptance_by_position() -> None:
    """Of four drafts of two tokens: none, one, two and two accepted: 3/4, then 2/3."""
    draft = draft_runs()
    times = StepTimes(0.002, 0.012, 0.015)
    draft.lengths = [runs_of(2, [80.0] * 4, [0, 1, 2, 2], times)]
    row = only_row(summarise(results_of(draft)))
    assert row["conditional_acceptance"] == pytest.approx([3 / 4, 2 / 3])
    assert row["expected_tokens"] == pytest.approx(1 + 3 / 4 + 1 / 2)
    assert row["c"] == pytest.approx(0.1)
