"""Groups, laps and rounds: who runs when, and what happens to those that cannot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from outpace.errors import ModelError
from outpace.measure.bench.contenders import Contender
from outpace.measure.bench.groups import Group, make_laps
from outpace.measure.bench.results import BenchRun, MethodInfo
from outpace.measure.bench.rounds import Rounds, run_laps
from outpace.measure.kept import Answer, BatchTiming
from outpace.measure.prompts import BenchPrompt
from outpace.outputs import SpeculationStats

PROMPTS = [
    BenchPrompt(f"{category}{i}", category, (1, 2, 3))
    for category, count in (("a", 3), ("b", 1), ("c", 2))
    for i in range(count)
]


def test_a_lap_has_one_prompt_of_each_column() -> None:
    laps = make_laps(PROMPTS, 1, seed=0)
    assert [[g.label for g in lap] for lap in laps] == [["a0", "b0", "c0"], ["a1", "c1"], ["a2"]]
    assert [g.column for g in laps[0]] == ["a", "b", "c"]


def test_batches_mix_columns_and_take_every_prompt() -> None:
    laps = make_laps(PROMPTS, 4, seed=0)
    assert [len(lap) for lap in laps] == [1, 1]
    groups = [group for lap in laps for group in lap]
    assert [len(group.prompts) for group in groups] == [4, 4]
    assert {group.column for group in groups} == {"all"}
    assert {p.category for p in groups[0].prompts} == {"a", "b", "c"}
    assert {p.label for g in groups for p in g.prompts} == {p.label for p in PROMPTS}
    assert len(make_laps(PROMPTS[:1], 4, seed=0)[0][0].prompts) == 4


class Clock:
    """Time that passes only when work is done."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("deadline", "repeats", "laps_run"),
    [(0.0, 3, [(0, 0)]), (100 + 7.0, 3, [(0, 0), (0, 1), (1, 0)]), (1e9, 2, [(0, 0), (0, 1)] * 2)],
    ids=["the first always", "while the next would end in time", "up to the repeats"],
)
def test_laps_are_run_by_the_clock(
    deadline: float, repeats: int, laps_run: list[tuple[int, int]]
) -> None:
    clock, seen = Clock(), []

    def work(lap: int, round_index: int, number: int) -> None:
        seen.append((round_index, lap))
        clock.now += 2.0 + lap / 10

    run_laps([0, 1], repeats, deadline, work, clock)
    assert [lap for _, lap in seen] == [lap for _, lap in laps_run]
    assert [number for number, _ in seen] == sorted(number for number, _ in seen)


@dataclass
class FakeEngine:
    """Notes its turns; fails as it is told."""

    name: str
    log: list[tuple[str, float, int]]
    fails: list[Exception | None] = field(default_factory=list)
    num_errors: int = 0

    def generate_batch(self, prompts: Sequence[Any], params: Sequence[Any]) -> BatchTiming:
        error = self.fails.pop(0) if self.fails else None
        if error is not None:
            raise error
        self.log.append((self.name, params[0].temperature, params[0].max_tokens))
        stats = SpeculationStats(num_drafter_errors=self.num_errors)
        return BatchTiming([Answer([1, 2], 0.1, stats) for _ in prompts], 1.0, 0.9, len(prompts))

    def close(self) -> None:
        """Nothing is held."""


class Silent:
    def describe(self, what: str) -> None:
        """Nobody looks."""


class Bench:
    """Rounds over made-up contenders."""

    def __init__(self, *contenders: Contender, batch: int = 1, **values: Any) -> None:
        self.notes: list[str] = []
        self.runs: list[BenchRun] = []
        self.rounds = Rounds(
            label="path",
            contenders=list(contenders),
            laps=make_laps(PROMPTS, batch, seed=0),
            batch=batch,
            temperatures=(0.0, 0.8),
            max_tokens=5,
            runs=self.runs,
            progress=Silent(),
            note=self.notes.append,
            **values,
        )


Log = list[tuple[str, float, int]]


def contender(
    name: str, log: Log, *fails: Exception | None, num_errors: int = 0, **values: Any
) -> Contender:
    info = MethodInfo(name, None, is_peer=values.pop("is_peer", False))
    return Contender(info, FakeEngine(name, log, list(fails), num_errors), **values)


def test_nobody_always_comes_first() -> None:
    log: Log = []
    bench = Bench(contender("x", log), contender("y", log), contender("z", log))
    bench.rounds.run(1, 0.0)
    greedy = [name for name, temperature, _ in log if temperature == 0]
    assert "".join(greedy) == "xyz" + "yzx" + "zxy"
    assert len(log) == len(bench.runs) == 18
    first = bench.runs[0]
    assert (first.group, first.column, first.round, first.prompts) == ("a0", "a", 0, ("a0",))


def test_peers_decode_what_they_can() -> None:
    log: Log = []
    peer = contender("peer", log, greedy_only=True, max_batch=2, is_peer=True)
    bench = Bench(contender("x", log), peer)
    lap = bench.rounds.laps[0]
    assert bench.rounds.num_tokens(lap) == 3 * 5 * 3
    bench.rounds.run(1, 0.0)
    assert {(name, temperature) for name, temperature, _ in log} == {
        ("x", 0.0),
        ("x", 0.8),
        ("peer", 0.0),
    }
    log.clear()
    large = Bench(contender("x", log), peer, batch=3)
    large.rounds.warm_up()
    assert [each.name for each in large.rounds.contenders] == ["x"]
    assert large.notes == []


def test_who_cannot_run_is_left_out_with_a_note() -> None:
    log: Log = []
    bench = Bench(
        contender("x", log),
        contender("y", log, ModelError("not on this model")),
        contender("peer", log, RuntimeError("broken"), is_peer=True),
    )
    bench.rounds.warm_up()
    assert log == [("x", 0.0, 5)]
    assert bench.notes == [
        "path: y was not measured: not on this model",
        "path: peer was not measured: broken",
    ]
    bench.rounds.run(1, 0.0)
    assert {run.method for run in bench.runs} == {"x"}


def test_a_peer_that_breaks_off_does_not_stop_the_others() -> None:
    log: Log = []
    peer = contender("peer", log, None, RuntimeError("gone"), is_peer=True)
    bench = Bench(contender("x", log), peer)
    bench.rounds.run(1, 0.0)
    assert [run.method for run in bench.runs] == ["x", "peer", *["x"] * 5]
    assert bench.notes == ["path: peer broke off: gone"]


def test_our_own_failures_are_not_hidden() -> None:
    bench = Bench(contender("x", [], RuntimeError("a bug")))
    with pytest.raises(RuntimeError, match="a bug"):
        bench.rounds.warm_up()
    bench = Bench(contender("x", [], None, RuntimeError("a bug")))
    with pytest.raises(RuntimeError, match="a bug"):
        bench.rounds.run(1, 0.0)
    assert len(bench.runs) == 1


def test_a_drafter_that_failed_is_told() -> None:
    bench = Bench(contender("x", [], num_errors=1))
    bench.rounds.run(1, 0.0)
    assert set(bench.notes) == {"path: x FAILED and went on plain; see the log"}


def test_groups_know_their_tokens() -> None:
    group = Group("g", "all", tuple(PROMPTS[:2]))
    assert group.token_ids == [(1, 2, 3), (1, 2, 3)]
