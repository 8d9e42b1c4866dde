"""The parts in their order: record, replay, time, predict, measure, and look at larger batches."""

from __future__ import annotations

from collections.abc import Sequence as List
from contextlib import ExitStack
from dataclasses import dataclass, field

from outpace.errors import OptionError
from outpace.measure.advise.batches import (
    MEASURED,
    measure_batches,
    predicted_at,
    predicted_crossover,
)
from outpace.measure.advise.candidates import (
    AUTO,
    Candidate,
    Family,
    candidates_of,
    default_configs,
    families_of,
    with_draft,
)
from outpace.measure.advise.costing import measure_costs
from outpace.measure.advise.costs import StepCost
from outpace.measure.advise.findings import AtBatch, Findings
from outpace.measure.advise.memory import memory_of
from outpace.measure.advise.options import AdviseOptions, Clock, Progress
from outpace.measure.advise.predict import Prediction, predict, predict_auto
from outpace.measure.advise.recording import CHUNK, record
from outpace.measure.advise.replay import Replay, Score
from outpace.measure.advise.verifying import measure
from outpace.measure.prompts import BenchPrompt
from outpace.measure.provenance import load_note
from outpace.models.load import LoadedModel

RECORDED, REPLAYED, MEASURED_UNTIL = 0.1, 0.35, 0.85
"""Shares of the time at which each part gives way to the next."""
_MOST_ROUNDS = 3
_OVERRUN = 1.1
_MOST_MEASURED = 4


@dataclass(slots=True)
class _Known:
    """What the parts hand to each other. costs: of each candidate's steps, by name.
    num_disagreements: of all replays, each counted once however many candidates it tells of."""

    max_model_len: int
    scores: list[Score] = field(default_factory=list)
    num_disagreements: int = 0
    costs: dict[str, StepCost] = field(default_factory=dict)


def advise(
    loaded: LoadedModel,
    prompts: List[BenchPrompt],
    options: AdviseOptions,
    progress: Progress,
    findings: Findings,
) -> None:
    """Find out which way of drafting pays on these prompts, in the time that was given for it.

    findings: filled part by part, so that an interruption leaves what there is.
    Raises OptionError for candidates or prompts that cannot be used, ModelError for a draft that
    does not go with the target.
    """
    busy = load_note()
    if busy is not None:
        findings.notes.append(f"{busy[0].upper()}{busy[1:]}.")
    clock = Clock(options.seconds, progress)
    findings.promised_s = options.seconds
    try:
        _advise(loaded, prompts, options, clock, findings)
        findings.is_complete = True
    finally:
        findings.seconds = clock.elapsed
        if findings.seconds > _OVERRUN * findings.promised_s:
            findings.notes.append(
                f"It took {findings.seconds:.0f} s, not the {findings.promised_s:.0f} s promised: "
                "every candidate is looked at once, whatever that takes. Fewer --candidates take "
                "less."
            )


def _advise(
    loaded: LoadedModel,
    prompts: List[BenchPrompt],
    options: AdviseOptions,
    clock: Clock,
    findings: Findings,
) -> None:
    most = loaded.decoder.max_rows
    if most is not None and options.batch > most:
        raise OptionError(
            f"{loaded.name} on the {loaded.runs_on} decodes at most {most} at a time; give a batch "
            f"of no more, got {options.batch}"
        )
    configs = options.configs
    if configs is None:
        configs = tuple(default_configs(loaded.fingerprint, options.draft, quick=options.quick))
    candidates = candidates_of(with_draft(configs, options.draft))
    families = families_of(candidates)
    known = _Known(_row_len(loaded, prompts, options))
    findings.num_prompts = len(prompts)
    clock.stage("recording plain answers")
    findings.recorded, amount = record(
        loaded,
        prompts,
        options,
        clock,
        share=RECORDED,
        replay_share=REPLAYED - RECORDED,
        num_replays=len(families),
        max_model_len=known.max_model_len,
    )
    findings.max_tokens = amount.max_tokens
    if amount.max_tokens < options.max_tokens:
        findings.notes.append(
            f"Answers were cut to {amount.max_tokens} tokens, not {options.max_tokens}, to keep to "
            f"{options.minutes:g} minutes; --minutes gives it more."
        )
    clock.stage("replaying candidates")
    known.scores = _replay(loaded, families, options, clock, findings, known)
    findings.machine, known.costs = measure_costs(
        loaded,
        families,
        options,
        clock,
        findings.recorded,
        amount.step_s,
        max_model_len=known.max_model_len,
    )
    _predict(candidates, findings, known)
    chosen = worth_measuring(candidates, findings, few=options.quick)
    for candidate in chosen:
        findings.memory[candidate.name] = memory_of(candidate, loaded, known.max_model_len)
    clock.stage("measuring the best beside plain decoding")
    measure(
        loaded,
        chosen,
        findings.recorded,
        options.params(amount.max_tokens),
        clock,
        batch=options.batch,
        share=1.0 if options.quick else MEASURED_UNTIL,
        most_rounds=1 if options.quick else _MOST_ROUNDS,
        max_model_len=known.max_model_len,
        found=findings.measured,
    )
    if not options.quick:
        clock.stage("looking for the batch at which it stops to pay")
        _find_crossover(loaded, options, clock, findings, known)


def _row_len(loaded: LoadedModel, prompts: List[BenchPrompt], options: AdviseOptions) -> int:
    """Tokens of a sequence, drafts included, rounded up."""
    longest = max(len(prompt.token_ids) for prompt in prompts) + options.max_tokens + 80
    return min(loaded.max_len, -(-longest // 256) * 256)


def _replay(
    loaded: LoadedModel,
    families: List[Family],
    options: AdviseOptions,
    clock: Clock,
    findings: Findings,
    known: _Known,
) -> list[Score]:
    """Score all families on the same answers: as many of the recorded as there is time for."""
    params = options.params(findings.max_tokens)
    num_done = 0
    with ExitStack() as opened:
        replays = []
        for family in families:
            replay = Replay(loaded, family, max_model_len=known.max_model_len, max_num_seqs=CHUNK)
            opened.callback(replay.close)
            replays.append(replay)
        took = 0.0
        while num_done < len(findings.recorded) and (not num_done or clock.left(REPLAYED) > took):
            before = clock.elapsed
            chunk = findings.recorded[num_done : num_done + CHUNK]
            for replay in replays:
                replay.score(chunk, params)
                clock.tick()
            num_done += len(chunk)
            took = clock.elapsed - before
    del findings.recorded[num_done:]
    left_out = findings.num_prompts - len(findings.recorded)
    if left_out:
        findings.notes.append(_left_out(left_out, findings, options))
    known.num_disagreements = sum(replay.scores[0].num_disagreements for replay in replays)
    return [score for replay in replays for score in replay.scores]


def _left_out(left_out: int, findings: Findings, options: AdviseOptions) -> str:
    most = min(options.most_prompts, findings.num_prompts)
    reasons = []
    if most < findings.num_prompts:
        flag = "--quick" if options.quick else f"{options.minutes:g} minutes"
        reasons.append(f"{flag} looks at {most} at most")
    if len(findings.recorded) < most:
        reasons.append("there was no time for more, or their answers were over at once")
    return f"{left_out} of {findings.num_prompts} prompts were left out: {'; '.join(reasons)}."


def _predict(candidates: List[Candidate], findings: Findings, known: _Known) -> None:
    machine = findings.machine
    assert machine is not None
    by_name = {}
    for score in known.scores:
        if any(len(steps) > 1 for steps in score.answers):
            cost = known.costs[score.candidate.name]
            by_name[score.candidate.name] = predict(score, cost, machine)
            if machine.batch > 1:
                findings.alone[score.candidate.name] = predicted_at(score, cost, machine, 1)
    findings.predictions = [by_name[c.name] for c in candidates if c.name in by_name]
    for candidate in candidates:
        if candidate.method == AUTO:
            findings.auto = predict_auto(candidate, _parts_of_auto(findings.predictions), machine)
            if findings.auto is None:
                findings.notes.append(
                    "auto is measured, not predicted: no method that it chooses from is among the "
                    "candidates."
                )
    if known.num_disagreements:
        findings.notes.append(
            f"In {known.num_disagreements} replayed steps the target chose another token than "
            "before: rounding where two are nearly tied. `outpace audit` tells that from a bug."
        )


def _parts_of_auto(predictions: List[Prediction]) -> list[Prediction]:
    """Of each method that `auto` chooses from, the best chain."""
    best: dict[str, Prediction] = {}
    for prediction in predictions:
        method, is_tree = prediction.candidate.method, prediction.candidate.is_tree
        if not is_tree and method not in _NOT_IN_AUTO:
            before = best.get(method)
            if before is None or prediction.ratio > before.ratio:
                best[method] = prediction
    return list(best.values())


_NOT_IN_AUTO = ("early_exit", "lookahead", "ngram", "recycling")


def worth_measuring(
    candidates: List[Candidate], findings: Findings, *, few: bool
) -> list[Candidate]:
    """The best predicted of each method and shape, the best of these, and `auto` in any case."""
    best: dict[tuple[str, bool], tuple[float, Candidate]] = {}
    for prediction in findings.predictions:
        key = (prediction.candidate.method, prediction.candidate.is_tree)
        if key not in best or prediction.ratio > best[key][0]:
            best[key] = (prediction.ratio, prediction.candidate)
    ordered = sorted(best.values(), key=lambda pair: -pair[0])
    chosen = [candidate for _, candidate in ordered[: 2 if few else _MOST_MEASURED]]
    return [*chosen, *(c for c in candidates if c.method == AUTO)]


def _find_crossover(
    loaded: LoadedModel,
    options: AdviseOptions,
    clock: Clock,
    findings: Findings,
    known: _Known,
) -> None:
    """Of the best candidate that was replayed and measured."""
    machine = findings.machine
    replayed = {score.candidate.name: score for score in known.scores}
    measured = [m for m in findings.measured if m.candidate.name in replayed]
    if not measured or machine is None:
        return
    best = max(measured, key=lambda m: m.ratio.mean).candidate
    score, cost = replayed[best.name], known.costs[best.name]
    findings.batches_of = best.name
    findings.predicted_crossover = predicted_crossover(score, cost, machine)
    predicted = [
        AtBatch(batch, predicted_at(score, cost, machine, batch))
        for batch in MEASURED
        if batch != options.batch
    ]
    measure_batches(
        loaded,
        best,
        predicted,
        findings.recorded,
        options,
        clock,
        max_model_len=known.max_model_len,
        found=findings.batches,
    )
