"""Token for token: greedy and seeded answers of the method against plain decoding's.

A greedy difference is classified by `measure.ties`. A seeded request draws with noise that is a
function of the token, so that the text must be plain decoding's as well; where rounding moves p a
little, a race between two tokens that was nearly tied may end otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from outpace import LLM
from outpace.measure.audit.results import LOSSLESS, SAYS_LITTLE, VIOLATION, Check
from outpace.measure.audit.subject import AuditPrompt, Subject
from outpace.measure.audit.text_law import NextToken, next_token
from outpace.measure.statistics import first_difference
from outpace.measure.ties import classify_difference, request_sequence, rounding_tolerance
from outpace.models.load import LoadedModel
from outpace.outputs import RequestOutput, SpeculationStats
from outpace.params import SamplingParams
from outpace.runner import Runner
from outpace.verification.coupled import choose

MOST_SHOWN = 3
"""Differences that a check describes."""

Tick = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Answer:
    """A text to compare: to which prompt, with which seed (None: greedy), its token ids, and how
    many drafts were judged in it."""

    prompt: AuditPrompt
    seed: int | None
    token_ids: tuple[int, ...]
    num_drafts: int = 0


@dataclass(frozen=True, slots=True)
class Compared:
    """The first difference of two answers. gap: in logits, or of a seeded race in units of
    log-probability; None where rounding cannot bridge it however large it is."""

    index: int
    plain_token: int | None
    other_token: int | None
    gap: float | None
    tolerance: float
    is_tie: bool

    def in_words(self, prompt: AuditPrompt, loaded: LoadedModel) -> str:
        tokens = " and ".join(
            "the end" if token is None else repr(loaded.tokenizer.token_text(token))
            for token in (self.plain_token, self.other_token)
        )
        gap = "a gap that rounding does not bridge" if self.gap is None else f"gap {self.gap:.2g}"
        kind = "rounding tie" if self.is_tie else "VIOLATION"
        return (
            f"{prompt.label}: {tokens} at output token {self.index}, {gap}, rounding reaches "
            f"{self.tolerance:.2g}: {kind}"
        )


def answers(
    llm: LLM,
    prompts: Sequence[AuditPrompt],
    params: Sequence[SamplingParams],
    *,
    together: int,
    salt: str,
    tick: Tick,
) -> tuple[list[Answer], SpeculationStats]:
    """Every prompt with its parameters, `together` of them at a time.

    salt: so that neither cached prompts nor a drafter's memory come from other answers.
    """
    found: list[Answer] = []
    total = SpeculationStats()
    for start in range(0, len(prompts), together):
        batch = prompts[start : start + together]
        requests = [
            {"prompt_token_ids": list(prompt.token_ids), "cache_salt": f"{salt} {start + i}"}
            for i, prompt in enumerate(batch)
        ]
        outputs: list[RequestOutput] = llm.generate(
            requests, list(params[start : start + together])
        )
        for prompt, asked, output in zip(batch, params[start:], outputs, strict=False):
            token_ids = tuple(output.outputs[0].token_ids)
            found.append(Answer(prompt, asked.seed, token_ids, output.stats.num_drafts))
            total.add(output.stats)
        tick(len(batch))
    return found, total


def greedy_params(subject: Subject, max_tokens: int) -> SamplingParams:
    return replace(subject.params, temperature=0.0, seed=None, n=1, max_tokens=max_tokens)


def seeded_params(subject: Subject, seed: int, max_tokens: int) -> SamplingParams:
    return replace(subject.params, seed=seed, n=1, max_tokens=max_tokens)


def compare(
    loaded: LoadedModel, plain: Answer, other: Answer, params: SamplingParams
) -> Compared | None:
    """The first difference, classified; None if there is none. params: of the request."""
    if plain.seed is not None:
        return _compare_seeded(loaded, plain, other, params)
    found = classify_difference(
        loaded, plain.prompt.token_ids, plain.token_ids, other.token_ids, params
    )
    if found is None:
        return None
    return Compared(
        found.index,
        found.plain_token,
        found.other_token,
        found.gap,
        found.tolerance,
        found.kind == "tie",
    )


def _compare_seeded(
    loaded: LoadedModel, plain: Answer, other: Answer, params: SamplingParams
) -> Compared | None:
    index = first_difference(plain.token_ids, other.token_ids)
    if index is None:
        return None
    pair = [
        answer.token_ids[index] if index < len(answer.token_ids) else None
        for answer in (plain, other)
    ]
    prompt = plain.prompt.token_ids
    tokens = [*prompt, *plain.token_ids[:index]]
    after, tolerance = _row_after(loaded, tokens, params, len(prompt))
    # A logit moved by so much moves a log-probability by this.
    tolerance /= params.temperature
    gap = _race_gap(after, pair, params, index, tolerance)
    is_tie = gap is not None and gap <= tolerance
    return Compared(index, pair[0], pair[1], gap, tolerance, is_tie)


def _row_after(
    loaded: LoadedModel, tokens: Sequence[int], params: SamplingParams, num_prompt: int
) -> tuple[NextToken, float]:
    """What may come after `tokens`, and how far rounding reaches in the logits there."""
    seq = request_sequence(loaded, tokens, params, num_prompt)
    runner = Runner(loaded.decoder, loaded.new_cache(num_rows=1, num_tokens=len(tokens)))
    runner.open(seq)
    logits = runner.extend([seq], last_only=True).on_host()[0]
    return next_token(loaded, logits, seq), rounding_tolerance(loaded, logits)


def _race_gap(
    after: NextToken,
    pair: Sequence[int | None],
    params: SamplingParams,
    position: int,
    tolerance: float,
) -> float | None:
    """By how much log p of one token has to fall against the other's for the race to end with the
    other; None where more than ten times the tolerance is not enough, or a token cannot come."""
    plain, other = pair
    if plain is None or other is None or params.seed is None:
        return None
    if any(after.forbids(token) for token in (plain, other)):
        return None
    p = after.p.astype(float)
    lowest = float(p[p > 0].min())
    for token in (plain, other):
        p[token] = max(p[token], lowest)

    def other_wins(gap: float) -> bool:
        moved = p.copy()
        moved[other] *= math.exp(gap / 2)
        moved[plain] *= math.exp(-gap / 2)
        return choose(moved, params.seed or 0, 0, position) == other

    low, high = 0.0, max(10 * tolerance, 1e-6)
    if not other_wins(high):
        return None
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (low, middle) if other_wins(middle) else (middle, high)
    return high


def text_check(
    subject: Subject,
    method: str,
    name: str,
    plain: Sequence[Answer],
    other: Sequence[Answer],
    params: Sequence[SamplingParams],
    stats: SpeculationStats,
) -> Check:
    """All answers of one kind, `plain[i]` with `other[i]`, both under `params[i]`."""
    found = [
        (mine, compare(subject.loaded, mine, theirs, asked))
        for mine, theirs, asked in zip(plain, other, params, strict=True)
    ]
    different = [(answer.prompt, diff) for answer, diff in found if diff is not None]
    # Violations first: they are what has to be seen.
    different.sort(key=lambda pair: pair[1].is_tie)
    num_wrong = sum(not diff.is_tie for _, diff in different)
    verdict = LOSSLESS if stats.num_drafts else SAYS_LITTLE
    return Check(
        kind="greedy" if plain[0].seed is None else "seeded",
        name=name,
        unit="texts",
        num_samples=len(found),
        num_wrong=num_wrong,
        verdict=VIOLATION if num_wrong else verdict,
        num_ties=len(different) - num_wrong,
        num_drafts=stats.num_drafts,
        num_accepted=stats.num_accepted_tokens,
        method=method,
        num_drafted=sum(answer.num_drafts > 0 for answer in other),
        differences=tuple(
            diff.in_words(prompt, subject.loaded) for prompt, diff in different[:MOST_SHOWN]
        ),
    )
