"""What `auto` decided, why, and what came of it: for people, and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as List
from typing import TYPE_CHECKING, Any

from outpace.errors import OptionError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from outpace import LLM
    from outpace.control.decisions import DecisionLog, Economy, RequestRecord, StepRecord

NUM_SHOWN = 8
"""How many of the newest decisions people are shown."""
NUM_IN_JSON = 64
SHOWN_ROWS = (1, 2, 3, 4, 5, 6, 8, 12, 16)
"""Rows of a pass whose cost is shown."""
PLAIN = "none"
"""What a step without a draft stands under in the log."""


def decisions_of(llm: LLM) -> DecisionLog:
    """The log of what was decided. Raises OptionError for a method that decides nothing."""
    if llm.decisions is None:
        raise OptionError(
            f"--explain tells how 'auto' decided, but the method is {llm.method!r}; leave --method "
            "out, or name auto"
        )
    return llm.decisions


def source_name(source: str) -> str:
    """What a source of drafts is called where people read it."""
    return "plain" if source == PLAIN else source


def steps_by_source(log: DecisionLog) -> dict[str, int]:
    """How often each source was used so far; a step counts once for every request in it."""
    return {source_name(source): totals.steps for source, totals in log.totals.items()}


def shares(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, float]:
    """Share of the steps between two counts by source, the largest first."""
    steps = {source: count - before.get(source, 0) for source, count in after.items()}
    total = sum(steps.values())
    ranked = sorted(steps.items(), key=lambda item: -item[1])
    return {source: count / total for source, count in ranked if count}


def shares_words(found: Mapping[str, float]) -> str:
    """ "62 % plain, 38 % suffix"."""
    return ", ".join(f"{share:.0%} {source}".replace("%", " %") for source, share in found.items())


def decisions_json(log: DecisionLog) -> dict[str, Any]:
    """What `--json --explain` prints under "decisions"."""
    errors, economy = log.errors(), log.economy() if log.economy else None
    return {
        "num_steps": log.num_steps,
        "sources": {
            source_name(source): {
                "steps": totals.steps,
                "drafted": totals.drafted,
                "accepted": totals.accepted,
                "tokens_per_step": 1 + totals.accepted / totals.steps,
            }
            for source, totals in log.totals.items()
        },
        "errors": {
            "time": errors.time_error,
            "median_time": errors.median_time_error,
            "tokens": errors.token_error,
            "num_steps": errors.num_steps,
        },
        "costs": economy
        and {
            "pass_s": list(economy.pass_s),
            "trained": economy.trained,
            "draft_s": list(economy.draft_s),
        },
        "last": [_record_json(log, record, economy) for record in log.tail(NUM_IN_JSON)],
    }


def _record_json(log: DecisionLog, record: StepRecord, economy: Economy | None) -> dict[str, Any]:
    return {
        "step": record.step,
        "requests": [
            {
                "source": source_name(request.source),
                "drafted": request.drafted,
                "accepted": request.accepted,
            }
            for request in record.requests
        ],
        "num_rows": record.num_rows,
        "context": record.context,
        "predicted_tokens": record.predicted_tokens,
        "num_tokens": record.num_tokens,
        "predicted_s": record.predicted_s,
        "reading_s": record.reading_s,
        "step_s": record.step_s,
        "draft_s": record.draft_s,
        "target_s": record.target_s,
        "reason": reason(log, record, economy),
    }


def show_decisions(log: DecisionLog, console: Console) -> None:
    """Print the account: by source, predictions, costs, and the newest decisions."""
    if not log.num_steps:
        console.print("No step was left to decide about: nothing to explain.")
        return
    economy = log.economy() if log.economy else None
    console.print(_source_table(log))
    lines = [
        errors_sentence(log),
        *(economy_lines(economy) if economy else ()),
        f"The last {len(log.tail(NUM_SHOWN))} decisions:",
        *decision_lines(log, economy),
    ]
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def show_on_stderr(log: DecisionLog) -> None:
    from rich.console import Console

    show_decisions(log, Console(stderr=True))


def _source_table(log: DecisionLog) -> Table:
    from rich.table import Table

    table = Table("drafts by", title=f"What auto did in {log.num_steps} steps")
    for heading in ("steps", "share", "drafted", "accepted", "right", "tokens per step"):
        table.add_column(heading, justify="right")
    total = sum(totals.steps for totals in log.totals.values())
    for source, totals in sorted(log.totals.items(), key=lambda item: -item[1].steps):
        table.add_row(
            source_name(source),
            str(totals.steps),
            _percent(totals.steps / total),
            str(totals.drafted),
            str(totals.accepted),
            _percent(totals.accepted / totals.drafted) if totals.drafted else "-",
            f"{1 + totals.accepted / totals.steps:.2f}",
        )
    return table


def errors_sentence(log: DecisionLog) -> str:
    """How far predictions were off."""
    errors = log.errors()
    if not errors.num_steps:
        return "No step had a prediction to compare with."
    return (
        f"Predictions of {errors.num_steps} steps against what was measured: time "
        f"{_percent(errors.time_error)} off (median {_percent(errors.median_time_error)}), tokens "
        f"{_percent(errors.token_error)} off."
    )


def economy_lines(economy: Economy) -> list[str]:
    """What a step costs here, and from where on drafting pays."""
    pass_s, shown = economy.pass_s, [n for n in SHOWN_ROWS if n <= len(economy.pass_s)]
    lines = [
        "Milliseconds of a step without drafting, by rows of its pass (v, relative to one row):",
        "   " + "  ".join(f"{n}: {_ms(pass_s[n - 1])}" for n in shown),
        " v " + "  ".join(f"{n}: {pass_s[n - 1] / pass_s[0]:.2f}" for n in shown),
    ]
    if len(pass_s) > 1:
        lines.append(f"A copied token costs its row and pays {_from_where(pass_s, 0.0)}.")
    if economy.trained and len(economy.draft_s) > 1 and len(pass_s) > 1:
        lines.append(
            f"A draft token of {economy.trained} costs {_ms(economy.draft_s[1])} ms besides and "
            f"pays {_from_where(pass_s, economy.draft_s[1])}."
        )
    return lines


def _from_where(pass_s: List[float], draft_s: float) -> str:
    """How often a draft of one token must be right: 1 + p tokens in the time of two rows and the
    drafting, against one token in that of one row."""
    least = (pass_s[1] + draft_s) / pass_s[0] - 1
    return "at no rate" if least >= 1 else f"where it is right in more than {_percent(least)}"


def decision_lines(log: DecisionLog, economy: Economy | None) -> list[str]:
    """One line for each of the newest decisions, its reason below where it is a new one."""
    lines: list[str] = []
    known: str | None = None
    for record in log.tail(NUM_SHOWN):
        chosen = ", ".join(_chosen(request) for request in record.requests) or "plain"
        predicted = f"{_ms(record.predicted_s)} ms predicted, " if record.predicted_s else ""
        lines.append(f"  step {record.step}: {chosen}; {predicted}{_ms(record.step_s)} ms measured")
        why = reason(log, record, economy)
        if why != known:
            lines.append(f"    {why}")
        known = why
    return lines


def _chosen(request: RequestRecord) -> str:
    name = source_name(request.source)
    if not request.drafted:
        return name
    return f"{name} drafted {request.drafted}, {request.accepted} accepted"


def reason(log: DecisionLog, record: StepRecord, economy: Economy | None) -> str:
    """Why this was chosen, in words, from what is known by now."""
    if not record.requests:
        return "there was no room for a draft"
    if not record.predicted_s:
        return "nothing was predicted for this step"
    if economy is None or len(record.requests) > 1:
        several = f" of {len(record.requests)} requests" if len(record.requests) > 1 else ""
        return f"{record.predicted_tokens:.1f} tokens expected{several}"
    (request,) = record.requests
    plain_s, expected = economy.pass_s[0], record.predicted_tokens
    if request.source == PLAIN:
        return _why_plain(log, economy)
    if not request.drafted:
        return f"{source_name(request.source)} named nothing that is worth a row"
    predicted_s = record.predicted_s - record.reading_s
    if expected <= 1 or expected * plain_s < predicted_s:
        return f"a trial: {source_name(request.source)} has not been asked for long"
    reading = f", after {_ms(record.reading_s)} ms of reading the text" if record.reading_s else ""
    return (
        f"{expected:.1f} tokens expected in {_ms(predicted_s)} ms, where plain steps need "
        f"{_ms(expected * plain_s)} ms{reading}"
    )


def _why_plain(log: DecisionLog, economy: Economy) -> str:
    plain_ms = _ms(economy.pass_s[0])
    if economy.trained is None or len(economy.draft_s) < 2:
        return f"nothing to copy that is worth more than its rows in {plain_ms} ms passes"
    cost = f"a draft token of {economy.trained} costs {_ms(economy.draft_s[1])} ms"
    drafted, accepted = _tried(log, economy.trained)
    if not drafted:
        return f"{cost} and was not tried: not worth {plain_ms} ms passes as far as is known"
    tried = f"{_percent(accepted / drafted)} of {drafted}"
    return f"{cost} and was right in {tried}: not worth {plain_ms} ms passes"


def _tried(log: DecisionLog, trained: str) -> tuple[int, int]:
    """Tokens drafted and accepted where the trained drafter had a share in the draft."""
    shared = [totals for source, totals in log.totals.items() if trained in source.split("+")]
    return sum(totals.drafted for totals in shared), sum(totals.accepted for totals in shared)


def _ms(seconds: float) -> str:
    milliseconds = 1000 * seconds
    return f"{milliseconds:.1f}" if milliseconds >= 0.095 else f"{milliseconds:.2f}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
