"""Candidates scored on recorded answers: what would be drafted there, and how much accepted.

The target's recorded answer is said again, whatever is drafted, so that every candidate is judged
on the same text. A draft that follows from the text alone is accepted exactly as far as it equals
the recorded continuation: with a one-hot q a token is accepted with probability p(token), which is
also how likely the recorded text was to have it. A draft that was drawn is put to the rule that the
engine would put it to, with p and q of the place where it stands.

Only recorded tokens are committed. No cache is misled by that: runner and drafters keep what agrees
longest of what was fed and what was committed (`Runner.commit`), and no verdict claims a drafted
token that is not the recorded one.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from collections.abc import Sequence as List
from dataclasses import dataclass, field

import numpy as np

from outpace import SamplingParams
from outpace.engine.instruments import Instruments, Judge
from outpace.errors import OutpaceError
from outpace.measure.advise.candidates import Candidate, Family
from outpace.measure.advise.steps import PositionScores, Step
from outpace.measure.kept import KeptEngine
from outpace.models.load import LoadedModel
from outpace.types import Draft, Scores, Sequence, Verdict
from outpace.verification.chain import block_decision
from outpace.verification.coupled import walk
from outpace.verification.judge import TargetRows, verify
from outpace.verification.lossy import TypicalAcceptance

_salts = itertools.count()


@dataclass(frozen=True, slots=True)
class Recorded:
    """A prompt and what the target answered, end token included."""

    label: str
    category: str
    prompt: tuple[int, ...]
    answer: tuple[int, ...]


@dataclass(slots=True)
class Score:
    """One candidate's steps, answer by answer.

    num_disagreements: steps in which the target, asked again, would have said something else than
    was recorded. Rounding, where two tokens are nearly tied; anything more is a bug.
    """

    candidate: Candidate
    answers: list[list[Step]] = field(default_factory=list)
    num_disagreements: int = 0


@dataclass(slots=True)
class _Answer:
    """One answer while it is replayed."""

    recorded: Recorded
    positions: PositionScores
    steps: list[Step] = field(default_factory=list)


class Replay:
    """A family's engine, whose judge commits recorded text. Use `score`, then `close`."""

    def __init__(
        self,
        loaded: LoadedModel,
        family: Family,
        *,
        max_model_len: int,
        max_num_seqs: int,
        judge: Judge = verify,
        seed: int = 0,
    ) -> None:
        """judge: what the recorded text is checked against where that is possible."""
        self.family = family
        self.scores = [Score(candidate) for candidate in family.candidates]
        self._judge = judge
        self._rng = np.random.default_rng(seed)
        self._answers: dict[str, _Answer] = {}
        self._num_disagreements = 0
        self._engine = KeptEngine(
            loaded,
            family.longest.config,
            name=family.longest.name,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            instruments=Instruments(judge=self._decide),
        )

    def score(self, recorded: List[Recorded], params: SamplingParams) -> None:
        """Replay these answers and add what came of them to `scores`.

        params: those that they were recorded with. Raises OutpaceError where the engine did not
        say the recorded text, which would make the scores worthless.
        """
        salts = [f"replay {next(_salts)}" for _ in recorded]
        for salt, each in zip(salts, recorded, strict=True):
            self._answers[salt] = _Answer(each, PositionScores(len(each.answer)))
        prompts = [
            {"prompt_token_ids": list(each.prompt), "cache_salt": salt}
            for salt, each in zip(salts, recorded, strict=True)
        ]
        outputs = self._engine.llm.generate(prompts, params)
        for salt, output in zip(salts, outputs, strict=True):
            answer = self._answers.pop(salt)
            if tuple(output.outputs[0].token_ids) != answer.recorded.answer:
                raise OutpaceError(
                    f"{self.family.longest.name}: replaying the answer to "
                    f"{answer.recorded.label} gave another text than was recorded"
                )
            if output.stats.num_drafter_errors:
                raise OutpaceError(f"{self.family.longest.name} failed; the log above says why")
            self._keep(answer)

    def close(self) -> None:
        self._engine.close()

    def _keep(self, answer: _Answer) -> None:
        for score in self.scores:
            shared = self.family.shares_replay
            score.answers.append(
                answer.positions.steps(score.candidate.k) if shared else answer.steps
            )
            score.num_disagreements = self._num_disagreements

    def _decide(
        self,
        scores: Scores,
        seqs: List[Sequence],
        drafts: List[Draft],
        rng: np.random.Generator,
        lossy: TypicalAcceptance | None = None,
    ) -> list[Verdict]:
        """The judge: count what would be accepted, and commit what was recorded."""
        verdicts: List[Verdict] = [Verdict()] * len(seqs)
        if self._needs_judge(seqs, drafts):
            verdicts = self._judge(scores, seqs, drafts, rng, lossy)
        logits = scores.on_host()
        decided = []
        for seq, draft, span, verdict in zip(seqs, drafts, scores.rows, verdicts, strict=True):
            if span.stop == span.start or verdict.error is not None:
                decided.append(verdict)
                continue
            answer = self._answers[seq.cache_salt]
            following = answer.recorded.answer[seq.num_output :]
            self._check(seq, verdict, following)
            if self.family.shares_replay:
                rows = TargetRows(logits[span], seq, draft)
                answer.positions.add(len(draft), self._accepted(rows, draft, following))
                decided.append(Verdict(following[:1]))
            else:
                decided.append(self._walked(answer, seq, draft, verdict, following))
        return decided

    def _needs_judge(self, seqs: List[Sequence], drafts: List[Draft]) -> bool:
        """Whether the engine's own rule has anything to say here that the text does not."""
        if any(_has_one_answer(seq) for seq in seqs):
            return True
        return not self.family.shares_replay and not all(d.is_deterministic for d in drafts)

    def _check(self, seq: Sequence, verdict: Verdict, following: List[int]) -> None:
        if _has_one_answer(seq):
            expected = tuple(following[: len(verdict.token_ids)])
            self._num_disagreements += verdict.token_ids[: len(expected)] != expected

    def _accepted(self, rows: TargetRows, draft: Draft, following: List[int]) -> Mapping[int, int]:
        """By number of draft tokens: how many of a chain's first ones are accepted."""
        if draft.is_deterministic:
            agreed = 0
            while agreed < min(len(draft), len(following)):
                if draft.token_ids[agreed] != following[agreed]:
                    break
                agreed += 1
            return {k: min(agreed, k) for k in self.family.lengths}
        p = rows.until_the_end()
        coins = self._rng.random(len(draft))
        counts = {}
        for k in self.family.lengths:
            # The rule for chains with q of unseeded requests; what `verify` applies.
            part = draft.shortened(min(k, len(p) - 1))
            counts[k] = block_decision(p[: len(part) + 1], part, coins[: len(part)]).num_accepted
        return counts

    def _walked(
        self,
        answer: _Answer,
        seq: Sequence,
        draft: Draft,
        verdict: Verdict,
        following: List[int],
    ) -> Verdict:
        """The step that follows the recorded text through a draft of any shape."""
        chosen = [*following, None]
        agreed = walk(draft, lambda row: chosen[len(draft.path(row - 1)) if row else 0])
        is_soft = not draft.is_deterministic and not _has_one_answer(seq)
        num_accepted = verdict.num_accepted if is_soft else agreed.num_accepted
        num_tokens = min(num_accepted + 1, len(following))
        num_accepted = min(num_accepted, num_tokens)
        newest = agreed.accepted_nodes[-1] if agreed.num_accepted else -1
        goes_on = num_accepted < num_tokens and (
            num_accepted < len(draft) if is_soft else bool(draft.children()[newest + 1])
        )
        answer.steps.append(
            Step(1 + len(draft), draft.num_verified, num_accepted, num_tokens, goes_on)
        )
        return agreed


def _has_one_answer(seq: Sequence) -> bool:
    """Whether the target's parameters leave it no choice: then the recorded answer is the one."""
    return seq.params.is_greedy or seq.params.seed is not None
