"""The benchmark's report: says what the summary says, of whole runs and of what little there is."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from bench_summaries import Summary, interrupted, losing, one_method, summary

from outpace.measure.report.bench_report import bench_html, bench_markdown
from outpace.measure.report.bench_tables import (
    acceptance_table,
    crossover_table,
    figures_table,
    passes_table,
    peers_table,
    provenance_facts,
    sameness_table,
    speedup_table,
    steps_table,
)
from outpace.measure.report.bench_words import (
    case_findings,
    crossover_sentence,
    finding,
    pays,
    ranked,
    sameness_sentence,
)

# What the contract of the summary allows to be unknown, wherever it stands.
NULLABLE = (
    "fingerprint",
    "weights_bytes",
    "memory_bytes_per_s",
    "limit_fraction",
    "config",
    "tokens_per_s",
    "end_to_end_tokens_per_s",
    "ttft_ms",
    "ratio",
    "end_to_end_ratio",
    "acceptance_length",
    "alpha",
    "first_difference",
    "num_ties",
    "step",
    "c",
    "predicted_ratio",
    "crossover_batch",
    "commit",
    "cpu",
    "cores",
    "load_average",
    "variables",
)
WHOLE = [summary, one_method, interrupted, losing]


def first_setting(whole: Summary) -> Summary:
    setting: Summary = whole["paths"][0]["settings"][0]
    return setting


def with_ratio(mean: float, low: float | None, high: float | None, num_prompts: int = 9) -> Summary:
    """One method in one setting, with this ratio."""
    whole = one_method()
    column = first_setting(whole)["methods"][1]["columns"][0]
    column["ratio"] = {"mean": mean, "low": low, "high": high, "num_prompts": num_prompts}
    return whole


@pytest.mark.parametrize("make", WHOLE)
def test_the_same_summary_gives_the_same_bytes(make: Callable[[], Summary]) -> None:
    given = make()
    before = json.dumps(given)
    # As a file holds it.
    again = json.loads(before)
    assert bench_html(given) == bench_html(again)
    assert bench_markdown(given) == bench_markdown(again)
    assert json.dumps(given) == before


def test_a_method_whose_whole_interval_lies_above_1_pays() -> None:
    assert finding(with_ratio(1.5, 1.2, 1.8)).startswith("**Speculation pays here**")
    assert case_findings(with_ratio(1.5, 1.2, 1.8))[0].startswith(
        "temperature 0: `suffix K=8` **pays**: 1.50 (1.20 to 1.80) times plain decoding's tokens "
        "per second over 9 prompts;"
    )


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        ((0.8, 0.7, 0.9), "**nothing pays.** The best is `suffix K=8`, 0.80 (0.70 to 0.90) times"),
        ((1.02, 0.9, 1.1), "an interval that contains 1."),
        ((0.98, 0.9, 1.0), "an interval that contains 1."),
        (
            (2.5, None, None, 2),
            "measured 2.50 times plain decoding's tokens per second over 2 prompts",
        ),
        (
            (2.5, None, None, 1),
            "over 1 prompt. n < 3: there is no interval, so this proves nothing.",
        ),
    ],
)
def test_what_is_not_shown_to_pay_is_not_said_to(ratio: tuple[Any, ...], words: str) -> None:
    given = with_ratio(*ratio)
    assert finding(given).startswith("**Nothing is shown to pay here**")
    (said,) = case_findings(given)
    assert words in said
    assert "**pays**" not in said
    assert not pays(ranked(first_setting(given))[0])


def test_why_nothing_pays_is_said_in_steps() -> None:
    given = with_ratio(0.8, 0.7, 0.9)
    plain, method = (each["columns"][0] for each in first_setting(given)["methods"])
    plain["step"].update(draft_ms=0.0, pass_ms=9.0, rest_ms=1.0)
    method["step"].update(draft_ms=5.0, pass_ms=14.0, rest_ms=1.0)
    method["acceptance_length"] = 1.6
    assert (
        "Its steps gain 1.60 tokens each and cost 2.00 times a plain step."
        in (case_findings(given)[0])
    )


def test_methods_that_cannot_be_told_from_the_best_are_named() -> None:
    given = summary()
    setting = first_setting(given)
    for method, mean in zip(setting["methods"][1:], (1.5, 1.45, 1.1, 9.0), strict=True):
        method["columns"][-1]["ratio"].update(mean=mean, low=mean - 0.1, high=mean + 0.1)
    said = case_findings(given)[0]
    assert "Not to be told apart from it: `draft_model K=4` (1.45)." in said
    # Another engine is no method of ours, however fast.
    assert "transformers" not in said


def test_some_cases_pay_and_some_do_not() -> None:
    given = summary()
    for setting in given["paths"][1]["settings"]:
        for method in setting["methods"][1:]:
            method["columns"][-1]["ratio"].update(mean=0.8, low=0.7, high=0.9)
    assert finding(given).startswith(
        "**Speculation pays here in 2 of 4 cases**, one request at a time"
    )


def test_nothing_measured_is_no_finding() -> None:
    given = interrupted()
    assert "nothing can be said" in finding(given)
    assert "This run was ended before it was whole" in bench_html(given)
    assert "This run was ended before it was whole" in bench_markdown(given)
    given["paths"] = []
    assert "nothing can be said" in finding(given)
    assert bench_html(given)
    assert "This run was ended" not in bench_markdown(summary())


def test_crossover_in_words() -> None:
    entries = [
        {"method": "a", "crossover_batch": 4, "ratios": [{"batch": 1}, {"batch": 8}]},
        {"method": "b", "crossover_batch": None, "ratios": [{"batch": 1}, {"batch": 8}]},
        {"method": "c", "crossover_batch": 1, "ratios": [{"batch": 1}, {"batch": 8}]},
        {"method": "d", "crossover_batch": 4, "ratios": [{"batch": 1}, {"batch": 8}]},
        {
            "method": "e",
            "crossover_batch": None,
            "ratios": [{"batch": 1, "ratio": {"mean": 0.9}}, {"batch": 8, "ratio": {"mean": 1.1}}],
        },
    ]
    assert crossover_sentence(entries) == (
        "Slower than plain decoding: `c` at every batch; `a` and `d` from batch 4 on. "
        "Not slower up to batch 8: `b`. Slower at smaller batches alone: `e`."
    )


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ({"num_compared": 0, "num_equal": 0, "num_ties": None}, "No answers were compared"),
        ({"num_compared": 9, "num_equal": 9, "num_ties": 0}, "**All 9 greedy answers"),
        (
            {"num_compared": 9, "num_equal": 8, "num_ties": 1},
            "1 difference began at a rounding tie",
        ),
        ({"num_compared": 9, "num_equal": 5, "num_ties": 2}, "**2 differences began at more than"),
        ({"num_compared": 9, "num_equal": 5, "num_ties": None}, "Why 4 differ was not looked into"),
    ],
)
def test_whether_the_texts_are_the_same(counts: dict[str, Any], words: str) -> None:
    given = one_method()
    first_setting(given)["methods"][1]["columns"][0].update(counts)
    assert words in sameness_sentence(given)


def test_tables_hold_the_figures_of_the_summary() -> None:
    given = summary()
    setting, path = first_setting(given), given["paths"][0]
    assert speedup_table(setting).headings == [
        "times plain",
        "chat",
        "code",
        "summarization",
        "math",
        "all",
    ]
    suffix = speedup_table(setting).rows[0]
    assert suffix[0] == "suffix K=8"
    # Two prompts have no interval.
    assert re.fullmatch(r"\d\.\d\d \(n = 2\)", suffix[4])
    assert re.fullmatch(r"\d\.\d\d \(\d\.\d\d to \d\.\d\d\)", suffix[5])
    assert len(figures_table(setting).rows) == 25
    assert acceptance_table(setting).rows[0][2] == "61 % of 900"
    assert len(steps_table(setting).rows) == 4
    assert len(passes_table(path).rows) == 13
    assert [row[0] for row in peers_table(setting).rows][-1] == "transformers prompt lookup"
    assert sameness_table([("here", setting)]).rows[0] == [
        "here",
        "suffix K=8",
        "19",
        "18",
        "1",
        "41",
    ]
    entries = [e for e in given["crossover"] if e["path"] == path["path"] and not e["temperature"]]
    assert crossover_table(entries).headings[1:4] == ["batch 1", "batch 4", "batch 8"]


def test_provenance_is_shown_without_folders_and_without_what_is_not_known() -> None:
    given = summary()
    given["options"]["prompts"] = ["/home/someone/prompts.jsonl"]
    facts = dict(provenance_facts(given))
    assert facts["took"] == "20.1 minutes"
    assert "transformers" not in facts
    assert "prompts prompts.jsonl" in facts["options"]
    assert "/home/" not in bench_html(given) + bench_markdown(given)


def test_the_file_says_which_command_wrote_it() -> None:
    first = bench_markdown(summary()).splitlines()[0]
    assert first.startswith("<!-- Written by this command, not by hand;")
    assert "outpace bench --methods suffix:8,draft_model:4,auto" in first


def test_the_file_has_no_command_that_the_documentation_tests_would_run() -> None:
    assert "```" not in bench_markdown(summary())


def test_both_forms_have_the_same_tables() -> None:
    page, markdown = bench_html(summary()), bench_markdown(summary())
    # The facts are a list on the page.
    assert page.count("<table>") == len(re.findall(r"^\| ---", markdown, re.MULTILINE)) - 1


def test_parts_of_which_nothing_was_measured_are_left_out() -> None:
    headings = re.findall(r"^## (.*)$", bench_markdown(one_method()), re.MULTILINE)
    assert headings == [
        "How this was measured",
        "Speed-up by column",
        "Acceptance by position",
        "Where a step's time goes",
        "Are the texts the same?",
        "Every figure",
        "How to read this",
    ]
    assert re.findall(r"^## (.*)$", bench_markdown(interrupted()), re.MULTILINE) == [
        "How this was measured",
        "Are the texts the same?",
        "Every figure",
        "How to read this",
    ]


def places(values: Any, name: str) -> Iterator[Summary]:
    """The objects that have a value of this name."""
    if isinstance(values, dict):
        if name in values:
            yield values
        values = list(values.values())
    for each in values if isinstance(values, list) else []:
        yield from places(each, name)


@pytest.mark.parametrize("name", NULLABLE)
def test_what_may_be_unknown_may_be_unknown_everywhere(name: str) -> None:
    given = summary()
    given["paths"] = given["paths"][:1]
    found = list(places(given, name))
    assert found
    for each in found:
        each[name] = None
    shown = bench_html(given) + bench_markdown(given)
    assert "None" not in shown
    assert "nan" not in shown.lower().replace("nano", "")


def test_hostile_names_stay_text() -> None:
    bad = "<script>alert(1)</script>`**|\n# x"
    given = json.loads(json.dumps(summary()).replace("suffix K=8", json.dumps(bad)[1:-1]))
    given["notes"] = [bad]
    given["model"]["name"] = bad
    page, markdown = bench_html(given), bench_markdown(given)
    assert "<script" not in page
    assert not re.search(r"^# x", markdown, re.MULTILINE)
    outside_code = re.sub(r"`[^`\n]+`", "", markdown)
    assert not re.search(r"(?<!\\)<script", outside_code)
    rows = [line for line in markdown.splitlines() if line.startswith("| \\<script")]
    assert rows
