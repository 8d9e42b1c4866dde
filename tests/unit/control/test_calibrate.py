"""Measuring what passes cost: the law behind the times is found, the time is kept, nothing is left
in the cache, and what was written down is not trusted blindly."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hf_cases import RUN, write
from native_models import loaded, odd_model, usable_paths
from tiny import fresh_logits, new_runner, new_sequence, tiny_model

from outpace.control import calibrate
from outpace.control.calibrate import _Case, fitted, measure_costs
from outpace.control.costs import CostTable, PassShape
from outpace.models.load import LoadedModel, load_model
from outpace.runner import Runner

LAW = CostTable(
    ((1, 4e-3), (2, 4.4e-3), (4, 5e-3), (8, 7e-3), (16, 10e-3), (17, 16e-3), (32, 20e-3)),
    per_seq_s=1e-4,
    per_token_s=4e-6,
    per_token_row_s=1e-6,
)
NAMED = "0123456789abcdef" * 4


class Machine:
    """A model whose passes take what a law says, by a clock of its own.

    slow: by what passes are slowed down, by chance. computes: whether a pass yields what the model
    says, which takes real time, or zeros. passes: how many there were. asked: what was captured.
    """

    def __init__(self, model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
        self.model, self.now, self.passes = model, 0.0, 0
        self.law: Callable[[PassShape], float] = LAW.seconds
        self.slow: Callable[[], float] = lambda: 1.0
        self.computes = False
        self.asked: set[tuple[int, ...]] = set()
        self._forward = model.decoder.forward
        monkeypatch.setattr(model.decoder, "forward", self.forward)
        monkeypatch.setattr(calibrate, "perf_counter", lambda: self.now)

    def forward(self, batch: Any, cache: Any, capture: Any = ()) -> Any:
        segments = batch.segments
        context = sum(segment.start for segment in segments)
        shape = PassShape(len(segments), len(batch.token_ids), context)
        self.passes += 1
        self.now += self.law(shape) * self.slow()
        self.asked.add(tuple(capture))
        if self.computes:
            return self._forward(batch, cache, capture)
        return np.zeros((len(batch.logit_rows), self.model.decoder.num_logits), np.float32), {}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, unchecked_shapes: None) -> Machine:
    model = replace(tiny_model(max_len=1024, dtype="float32"), fingerprint=NAMED)
    return Machine(model, monkeypatch)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OUTPACE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "costs"


def measure(machine: Machine, *, num_rows: int = 6, **options: Any) -> CostTable:
    return measure_costs(new_runner(machine.model, num_rows=num_rows), machine.model, **options)


def is_untouched(runner: Runner) -> bool:
    cache = runner.cache
    runner.check_integrity()
    is_empty = all(cache.length(row) == 0 for row in range(cache.num_rows))
    return cache.num_free_rows == cache.num_rows and is_empty


SHAPES = [
    PassShape(num_seqs, num_seqs * rows, num_seqs * context)
    for num_seqs in (1, 3, 8)
    for rows in (1, 2, 5, 9)
    for context in (0, 200, 900)
]


class TestWhatIsFound:
    def test_the_law(self, machine: Machine) -> None:
        table = measure(machine)
        for shape in SHAPES:
            assert table.seconds(shape) == pytest.approx(LAW.seconds(shape), rel=0.02)

    def test_the_law_behind_noise(self, machine: Machine) -> None:
        rng = random.Random(0)
        machine.slow = lambda: (
            rng.uniform(1, 1.1) * (rng.uniform(2, 10) if rng.random() < 0.2 else 1)
        )
        table = measure(machine, budget_s=2.0)
        for shape in SHAPES:
            if shape.context < 900:
                assert table.seconds(shape) == pytest.approx(LAW.seconds(shape), rel=0.2)

    def test_noise_that_tells_nonsense_still_makes_a_table(self, machine: Machine) -> None:
        rng = random.Random(1)
        machine.law = lambda shape: rng.uniform(1e-4, 1e-1)
        for _ in range(20):
            table = measure(machine)  # which checks itself
            assert table.pass_s(1) > 0

    def test_context_that_seems_to_explain_all_leaves_a_pass_some_time(self) -> None:
        seconds = {_Case(1, 1): 1e-4, _Case(1, 8): 1.1e-4, _Case(1, 1, True): 0.1}
        assert fitted(seconds | {_Case(1, 8, True): 0.5}, 16).pass_s(1) == pytest.approx(5e-5)

    def test_a_row_alone_gets_no_context_costs(self, machine: Machine) -> None:
        table = measure(machine, num_rows=1)
        assert table.per_seq_s == table.per_token_s == table.per_token_row_s == 0.0
        assert table.pass_s(8) == pytest.approx(7e-3, rel=0.05)

    def test_captured_layers_are_asked_for(self, machine: Machine) -> None:
        measure(machine, capture=(0, 2))
        assert (0, 2) in machine.asked


class TestTime:
    def test_the_budget_is_kept(self, machine: Machine) -> None:
        measure(machine)
        assert 0.2 < machine.now < 1.05

    @pytest.mark.parametrize(("slower", "knots"), [(5, 4), (10, 2), (300, 2)])
    def test_a_slow_model_is_measured_less_widely(
        self, machine: Machine, slower: float, knots: int
    ) -> None:
        machine.law = lambda shape: slower * LAW.seconds(shape)
        table = measure(machine)
        longest = slower * LAW.seconds(PassShape(1, 17, 16))
        assert machine.now < max(1.0, 3 * longest) + longest
        assert len(table.knots) >= knots
        assert [rows for rows, _ in table.knots[:1]] == [1]
        assert table.pass_s(8) == pytest.approx(slower * 7e-3, rel=0.05)

    def test_a_fast_model_is_done_soon(self, machine: Machine) -> None:
        machine.law = lambda shape: LAW.seconds(shape) / 100
        measure(machine)
        assert machine.now < 0.02


class TestNothingIsLeft:
    @pytest.mark.parametrize("num_rows", [1, 2, 6])
    def test_in_the_rows(self, machine: Machine, num_rows: int) -> None:
        runner = new_runner(machine.model, num_rows=num_rows)
        measure_costs(runner, machine.model)
        assert machine.passes > 2
        assert is_untouched(runner)

    def test_after_an_error(self, machine: Machine) -> None:
        def fail(shape: PassShape) -> float:
            if machine.passes > 20:
                raise RuntimeError("out of order")
            return LAW.seconds(shape)

        machine.law = fail
        runner = new_runner(machine.model, num_rows=6)
        with pytest.raises(RuntimeError, match="out of order"):
            measure_costs(runner, machine.model)
        assert is_untouched(runner)

    def test_beside_requests_that_run(self, machine: Machine) -> None:
        machine.computes = True
        runner = new_runner(machine.model, num_rows=3)
        seq = new_sequence([5, 6, 7, 8, 9])
        runner.open(seq)
        runner.extend([seq])
        runner.commit([seq])
        measure_costs(runner, machine.model)
        runner.check_integrity()
        assert runner.num_cached(seq) == 4
        assert runner.cache.num_free_rows == 2
        logits = runner.extend([seq]).logits[-1]
        assert logits.allclose(fresh_logits(machine.model, seq.tokens), atol=1e-5)

    @pytest.mark.parametrize("impl", ["torch", "native", "transformers"])
    def test_of_any_kind_of_model(self, impl: str, tmp_path: Path) -> None:
        if impl == "native" and not usable_paths():
            pytest.skip("the native library is not built")
        if impl == "transformers":
            path = write(tmp_path / "olmo2", "olmo2", RUN["olmo2"])
            model = load_model(path, dtype="float32", model_impl="transformers")
        else:
            model = tiny_model() if impl == "torch" else loaded(odd_model("q4_1"))
        num_rows = model.decoder.max_rows or 5
        cache = model.new_cache(num_rows=num_rows, num_tokens=model.max_len)
        runner = Runner(model.decoder, cache)
        table = measure_costs(runner, model, (0, 1), budget_s=0.3)
        assert [rows for rows, _ in table.knots][:2] == [1, 2]
        assert is_untouched(runner)

    @pytest.mark.parametrize("length", [2, 3, 9, 20, 40])
    def test_of_short_models(self, length: int) -> None:
        model = tiny_model(max_len=length)
        runner = new_runner(model, num_rows=5)
        assert measure_costs(runner, model).pass_s(1) > 0
        assert is_untouched(runner)


class TestOnDisk:
    def test_what_was_measured_is_not_measured_again(
        self, machine: Machine, own_cache: Path
    ) -> None:
        first = measure(machine)
        passes = machine.passes
        assert measure(machine) == first
        assert machine.passes == passes > 20
        assert [path.suffix for path in own_cache.iterdir()] == [".json"]

    def test_a_directory_may_be_given(self, machine: Machine, tmp_path: Path) -> None:
        measure(machine, cache_dir=tmp_path / "elsewhere")
        assert len(list((tmp_path / "elsewhere").iterdir())) == 1

    def test_whatever_passes_depend_on_has_a_file_of_its_own(
        self, machine: Machine, own_cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        measure(machine)
        measure(machine, capture=(1,))
        measure(machine, num_rows=3)
        monkeypatch.setattr(calibrate.torch, "get_num_threads", lambda: 7)
        measure(machine)
        monkeypatch.setattr(calibrate, "_processor", lambda device: "another one")
        measure(machine)
        monkeypatch.setattr(calibrate, "usable_cores", lambda: 64)
        measure(machine)
        machine.model = replace(machine.model, fingerprint=NAMED[::-1])
        measure(machine)
        assert len(list(own_cache.iterdir())) == 7

    def test_a_model_without_a_stable_name_is_not_written_down(
        self, machine: Machine, own_cache: Path
    ) -> None:
        machine.model = replace(machine.model, fingerprint="tiny")
        measure(machine)
        passes = machine.passes
        measure(machine)
        assert machine.passes > passes
        assert not own_cache.exists()

    @pytest.mark.parametrize("slower", [0.01, 6.0])
    def test_nor_is_what_takes_no_time_or_was_not_finished(
        self, machine: Machine, own_cache: Path, slower: float
    ) -> None:
        machine.law = lambda shape: slower * LAW.seconds(shape)
        measure(machine)
        assert not own_cache.exists()

    @pytest.mark.parametrize(
        "damage",
        [
            lambda text: b"",
            lambda text: text[: len(text) // 2],
            lambda text: b"\xff\xfe" + text,
            lambda text: b"[1, 2]",
            lambda text: b"{}",
            lambda text: b"null",
            lambda text: text.replace(b'"per_seq_s": ', b'"per_seq_s": 1'),
            lambda text: text.replace(b'"table": {', b'"table": {"more": 1.0, '),
            lambda text: text.replace(NAMED.encode(), NAMED[::-1].encode()),
            lambda text: text.replace(b'"format": 1', b'"format": 0'),
        ],
    )
    def test_a_damaged_file_is_measured_again_and_replaced(
        self, machine: Machine, own_cache: Path, damage: Callable[[bytes], bytes]
    ) -> None:
        first = measure(machine)
        (path,) = own_cache.iterdir()
        good = path.read_bytes()
        assert damage(good) != good
        path.write_bytes(damage(good))
        passes = machine.passes
        assert measure(machine).pass_s(8) == pytest.approx(first.pass_s(8))
        assert machine.passes > passes
        assert json.loads(path.read_bytes())["subject"] == json.loads(good)["subject"]
        passes = machine.passes
        measure(machine)
        assert machine.passes == passes

    def test_a_table_that_cannot_be_is_measured_again(
        self, machine: Machine, own_cache: Path
    ) -> None:
        measure(machine)
        (path,) = own_cache.iterdir()
        content = json.loads(path.read_text())
        content["table"]["knots"][0][1] = -1.0
        content["digest"] = calibrate._digest(content["table"])
        path.write_text(json.dumps(content))
        assert measure(machine).pass_s(1) > 0

    @pytest.mark.parametrize("step", ["mkdir", "write", "replace"])
    def test_what_cannot_be_written_is_said_and_nothing_half_written_stays(
        self,
        machine: Machine,
        own_cache: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        step: str,
    ) -> None:
        def fail(*_: Any, **__: Any) -> None:
            raise OSError(28, "No space left on device")

        if step == "mkdir":
            own_cache.parent.write_text("in the way")
        elif step == "write":
            monkeypatch.setattr(calibrate.json, "dump", fail)
        else:
            monkeypatch.setattr(calibrate.os, "replace", fail)
        with caplog.at_level(logging.INFO, calibrate.__name__):
            assert measure(machine).pass_s(1) > 0
        assert "OUTPACE_CACHE" in caplog.text
        assert step == "mkdir" or not list(own_cache.iterdir())
