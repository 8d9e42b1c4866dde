"""The advice itself: what to use, or that nothing pays and why, in numbers and in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outpace.measure.advise.candidates import AUTO, Candidate
from outpace.measure.advise.findings import Findings, Measured
from outpace.measure.advise.predict import AutoPrediction, Machine, Prediction

USE, NOT_SURE, NONE = "use", "not sure", "none"
ACCEPTANCE, VERIFICATION, BATCH = "acceptance", "verification", "batch"
BUSY, UNCERTAIN = "busy", "uncertain"
LEAST_GAIN = 1.03
"""A ratio below this is not worth a setting."""
_EQUAL = 0.02
_MOST_ABOVE = 1.05
"""A step with a draft takes no less than one without, but for what timing leaves open."""
_PLAINLY = {"method": "none"}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do.

    kind: USE, NOT_SURE or NONE. reason: why none pays (ACCEPTANCE, VERIFICATION, BATCH), or why it
    is not sure: UNCERTAIN (it may be chance) or BUSY (times that cannot be right).
    candidate: what is advised, or was best. text: all of it in a sentence or some.
    speculative_config: for `LLM`. ratio: to plain decoding, with its interval; None bounds where
    too few prompts were measured or none was.
    """

    kind: str
    text: str
    speculative_config: Mapping[str, Any]
    candidate: Candidate | None = None
    reason: str | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    is_measured: bool = False


def decide(findings: Findings) -> Verdict | None:
    """What the findings say; None while they say nothing."""
    impossible = [measured for measured in findings.measured if not measured.is_reliable]
    if impossible:
        return _on_impossible(findings, max(impossible, key=lambda m: m.ratio.mean))
    best = _best_measured(findings)
    if best is not None:
        return _on_measured(findings, best)
    expected = _best_predicted(findings)
    if expected is None:
        return None
    name, ratio = expected.candidate.name, expected.ratio
    if ratio < LEAST_GAIN:
        return _none(findings, expected.candidate, ratio, None, None, is_measured=False)
    disturbed = [p for p in findings.predictions if p.ratio > _MOST_ABOVE * p.most_ratio]
    # What is expected of `auto` is taken from the others.
    if disturbed and (expected in disturbed or not isinstance(expected, Prediction)):
        worst = max(disturbed, key=lambda p: p.ratio)
        name, ratio = worst.candidate.name, worst.ratio
        text = (
            f"Not sure: {ratio:.2f} times plain decoding is expected of {name}, more than its "
            f"{worst.most_ratio:.2f} tokens a step allow, so something disturbed the times. It was "
            "not measured; run it again, and until then decode plainly."
        )
        return Verdict(NOT_SURE, text, _PLAINLY, worst.candidate, BUSY, ratio)
    text = (
        f"Use {name}: {ratio:.2f} times plain decoding is expected {_where(findings)}. "
        "It was not measured: there was no time for it."
    )
    config = expected.candidate.config
    return Verdict(USE, text, config, expected.candidate, ratio=ratio)


def _on_impossible(findings: Findings, measured: Measured) -> Verdict:
    """Of measured times that cannot be right, nothing is concluded, of the other methods neither:
    all of them are held against the same runs of plain decoding."""
    candidate, ratio = measured.candidate, measured.ratio
    text = (
        f"Not sure: {candidate.name} seemed to reach {ratio.mean:.2f} times plain decoding "
        f"{_where(findings, len(measured.places))}, which its {measured.expected:.2f} tokens a "
        "step cannot give. The measurement is unreliable: the machine was busy with something "
        "else. Run it again when it is not; until then decode plainly."
    )
    return Verdict(
        NOT_SURE, text, _PLAINLY, candidate, BUSY, ratio.mean, ratio.low, ratio.high, True
    )


def _on_measured(findings: Findings, best: Measured) -> Verdict:
    candidate, ratio = best.candidate, best.ratio
    if ratio.mean < LEAST_GAIN:
        return _none(findings, candidate, ratio.mean, ratio.low, ratio.high, is_measured=True)
    gain = f"{ratio.mean:.2f} times plain decoding{_interval(ratio.low, ratio.high)}"
    where = _where(findings, len(best.places))
    expected = findings.prediction_of(candidate)
    if not _is_sure(findings, best):
        text = (
            f"Not sure: {candidate.name} reached {gain} {where}, which may be chance. "
            "More time or more prompts of the same kind narrow it down; until then decode plainly."
        )
        return Verdict(
            NOT_SURE, text, _PLAINLY, candidate, UNCERTAIN, ratio.mean, ratio.low, ratio.high, True
        )
    words = [f"Use {candidate.name}: {gain} {where}."]
    if ratio.low is None and expected is not None:
        words.append(
            f"So few prompts give no interval; {expected.ratio:.2f} is predicted for "
            f"{_all_recorded(findings)}."
        )
    words += _about_batches(findings, candidate)
    return Verdict(
        USE,
        " ".join(words),
        candidate.config,
        candidate,
        None,
        ratio.mean,
        ratio.low,
        ratio.high,
        True,
    )


def _is_sure(findings: Findings, measured: Measured) -> bool:
    """Whether what was measured is a gain, and hardly by chance."""
    if measured.ratio.mean < LEAST_GAIN:
        return False
    if measured.ratio.low is not None:
        return measured.ratio.low >= 1
    # The prediction, which knows more prompts, has to agree.
    expected = findings.prediction_of(measured.candidate)
    return expected is not None and expected.ratio >= LEAST_GAIN


def _none(
    findings: Findings,
    candidate: Candidate,
    ratio: float,
    low: float | None,
    high: float | None,
    *,
    is_measured: bool,
) -> Verdict:
    """Nothing pays: why is said of the best candidate whose acceptance is known."""
    known = findings.prediction_of(candidate)
    if not isinstance(known, Prediction):
        known = max(findings.predictions, key=lambda p: p.ratio, default=None)
    reason, why = (None, "") if known is None else explain(known, findings)
    measured = findings.measured_of(candidate)
    where = _where(findings, len(measured.places) if measured is not None else 0)
    said = "reached" if is_measured else "is expected to reach"
    text = (
        f"Do not speculate here: the best of what was tried, {candidate.name}, {said} "
        f"{ratio:.2f} times plain decoding{_interval(low, high)} {where}. {why}"
    ).strip()
    return Verdict(NONE, text, _PLAINLY, candidate, reason, ratio, low, high, is_measured)


def explain(prediction: Prediction, findings: Findings) -> tuple[str, str]:
    """(reason, sentence): why a candidate does not pay.

    The batch, if the candidate would pay alone; else verifying, if it would pay with passes over
    any number of rows as dear as over one; else acceptance.
    """
    machine, name = findings.machine, prediction.candidate.name
    assert machine is not None
    alone = findings.alone.get(name)
    if machine.batch > 1 and alone is not None and alone >= LEAST_GAIN:
        return BATCH, (
            f"The batch is too large: with {machine.batch} requests together a pass has no room "
            f"left for drafts. Alone {name} would give {alone:.2f} times."
        )
    free = with_free_passes(prediction, machine)
    if free >= LEAST_GAIN:
        return VERIFICATION, (
            f"Verifying is too dear: {prediction.acceptance.expected:.2f} tokens a step would be "
            f"{free:.2f} times plain if a pass over more rows cost no more, but {name}'s passes, "
            f"over {prediction.acceptance.num_rows:.1f} rows for each request, take "
            f"{prediction.v:.2f} plain ones. {v_words(machine)}"
        )
    alpha = prediction.acceptance.alpha
    measured = "nothing was drafted" if alpha is None else f"alpha is {alpha:.2f}"
    return ACCEPTANCE, (
        f"Acceptance is too low: {measured}, {prediction.acceptance.expected:.2f} tokens a step "
        f"where {prediction.needed_expected:.2f} would be needed{_needed(prediction)}."
    )


def _needed(prediction: Prediction) -> str:
    if prediction.needed_alpha is not None:
        return f": with drafts like these an alpha of {prediction.needed_alpha:.2f}"
    if prediction.most_expected is not None:
        return (
            f", and not even accepting everything drafted would do "
            f"({prediction.most_expected:.2f} tokens)"
        )
    return ""


def with_free_passes(prediction: Prediction, machine: Machine) -> float:
    """The ratio if passes cost what plain ones do."""
    step_ms = prediction.draft_ms + machine.plain_pass_ms + prediction.rest_ms
    return prediction.acceptance.expected * machine.plain_step_ms / step_ms


def v_words(machine: Machine) -> str:
    """v(n) of a few n, by itself."""
    shown = ", ".join(f"v({n}) {machine.curve.v.at(n):.2f}" for n in (2, 3, 5, 9, 17))
    return f"Measured by themselves: {shown}."


def _best_measured(findings: Findings) -> Measured | None:
    """The fastest of those that gain for sure, if any does; `auto` where it is as fast, since it
    follows when the texts change."""
    sure = [measured for measured in findings.measured if _is_sure(findings, measured)]
    among = sure or findings.measured
    if not among:
        return None
    best = max(among, key=lambda m: m.ratio.mean)
    for measured in among:
        is_as_good = measured.ratio.mean >= best.ratio.mean * (1 - _EQUAL)
        if measured.candidate.method == AUTO and is_as_good:
            return measured
    return best


def _best_predicted(findings: Findings) -> Prediction | AutoPrediction | None:
    known: list[Prediction | AutoPrediction] = [*findings.predictions]
    if findings.auto is not None:
        known.append(findings.auto)
    return max(known, key=lambda prediction: prediction.ratio, default=None)


def _about_batches(findings: Findings, candidate: Candidate) -> list[str]:
    """Up to which batch it pays."""
    if candidate.method == AUTO:
        return ["In larger batches it drafts less by itself."]
    if findings.batches_of != candidate.name:
        return []
    measured = [at for at in findings.batches if at.measured is not None and at.is_reliable]
    lost = [at for at in measured if at.measured is not None and at.measured < 1]
    held = [at for at in measured if at.measured is not None and at.measured >= 1]
    if lost:
        return [f"With {lost[0].batch} requests together it is a loss ({lost[0].measured:.2f})."]
    words = []
    if held:
        words.append(f"With {held[-1].batch} together it still pays ({held[-1].measured:.2f}).")
    if findings.predicted_crossover is not None:
        words.append(f"A loss is predicted from {findings.predicted_crossover} together.")
    return words


def _where(findings: Findings, num_measured: int = 0) -> str:
    """num_measured: prompts that were measured; 0 for all that were recorded."""
    count, total = num_measured or len(findings.recorded), len(findings.recorded)
    if count < total:
        where = f"on {count} of these {total} prompts"
    else:
        where = f"on {'this prompt' if count == 1 else f'these {count} prompts'}"
    where += f" at temperature {findings.temperature:g}"
    return where + (f", {findings.batch} at a time" if findings.batch > 1 else "")


def _all_recorded(findings: Findings) -> str:
    count = len(findings.recorded)
    return "this prompt" if count == 1 else f"all {count}"


def _interval(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f" ({low:.2f} to {high:.2f})"
