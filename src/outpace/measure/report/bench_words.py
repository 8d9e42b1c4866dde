"""What a benchmark's summary says, in words."""

from __future__ import annotations

from collections.abc import Sequence

from outpace.measure.report.bench_views import (
    Values,
    ours,
    place_name,
    plain,
    ratio_text,
    singles,
    total,
)
from outpace.measure.report.numbers import counted, decimals


def quoted(name: str) -> str:
    """`name` as code within a sentence."""
    return f"`{name.replace('`', chr(39)).strip() or '?'}`"


def finding(summary: Values) -> str:
    """Whether anything pays here, in a sentence, and what was asked for but not measured."""
    return f"{_verdict(summary)}{_not_measured(summary)}"


def _verdict(summary: Values) -> str:
    cases = [(path, setting) for path, setting in singles(summary) if ranked(setting)]
    if not cases:
        return "No method was measured beside plain decoding, so nothing can be said yet."
    paying = [case for case in cases if pays(ranked(case[1])[0])]
    where = _batch_words(cases[0][1]["batch"])
    if not paying:
        return f"**Nothing is shown to pay here**, {where}."
    best = list(dict.fromkeys(ranked(setting)[0]["method"] for _, setting in paying))
    named = f"best with {_listed([quoted(name) for name in best])}"
    if len(paying) == len(cases):
        return f"**Speculation pays here**, {where}, {named}."
    return f"**Speculation pays here in {len(paying)} of {len(cases)} cases**, {where}, {named}."


def _not_measured(summary: Values) -> str:
    names = [name for path in summary["paths"] for name in path.get("not_measured", ())]
    missing = [quoted(name) for name in dict.fromkeys(names)]
    if not missing:
        return ""
    verb = "was" if len(missing) == 1 else "were"
    several = [path["path"] for path in summary["paths"] if path.get("not_measured")]
    where = f" in {_listed(several)}" if len(summary["paths"]) > 1 else ""
    return f" {_listed(missing)} {verb} not measured{where}; the notes say why."


def case_findings(summary: Values) -> list[str]:
    """For every path and temperature: the best method at the smallest batch, or that none pays."""
    return [
        f"{place_name(summary, path, setting['temperature'])}: {_case(setting)}"
        for path, setting in singles(summary)
    ]


def ranked(setting: Values) -> list[Values]:
    """The methods that draft and were compared with plain decoding, the fastest first."""
    known = [method for method in ours(setting) if _ratio(method)]
    return sorted(known, key=lambda method: -_known_ratio(method)["mean"])


def pays(method: Values) -> bool:
    """Whether the whole interval of its ratio to plain decoding lies above 1."""
    low = _known_ratio(method)["low"]
    return low is not None and low > 1


def crossover_sentence(entries: Sequence[Values]) -> str:
    """From which batch on the methods of one path and temperature lose to plain decoding."""
    largest = max(each["batch"] for entry in entries for each in entry["ratios"])
    smallest = min(each["batch"] for entry in entries for each in entry["ratios"])
    by_batch: dict[int, list[str]] = {}
    lasting, wavering = [], []
    for entry in entries:
        name, batch = quoted(entry["method"]), entry["crossover_batch"]
        if batch is not None:
            by_batch.setdefault(batch, []).append(name)
        elif any((each.get("ratio") or {"mean": 1.0})["mean"] < 1 for each in entry["ratios"]):
            wavering.append(name)
        else:
            lasting.append(name)
    slower = [
        f"{_listed(names)} {'at every batch' if batch == smallest else f'from batch {batch} on'}"
        for batch, names in sorted(by_batch.items())
    ]
    said = [f"Slower than plain decoding: {'; '.join(slower)}."] if slower else []
    if lasting:
        said.append(f"Not slower up to batch {largest}: {_listed(lasting)}.")
    if wavering:
        said.append(f"Slower at smaller batches alone: {_listed(wavering)}.")
    return " ".join(said)


def sameness_sentence(summary: Values) -> str:
    """Whether greedy answers equal plain decoding's."""
    compared = equal = ties = 0
    classified = True
    for path in summary["paths"]:
        for setting in path["settings"]:
            for column in filter(None, map(total, ours(setting))):
                compared += column["num_compared"]
                equal += column["num_equal"]
                classified &= column["num_ties"] is not None or column["num_compared"] == 0
                ties += column["num_ties"] or 0
    if not compared:
        return (
            "No answers were compared. At temperature 0 speculation must give plain decoding's "
            "tokens, but no method and plain decoding both answered a prompt there."
        )
    differ = compared - equal
    if not differ:
        return f"**All {compared} greedy answers of ours equal plain decoding's** in every token."
    said = f"{equal} of {compared} greedy answers of ours equal plain decoding's in every token. "
    if not classified:
        return f"{said}Why {differ} differ was not looked into."
    if ties == differ:
        return (
            f"{said}{counted(differ, 'difference')} began at a rounding tie: the two tokens are "
            "the model's two best there, closer together than its arithmetic resolves."
        )
    return (
        f"{said}**{counted(differ - ties, 'difference')} began at more than a rounding tie**, "
        "which must not happen: run `outpace audit`."
    )


def _case(setting: Values) -> str:
    methods = ranked(setting)
    if not methods:
        return "no method was measured beside plain decoding."
    best, ratio = methods[0], _known_ratio(methods[0])
    name, prompts = quoted(best["method"]), counted(ratio["num_prompts"], "prompt")
    if ratio["low"] is None or ratio["high"] is None:
        return (
            f"{name} measured {decimals(ratio['mean'])} times plain decoding's tokens per second "
            f"over {prompts}. n < 3: there is no interval, so this proves nothing."
        )
    measured = f"{ratio_text(ratio)} times plain decoding's tokens per second over {prompts}"
    if ratio["low"] > 1:
        return f"{name} **pays**: {measured}{_whole_answers(best)}.{_not_told_apart(methods)}"
    reason = _why_not(setting, best) if ratio["mean"] < 1 else ""
    if ratio["high"] < 1:
        return f"**nothing pays.** The best is {name}, {measured}.{reason}"
    return (
        f"nothing is shown to pay. The best is {name}, {measured}, an interval that contains "
        f"1.{reason}"
    )


def _whole_answers(method: Values) -> str:
    column = total(method)
    ratio = column["end_to_end_ratio"] if column else None
    return f"; {ratio_text(ratio)} times for whole answers, prompts included" if ratio else ""


def _not_told_apart(methods: Sequence[Values]) -> str:
    """The methods whose intervals meet that of the best."""
    low = _known_ratio(methods[0])["low"]
    near = [
        f"{quoted(each['method'])} ({decimals(_known_ratio(each)['mean'])})"
        for each in methods[1:]
        if (_known_ratio(each)["high"] or 0.0) >= low
    ]
    return f" Not to be told apart from it: {_listed(near)}." if near else ""


def _why_not(setting: Values, method: Values) -> str:
    """What a step gains against what it costs, in plain steps."""
    column, reference = total(method), plain(setting)
    base = total(reference) if reference else None
    if not column or not base or not column["step"] or not base["step"]:
        return ""
    if column["acceptance_length"] is None:
        return ""
    cost = _step_ms(column["step"]) / _step_ms(base["step"])
    return (
        f" Its steps gain {decimals(column['acceptance_length'])} tokens each and cost "
        f"{decimals(cost)} times a plain step."
    )


def _step_ms(step: Values) -> float:
    return float(step["draft_ms"] + step["pass_ms"] + step["rest_ms"])


def _ratio(method: Values) -> Values | None:
    column = total(method)
    return column["ratio"] if column else None


def _known_ratio(method: Values) -> Values:
    ratio = _ratio(method)
    assert ratio is not None
    return ratio


def _batch_words(batch: int) -> str:
    return "one request at a time" if batch == 1 else f"{batch} requests at a time"


def _listed(items: Sequence[str]) -> str:
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)
