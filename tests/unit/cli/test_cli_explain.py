"""`outpace generate --explain`: the account of what `auto` decided."""

from __future__ import annotations

import io
import json
from collections.abc import Callable

import pytest
from rich.console import Console

from outpace.cli.explain import (
    decision_lines,
    decisions_json,
    economy_lines,
    reason,
    shares,
    shares_words,
    show_decisions,
    steps_by_source,
)
from outpace.control.decisions import DecisionLog, Economy, RequestRecord, StepRecord

Run = Callable[..., tuple[int, str, str]]
ECONOMY = Economy([0.004, 0.005, 0.0055, 0.006], "eagle3", [0.0, 0.0013, 0.0024])
UNTRAINED = Economy(ECONOMY.pass_s)


def record(
    step: int,
    source: str = "none",
    drafted: int = 0,
    accepted: int = 0,
    *,
    predicted: tuple[float, float] = (1.0, 0.004),
    step_s: float = 0.005,
) -> StepRecord:
    return StepRecord(
        step=step,
        num_seqs=1,
        num_rows=1 + drafted,
        context=50,
        requests=[RequestRecord(7, source, drafted, accepted)],
        predicted_tokens=predicted[0],
        predicted_s=predicted[1],
        num_tokens=1 + accepted,
        draft_s=0.0,
        target_s=0.004,
        step_s=step_s,
    )


def filled(economy: Economy | None = ECONOMY) -> DecisionLog:
    """Ten plain steps, three drafts of suffix decoding and two of the head."""
    log = DecisionLog()
    log.economy = (lambda: economy) if economy else None
    for step in range(10):
        log.add(record(step))
    for step in range(10, 13):
        log.add(record(step, "suffix", 3, 2, predicted=(2.5, 0.006)))
    log.add(record(13, "eagle3", 2, 1, predicted=(1.9, 0.007)))
    log.add(record(14, "eagle3", 2, 0, predicted=(1.0, 0.004)))
    return log


def shown(log: DecisionLog) -> str:
    text = io.StringIO()
    show_decisions(log, Console(file=text, width=100))
    return text.getvalue()


def test_the_account_goes_to_standard_error(run_cli: Run, llms: list) -> None:
    status, out, err = run_cli("generate", "hello", "--explain")
    assert (status, out) == (0, "you said: hello\n")
    summary, *account = err.splitlines()
    assert summary.endswith("method auto")
    text = "\n".join(account)
    assert "What auto did in 5 steps" in text
    assert "suffix drafted 2, 2 accepted; 4.0 ms predicted, 5.0 ms measured" in text
    assert "Predictions of 5 steps" in text
    assert "time 20 % off (median 20 %), tokens 0 % off" in text


def test_the_account_in_json(run_cli: Run, llms: list) -> None:
    _, out, err = run_cli("generate", "hello", "--explain", "--json")
    values = json.loads(out)
    assert values["text"] == "you said: hello"
    assert values["decisions"]["sources"]["suffix"] == {
        "steps": 5,
        "drafted": 10,
        "accepted": 10,
        "tokens_per_step": 3.0,
    }
    assert values["decisions"]["costs"] is None
    assert len(values["decisions"]["last"]) == 5
    assert err == ""
    _, out, _ = run_cli("generate", "hello", "--json")
    assert "decisions" not in json.loads(out)


def test_the_account_of_a_comparison(run_cli: Run, llms: list) -> None:
    _, out, err = run_cli("generate", "hello", "--compare", "--explain")
    assert "Drafts by, in share of steps: 100 % suffix." in out
    assert "What auto did in 20 steps" in err  # with the warm-up
    _, out, _ = run_cli("generate", "hello", "--compare", "--explain", "--json")
    values = json.loads(out)
    assert values["shares"] == {"suffix": 1.0}
    assert values["decisions"]["num_steps"] == 20


@pytest.mark.parametrize("method", ["none", "ngram"])
def test_other_methods_decide_nothing(run_cli: Run, llms: list, method: str) -> None:
    status, out, err = run_cli("generate", "hello", "--explain", "--method", method)
    assert (status, out) == (1, "")
    assert err.startswith("error: --explain tells how 'auto' decided, but the method is ")
    assert llms[0].requests == []
    _, out, _ = run_cli("generate", "hello", "--compare", "--method", "ngram")
    assert "Drafts by" not in out


def test_the_table_counts_by_source() -> None:
    text = shown(filled())
    lines = {line.split()[1]: line for line in text.splitlines() if line.startswith("│")}
    for name, cells in {
        "plain": ["10", "67 %", "0", "0", "-", "1.00"],
        "suffix": ["3", "20 %", "9", "6", "67 %", "3.00"],
        "eagle3": ["2", "13 %", "4", "1", "25 %", "1.50"],
    }.items():
        assert [cell.strip() for cell in lines[name].split("│")][2:-1] == cells


def test_costs_say_from_where_on_a_draft_pays() -> None:
    lines = economy_lines(ECONOMY)
    assert lines[1].split() == ["1:", "4.0", "2:", "5.0", "3:", "5.5", "4:", "6.0"]
    assert lines[2].split() == ["v", "1:", "1.00", "2:", "1.25", "3:", "1.38", "4:", "1.50"]
    assert lines[3] == (
        "A copied token costs its row and pays where it is right in more than 25 %."
    )
    # 1 + p tokens in 5.0 + 1.3 ms beside 1 in 4.0: from p = 0.575.
    assert lines[4] == (
        "A draft token of eagle3 costs 1.3 ms besides and pays where it is right in more than 57 %."
    )
    assert len(economy_lines(UNTRAINED)) == 4
    steep = Economy([0.004, 0.009])
    assert economy_lines(steep)[-1] == "A copied token costs its row and pays at no rate."
    assert len(economy_lines(Economy([0.004]))) == 3


def test_reasons() -> None:
    log = filled()
    plain, copied, drafted, trial = (log.tail(15)[i] for i in (0, 10, 13, 14))
    assert reason(log, plain, ECONOMY) == (
        "a draft token of eagle3 costs 1.3 ms and was right in 25 % of 4: not worth 4.0 ms passes"
    )
    assert reason(log, plain, UNTRAINED) == (
        "nothing to copy that is worth more than its rows in 4.0 ms passes"
    )
    assert reason(log, copied, ECONOMY) == (
        "2.5 tokens expected in 6.0 ms, where plain steps need 10.0 ms"
    )
    assert reason(log, drafted, ECONOMY).startswith("1.9 tokens expected in 7.0 ms")
    assert reason(log, trial, ECONOMY) == "a trial: eagle3 has not been asked for long"
    drafted.predicted_s, drafted.reading_s = drafted.predicted_s + 0.05, 0.05
    assert reason(log, drafted, ECONOMY) == (
        "1.9 tokens expected in 7.0 ms, where plain steps need 7.6 ms, after 50.0 ms of reading "
        "the text"
    )
    assert "not tried" in reason(DecisionLog(), plain, ECONOMY)
    assert reason(log, plain, None) == "1.0 tokens expected"
    assert "nothing was predicted" in reason(log, record(15, predicted=(0.0, 0.0)), ECONOMY)
    last = record(15)
    last.requests.clear()
    log.add(last)
    *_, line, why = decision_lines(log, ECONOMY)
    assert line.startswith("  step 15: plain; ")
    assert why.strip() == "there was no room for a draft"


def test_a_tree_of_two_drafters_counts_as_a_try_of_the_trained_one() -> None:
    log = DecisionLog()
    log.add(record(0, "suffix+eagle3", 4, 1))
    log.add(record(1))
    assert "was right in 25 % of 4" in reason(log, record(1), ECONOMY)
    log.add(record(2, "eagle3", 4, 3))
    log.add(record(3, "suffix", 8, 0))
    assert "was right in 50 % of 8" in reason(log, record(1), ECONOMY)


def test_a_drafter_that_was_asked_in_vain_was_asked() -> None:
    """Nothing that it named was worth a row: that is no trial, which comes after a long pause."""
    asked = record(0, "eagle3", 0, 0, predicted=(1.0, 0.0053))
    assert reason(DecisionLog(), asked, ECONOMY) == "eagle3 named nothing that is worth a row"


def test_a_reason_is_said_once() -> None:
    lines = decision_lines(filled(), ECONOMY)
    assert sum(line.startswith("  step") for line in lines) == 8
    assert sum("not worth" in line for line in lines) == 1
    assert lines[0] == "  step 7: plain; 4.0 ms predicted, 5.0 ms measured"
    assert lines[4].endswith("suffix drafted 3, 2 accepted; 6.0 ms predicted, 5.0 ms measured")


def test_several_requests_stand_in_one_line() -> None:
    log = filled()
    both = record(15)
    both.num_seqs = 2
    both.requests.append(RequestRecord(8, "suffix", 2, 1))
    log.add(both)
    *_, line, why = decision_lines(log, ECONOMY)
    assert line.startswith("  step 15: plain, suffix drafted 2, 1 accepted; ")
    assert why.strip() == "1.0 tokens expected of 2 requests"


def test_an_empty_log_and_one_without_costs() -> None:
    empty = DecisionLog()
    assert "nothing to explain" in shown(empty)
    assert decisions_json(empty)["sources"] == {}
    text = shown(filled(None))
    assert "eagle3" in text
    assert "Milliseconds" not in text
    unplanned = DecisionLog()
    unplanned.add(record(0, predicted=(0.0, 0.0)))
    assert "No step had a prediction" in shown(unplanned)
    assert "predicted," not in shown(unplanned)


def test_json_holds_costs_and_reasons() -> None:
    values = json.loads(json.dumps(decisions_json(filled()), allow_nan=False))
    assert values["costs"] == {
        "pass_s": list(ECONOMY.pass_s),
        "trained": "eagle3",
        "draft_s": list(ECONOMY.draft_s),
    }
    assert values["sources"].keys() == {"plain", "suffix", "eagle3"}
    last = values["last"][-1]
    assert last["requests"] == [{"source": "eagle3", "drafted": 2, "accepted": 0}]
    assert last["reason"].startswith("a trial")


def test_shares_are_those_between_two_counts() -> None:
    log = filled()
    before = steps_by_source(log)
    log.add(record(15))
    log.add(record(16, "suffix", 1, 1))
    log.add(record(17, "suffix", 1, 1))
    found = shares(before, steps_by_source(log))
    assert found == {"suffix": 2 / 3, "plain": 1 / 3}
    assert list(found) == ["suffix", "plain"]
    assert shares_words(found) == "67 % suffix, 33 % plain"
    assert shares(before, before) == {}
