"""What the tables say, in sentences made from their numbers alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from outpace.measure.experiment.drafts import TRAINED
from outpace.measure.report.numbers import percent

PUBLISHED_LOSSES = "0.35x to 0.68x"
PUBLISHED_V2 = "1.4 to 2.6"
"""Of the table of losses in circulation, and what it implies; see docs/misconceptions.md."""

LOSSES = {
    "alpha": "low alpha",
    "draft": "drafting",
    "rows": "verifying k + 1 rows",
    "rest": "the rest of the engine",
}
"""What a speed-up is lost to, by the names in `loss`."""

Row = Mapping[str, Any]


def verdict(measured: Row | None) -> str:
    """ "loses", "gains" or "unclear", by where the interval lies."""
    if measured is None or measured["low"] is None:
        return "unclear"
    if measured["high"] < 1:
        return "loses"
    return "gains" if measured["low"] > 1 else "unclear"


def conclusion(summary: Row) -> list[str]:
    """The closing paragraphs; warnings come first, where decisions do not fit p and q or
    times cannot be relied on. Of such times nothing else is said."""
    warnings = [*_warnings(summary["drafts"]), *_unreliable(summary["drafts"])]
    if not any(row["measured"] for draft in summary["drafts"] for row in draft["rows"]):
        return ["Nothing was measured completely: give it more time."]
    drafts = [draft for draft in summary["drafts"] if _reliable(draft)]
    if not drafts:
        return warnings
    untrained = [draft for draft in drafts if draft["kind"] != TRAINED]
    trained = [draft for draft in drafts if draft["kind"] == TRAINED]
    paragraphs = warnings
    if untrained:
        paragraphs.append(_losses(untrained))
    paragraphs += [_cause(draft) for draft in untrained]
    paragraphs += [_formulas(drafts), _rows_cost(summary, drafts)]
    paragraphs += [_trained(draft, untrained, summary) for draft in trained]
    return paragraphs


def _reliable(draft: Row) -> list[Row]:
    """The lines whose times can be relied on."""
    return [row for row in draft["rows"] if row["unreliable"] is None]


def _warnings(drafts: Sequence[Row]) -> list[str]:
    said = []
    for draft in drafts:
        found = draft["acceptance"]
        if not found["is_drawn_from_q"]:
            said.append(
                f"WARNING: the tokens that {draft['label']} drafts are not drawn from the q that "
                f"comes with them (chance explains this with a probability of at most "
                f"{found['drawn_chance']:.0e}). Its answers do not follow the target's "
                "distribution, and its alpha is wrong."
            )
        if not found["is_decided_by_p_and_q"]:
            said.append(
                f"WARNING: the engine accepted {found['num_accepted']:,} draft tokens of "
                f"{draft['label']} where p and q let {found['num_expected']:,.1f} be expected "
                f"(chance explains this with a probability of at most "
                f"{found['decided_chance']:.0e}). It does not decide by p and q, and nothing said "
                "of this draft can be relied on."
            )
    return said


def _unreliable(drafts: Sequence[Row]) -> list[str]:
    """A warning of the lines from which nothing should be concluded, by reason."""
    reasons: dict[str, list[str]] = {}
    for draft in drafts:
        for row in draft["rows"]:
            if row["unreliable"] is not None:
                case = f"{draft['label']} at k = {row['k']}"
                reasons.setdefault(row["unreliable"], []).append(case)
    if not reasons:
        return []
    num_lines = sum(len(draft["rows"]) for draft in drafts)
    told = "; ".join(
        f"{reason}: {'all of it' if len(cases) == num_lines else ', '.join(cases)}"
        for reason, cases in reasons.items()
    )
    return [
        f"WARNING: not reliable ({told}). Nothing is concluded from these times. Run it for longer "
        "(--minutes), or when the machine is idle."
    ]


def _losses(drafts: Sequence[Row]) -> str:
    rows = [row for draft in drafts for row in _reliable(draft)]
    verdicts = [verdict(row["measured"]) for row in rows]
    means = [row["measured"]["mean"] for row in rows]
    outcomes = {
        "loses": "slower than plain decoding",
        "gains": "faster",
        "unclear": "too close to plain decoding for this run to tell",
    }
    counts = [f"{n} {words}" for name, words in outcomes.items() if (n := verdicts.count(name))]
    return (
        f"Drafts that were not trained for the target run at {_span(means)} times plain decoding. "
        f"Combinations of draft and k: {', '.join(counts)}. "
        f"(The published table, for drafts of these kinds: {PUBLISHED_LOSSES}.)"
    )


def _cause(draft: Row) -> str:
    """Where the way from k + 1 down to what was measured went, over all k of a draft."""
    rows = _reliable(draft)
    shares = {
        name: sum(row["loss"][name] for row in rows) / len(rows)  # each k counts alike
        for name in LOSSES
    }
    largest = max(shares, key=shares.__getitem__)
    others = {words: shares[name] for name, words in LOSSES.items() if name != largest}
    took = [f"{words} {percent(share)}" for words, share in others.items() if share >= 0]
    gave = [f"{words} {percent(-share)}" for words, share in others.items() if share < 0]
    told = [f"then come {', '.join(took)}"] * bool(took)
    told += [f"brought back: {', '.join(gave)}"] * bool(gave)
    alphas = [row["alpha"] for row in rows if row["alpha"] is not None]
    return (
        f"{draft['label']}: alpha {_span(alphas)}, c {_span([row['c'] for row in rows])}. On the "
        f"way from k + 1 times plain down to {_span([row['measured']['mean'] for row in rows])} "
        f"the most is lost to {LOSSES[largest]}, {percent(shares[largest])} of the way "
        f"({'; '.join(told)}). {_needed(rows)}"
    )


def _needed(rows: Sequence[Row]) -> str:
    """What alpha it would take to break even."""
    hopeless = [row["k"] for row in rows if row["needed_alpha"] is None]
    possible = [row for row in rows if row["needed_alpha"] is not None]
    said = []
    if possible:
        easiest = min(possible, key=lambda row: float(row["needed_alpha"]))
        needed, alpha = easiest["needed_alpha"], easiest["alpha"]
        said.append(f"To break even at k = {easiest['k']}, alpha has to be {_figure(needed)}")
        if alpha is not None:
            said[-1] += f"; it is {_figure(alpha)}"
        if alpha is not None and alpha >= needed and easiest["measured"]["mean"] < 1:
            said[-1] += ", which leaves what it loses to the rest of the engine or to noise"
        said[-1] += "."
    if hopeless:
        said.append(
            f"At k = {_listed(hopeless)} no alpha would do: drafting and verifying cost more than "
            "the tokens they could bring."
        )
    return " ".join(said)


def _formulas(drafts: Sequence[Row]) -> str:
    """How the two predictions did."""
    rows = [
        (draft["label"], row)
        for draft in drafts
        for row in _reliable(draft)
        if row["simple_ratio"] is not None
    ]
    simple = [math.log(row["simple_ratio"] / row["measured"]["mean"]) for _, row in rows]
    exact = [math.log(row["predicted_ratio"] / row["measured"]["mean"]) for _, row in rows]
    if not rows:
        return "No alpha was recorded, so there is nothing to predict from."
    worst = max(range(len(rows)), key=simple.__getitem__)
    label, row = rows[worst]
    return (
        f"The formula in circulation, (1 + k alpha) / (1 + k c), promises too much in "
        f"{sum(error > 0 for error in simple)} of {len(rows)} cases, on average "
        f"{_percent(simple)}; most for {label} at k = {row['k']}, "
        f"{_figure(row['simple_ratio'])}x where {_figure(row['measured']['mean'])}x was measured. "
        f"With the tokens a step that the acceptance of each position gives and the measured "
        f"v(k + 1), E / (k c + v), it is {_percent(exact)} on average; what is left is the rest of "
        "the engine."
    )


def _rows_cost(summary: Row, drafts: Sequence[Row]) -> str:
    measured = ", ".join(
        f"v({each['num_rows']}) = {each['v']:.2f}"
        for each in summary["passes"]
        if each["num_rows"] > 1
    )
    implied = [
        (row["k"], row["implied_v"])
        for draft in drafts
        for row in _reliable(draft)
        if row["implied_v"] is not None
    ]
    least = min(k for k, _ in implied)
    values = [value for k, value in implied if k == least]
    return (
        f"Passes over more rows are not free: {measured}, measured. If a step were drafting and a "
        f"pass and nothing else, the speeds would imply v({least + 1}) = {_span(values)}; what "
        "that is above the measured one is overhead, and below it noise or overhead that plain "
        f"decoding has too. (The published losses imply {PUBLISHED_V2} for v(2).)"
    )


def _best(rows: Sequence[Row]) -> Row:
    return max(rows, key=lambda row: float(row["measured"]["mean"]))


def _trained(draft: Row, untrained: Sequence[Row], summary: Row) -> str:
    rows = _reliable(draft)
    best, others = _best(rows), [row for other in untrained for row in _reliable(other)]
    alphas = [row["alpha"] for row in rows if row["alpha"] is not None]
    outcome = {
        "gains": "and gains",
        "loses": "and still loses",
        "unclear": "which this run cannot tell from plain decoding",
    }[verdict(best["measured"])]
    said = (
        f"What a trained draft changes: {draft['label']}, {draft['description']}, has alpha "
        f"{_span(alphas)} at c {_span([row['c'] for row in rows])}. Its best k here is "
        f"{best['k']}: {_figure(best['measured']['mean'])} times plain, {outcome}."
    )
    if others:
        said += f" The best of the others: {_figure(_best(others)['measured']['mean'])}."
    if best["measured"]["mean"] < 1 or verdict(best["measured"]) == "unclear":
        said += f" {_needed(rows)} {_quick_target(summary)}"
    return said.strip()


def _quick_target(summary: Row) -> str:
    plain = summary["plain"]
    return (
        f"The target's own pass takes {plain['pass_ms']:.1f} ms here; the quicker it is, the more "
        "a draft and further rows cost beside it."
    )


def _percent(errors: Sequence[float]) -> str:
    """The mean of logarithms of ratios, in words."""
    mean = math.expm1(sum(errors) / len(errors))
    return f"{percent(abs(mean))} too {'much' if mean > 0 else 'little'}"


def _span(values: Sequence[float]) -> str:
    """ "0.02", or "0.02 to 0.31"."""
    if not values:
        return "unknown"
    low, high = _figure(min(values)), _figure(max(values))
    return low if low == high else f"{low} to {high}"


def _figure(value: float) -> str:
    """Two decimals, or two figures of what is small."""
    return f"{value:.2f}" if abs(value) >= 0.095 or value == 0 else f"{value:.2g}"


def _listed(numbers: Sequence[int]) -> str:
    words = [str(number) for number in numbers]
    return " and ".join([*([", ".join(words[:-1])] if words[1:] else []), words[-1]])
