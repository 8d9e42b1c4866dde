"""Findings and verdict in plain values."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from outpace.measure.advise.findings import Findings, Measured
from outpace.measure.advise.predict import Machine, Prediction
from outpace.measure.advise.verdict import Verdict

SCHEMA = 1


def findings_json(findings: Findings, verdict: Verdict | None) -> dict[str, Any]:
    """Everything that was found; times in milliseconds, sizes in bytes."""
    errors = findings.errors
    return {
        "schema": SCHEMA,
        "model": dict(findings.model),
        "temperature": findings.temperature,
        "batch": findings.batch,
        "num_prompts": len(findings.recorded),
        "num_prompts_given": findings.num_prompts,
        "num_answer_tokens": sum(len(each.answer) for each in findings.recorded),
        "max_tokens": findings.max_tokens,
        "verdict": None if verdict is None else verdict_json(verdict),
        "machine": None if findings.machine is None else _machine(findings.machine),
        "predictions": [_prediction(each) for each in findings.predictions],
        "auto_predicted_ratio": findings.auto.ratio if findings.auto else None,
        "predicted_ratio_alone": findings.alone,
        "measured": [_measured(each, findings) for each in findings.measured],
        "largest_prediction_error": max(map(abs, errors.values()), default=None),
        "batches": {
            "method": findings.batches_of or None,
            "predicted_crossover": findings.predicted_crossover,
            "ratios": [asdict(each) for each in findings.batches],
        },
        "memory": {name: asdict(each) for name, each in findings.memory.items()},
        "notes": findings.notes,
        "seconds": findings.seconds,
        "promised_seconds": findings.promised_s,
        "complete": findings.is_complete,
    }


def verdict_json(verdict: Verdict) -> dict[str, Any]:
    return {
        "kind": verdict.kind,
        "reason": verdict.reason,
        "text": verdict.text,
        "method": None if verdict.candidate is None else verdict.candidate.name,
        "ratio": verdict.ratio,
        "low": verdict.low,
        "high": verdict.high,
        "is_measured": verdict.is_measured,
        "speculative_config": dict(verdict.speculative_config),
    }


def _machine(machine: Machine) -> dict[str, Any]:
    curve = machine.curve
    return {
        "plain_step_ms": machine.plain_step_ms,
        "plain_pass_ms": machine.plain_pass_ms,
        "plain_rest_ms": machine.plain.rest_ms,
        "one_row_pass_alone_ms": curve.one_row_ms,
        "v": dict(zip(map(str, curve.v.rows), curve.v.costs, strict=True)),
        "tree_factor": curve.tree_factor,
    }


def _prediction(prediction: Prediction) -> dict[str, Any]:
    acceptance = prediction.acceptance
    return {
        "method": prediction.candidate.name,
        "config": dict(prediction.candidate.config),
        "predicted_ratio": prediction.ratio,
        "predicted_tokens_per_s": prediction.tokens_per_s,
        "by_prompt": prediction.by_prompt,
        "acceptance_length": acceptance.expected,
        "alpha": acceptance.alpha,
        "conditional_acceptance": acceptance.conditional,
        "reached_per_position": acceptance.reached,
        "rows_per_request": acceptance.num_rows,
        "draft_ms": prediction.draft_ms,
        "pass_ms": prediction.pass_ms,
        "rest_ms": prediction.rest_ms,
        "c": prediction.c,
        "v": prediction.v,
        "needed_acceptance_length": prediction.needed_expected,
        "needed_alpha": prediction.needed_alpha,
        "num_disagreements": prediction.num_disagreements,
    }


def _measured(measured: Measured, findings: Findings) -> dict[str, Any]:
    name = measured.candidate.name
    return {
        "method": name,
        "config": dict(measured.candidate.config),
        "ratio": asdict(measured.ratio),
        "is_reliable": measured.is_reliable,
        "predicted_ratio": findings.predicted_for(measured),
        "prompts": [findings.recorded[place].label for place in measured.places],
        "tokens_per_s": measured.tokens_per_s,
        "plain_tokens_per_s": measured.plain_tokens_per_s,
        "acceptance_length": measured.acceptance_length,
        "acceptance_length_over_prompts": measured.expected,
        "num_rounds": measured.num_rounds,
        "num_equal": measured.num_equal,
        "num_compared": measured.num_compared,
        "prediction_error": findings.errors.get(name),
    }
