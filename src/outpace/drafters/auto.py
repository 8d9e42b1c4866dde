"""Drafting that decides for itself: with what, how far, or not at all, per request and step.

Two drafters stand by: suffix decoding, which costs next to nothing and is asked in every step, and
a trained one, if there is one for the target, which is asked where it is worth its time. The length
of a draft is the one with the most output for the time of the step (`control/goodput.py`), given
what passes cost on this machine (`control/costs.py`) and how often drafts were right before
(`control/acceptance.py`).

Exact whatever it decides: the lookup's drafts are functions of the text, so that they may be cut
anywhere, trees are made of tokens that nobody drew, and where the trained drafter draws a chain how
many tokens is decided before the first. What was decided depends on the past alone.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as List
from dataclasses import dataclass, field
from itertools import compress
from time import perf_counter
from typing import TYPE_CHECKING, Any

from outpace.control.acceptance import Acceptance, Calibration
from outpace.control.costs import DraftCosts, PassShape, StepCosts
from outpace.control.decisions import DecisionLog, Economy, RequestRecord
from outpace.control.goodput import TRAINED, Plan, Ways, plan
from outpace.control.open_step import OpenStep
from outpace.control.probing import Probing
from outpace.control.reading import AnswerLengths, worth_reading
from outpace.control.regimes import REGIMES, common_regime, regime_of
from outpace.control.rivals import Rivals
from outpace.control.stretches import Copying, Stretches
from outpace.control.terms import Terms
from outpace.control.trials import with_trials
from outpace.drafters.base import (
    Drafter,
    DrafterOptions,
    DraftingContext,
    check_whole_number,
    path_limit,
)
from outpace.drafters.parts.carrying_out import (
    MERGED,
    NOTHING_MADE,
    Made,
    asked_lengths,
    carry_out,
    fit_trees,
    source_names,
)
from outpace.drafters.parts.merged import merging_with
from outpace.drafters.parts.trained import chosen_draft, given_draft
from outpace.drafters.suffix import SuffixDrafter, SuffixOptions
from outpace.types import NO_DRAFT, Draft, Scores, Sequence, StepTimes, Verdict

if TYPE_CHECKING:
    from outpace.models.load import LoadedModel

LEAST_CLAIM, MOST_CLAIM, CLAIM_PER_PRICE = 0.02, 0.3, 0.25
"""Suffix drafts end where they are claimed to be this unlikely: at a quarter of what a token must
be worth, since claims are no more than claims, but always between these two."""


@dataclass(frozen=True, kw_only=True)
class AutoOptions(DrafterOptions):
    """Options of `auto`."""

    num_speculative_tokens: int = field(
        default=16, metadata={"help": "most draft tokens per step (K), of any kind"}
    )
    model: Any = field(
        default=None,
        metadata={
            "help": "trained draft to use beside suffix decoding: the directory of an EAGLE head, "
            "of Medusa heads or of a small model; 'none' for none (default: the one that comes "
            "with this package for the target, if there is one)"
        },
    )
    max_trained_tokens: int = field(
        default=6, metadata={"help": "most tokens of a draft by the trained drafter"}
    )
    store_tokens: int = field(
        default=0,
        metadata={"help": "tokens of past outputs remembered to draft from; 0 remembers none"},
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole_number("max_trained_tokens", self.max_trained_tokens, low=1)
        check_whole_number("store_tokens", self.store_tokens, low=0)

    @property
    def num_trained(self) -> int:
        """Most tokens of a draft by the trained drafter."""
        return min(self.max_trained_tokens, self.num_speculative_tokens)


@dataclass(slots=True)
class _Request:
    """What is kept of an open request.

    is_known: the trained drafter can have features of it. is_silent: it said nothing when it was
    asked, as a draft model past its own context.
    """

    copying: Copying = field(default_factory=Copying)
    is_known: bool = False
    is_silent: bool = False


class AutoDrafter(Drafter):
    """Chooses between suffix decoding, a trained drafter and plain decoding."""

    Options = AutoOptions

    @classmethod
    def models(
        cls, options: DrafterOptions, load_model: Callable[[Any], LoadedModel]
    ) -> list[LoadedModel]:
        assert isinstance(options, AutoOptions)
        given = given_draft(options.model)
        return given.models(load_model) if given else []

    @classmethod
    def row_bytes(cls, options: DrafterOptions, target: LoadedModel, max_model_len: int) -> int:
        assert isinstance(options, AutoOptions)
        draft = chosen_draft(options.model, options.num_trained, target)
        return draft.row_bytes(target, max_model_len) if draft else 0

    def __init__(self, options: AutoOptions, context: DraftingContext) -> None:
        # It loads what runs models, and the command line imports this file for its options.
        from outpace.control.calibrate import measure_costs

        super().__init__(options, context)
        self._auto = options
        suffix = SuffixOptions(
            num_speculative_tokens=options.num_speculative_tokens,
            store_tokens=options.store_tokens,
        )
        self._lookup = SuffixDrafter(suffix, context)
        draft = chosen_draft(options.model, options.num_trained, context.target)
        self._trained = draft.open(options.num_trained, context) if draft else None
        self._most_trained = options.num_trained  # levels of a draft by the trained drafter
        if self._trained is not None and self._trained.longest is not None:
            self._most_trained = min(self._trained.longest, options.num_trained)
        self.capture = self._trained.capture if self._trained else ()
        self._names = source_names(self._lookup, self._trained)
        self._merging = merging_with(self._trained, context)
        table = measure_costs(context.runner, context.target, self.capture)
        self._costs, self._stretches = StepCosts(table), Stretches(table)
        self._requests: dict[int, _Request] = {}
        self._draft_costs = DraftCosts(self._costs.plain_s)
        self._lengths = AnswerLengths()
        self._calibration, self._acceptance = Calibration(), Acceptance()
        self._learners: list[Acceptance | Calibration | Rivals]
        self._learners = [self._calibration, self._acceptance]
        self._learners += [self._merging.rivals] if self._merging else []
        self._probing = Probing()
        self.decisions: DecisionLog = DecisionLog()
        self.decisions.economy = self._economy
        self._made: dict[int, Made] = {}
        self._plan: Plan | None = None
        self._step: OpenStep | None = None
        self._reading_s = 0.0  # of what is planned: for the trained drafter's reading of long texts
        self._newest_regime = REGIMES[0]
        self._price = 0.0  # tokens that a row of the last step had to be worth

    def adopt(self, seq: Sequence, source: Sequence | None, length: int) -> int:
        self._open(seq)
        return self._trained.adopt(seq, source, length) if self._trained else length

    def _open(self, seq: Sequence) -> None:
        if seq.seq_id not in self._requests:
            self._requests[seq.seq_id] = _Request()
            self._lookup.adopt(seq, None, 0)
            for learner in self._learners:
                learner.open(seq.seq_id, regime_of(seq))

    def propose(self, seqs: List[Sequence], budgets: List[int]) -> list[Draft]:
        self._settle_untimed()
        self._reading_s = 0.0
        for seq in seqs:
            self._open(seq)
        stretches = self._stretches
        if stretches.is_plain and (stretches.is_firm or not self._any_copies(seqs)):
            self._plan = stretches.plan(len(seqs), _context(seqs))
            if self._trained is not None:
                for seq in seqs:
                    self._probing.tick(seq.seq_id)
            return [NO_DRAFT] * len(seqs)
        stretches.end()
        limits = [path_limit(seq, budget) for seq, budget in zip(seqs, budgets, strict=True)]
        floor = min(max(CLAIM_PER_PRICE * self._price, LEAST_CLAIM), MOST_CLAIM)
        offers = self._lookup.propose_above(floor, seqs, limits)
        ways = [self._ways(*each) for each in zip(seqs, limits, offers, strict=True)]
        terms = self._terms(seqs)
        self._plan = decided = self._decide(seqs, ways, terms)
        made = self._carry_out(seqs, offers, ways, decided)
        if any(each.tree is not None for each in made):
            made, self._plan = fit_trees(
                made, decided, budgets, ways, terms.curve, terms.rate, self._names
            )
        self._made.update(zip((seq.seq_id for seq in seqs), made, strict=True))
        return [each.draft for each in made]

    def _any_copies(self, seqs: List[Sequence]) -> bool:
        """Whether a text repeats itself, which is worth drafting though nothing else may be."""
        return any(self._requests[seq.seq_id].copying.follow(seq.tokens) for seq in seqs)

    def _ways(self, seq: Sequence, limit: int, offer: Draft) -> Ways:
        """How likely each token of either draft is to be accepted."""
        lookup = self._calibration.ladder(seq.seq_id, offer.claims or ())
        trained: list[float] = []
        if self._trained is not None and self._requests[seq.seq_id].is_known:
            trained = self._acceptance.ladder(seq.seq_id, min(self._most_trained, limit))
        return Ways(lookup, trained)

    def _terms(self, seqs: List[Sequence]) -> Terms:
        num_seqs, context = len(seqs), _context(seqs)
        rate = self._stretches.per_second(num_seqs, context)
        return Terms(self._costs, num_seqs, context, common_regime(seqs), rate)

    def _decide(self, seqs: List[Sequence], ways: List[Ways], terms: Terms) -> Plan:
        curve = terms.curve(sum(max(len(w.lookup), len(w.trained)) for w in ways))
        self._price = terms.rate * (curve[-1] - curve[0]) / max(len(curve) - 1, 1)
        if self._trained is None:
            return plan(ways, curve, [0.0], terms.rate)
        reading_s = [self._draft_costs.reading_s(num) for num in self._num_unread(seqs)]
        to_come = [self._lengths.to_come(seq) for seq in seqs]
        trained_s, users = self._trained_s(ways), sum(bool(each.trained) for each in ways)
        share_s = [seconds / max(users, 1) for seconds in trained_s]
        worth = worth_reading(ways, reading_s, to_come, curve, share_s, terms.rate)
        decided = plan(worth, curve, self._trained_s(worth), terms.rate)
        plain_s = self._stretches.plain_s(terms.num_seqs, terms.context)
        asked = [
            (seq.seq_id, seconds / plain_s) for seq, seconds in zip(seqs, reading_s, strict=True)
        ]
        decided = with_trials(decided, self._probing, asked, ways, curve, trained_s)
        reads = (source == TRAINED for source, _ in decided.choices)
        self._reading_s = sum(compress(reading_s, reads))
        return decided._replace(seconds=decided.seconds + self._reading_s)

    def _trained_s(self, ways: List[Ways]) -> list[float]:
        """Seconds of 0, 1, ... levels by the trained drafter, for all that have ways of its."""
        depths = [len(each.trained) for each in ways if each.trained]
        return self._draft_costs.up_to(len(depths), max(depths, default=0))

    def _carry_out(
        self, seqs: List[Sequence], offers: List[Draft], ways: List[Ways], decided: Plan
    ) -> list[Made]:
        lengths = asked_lengths(decided, seqs)
        num_unread = self._num_unread([seq for seq in seqs if seq.seq_id in lengths])
        started = perf_counter()
        made = carry_out(decided, seqs, offers, ways, self._trained, self._merging)
        seconds = perf_counter() - started
        silent = [
            self._requests[seq.seq_id]
            for seq, each in zip(seqs, made, strict=True)
            if seq.seq_id in lengths and not each.by_trained
        ]
        for request in silent:
            request.is_silent = True
        if lengths and not silent:
            self._draft_costs.observe(len(lengths), max(lengths.values()), num_unread, seconds)
        return made

    def _num_unread(self, seqs: List[Sequence]) -> list[int]:
        """Tokens of each text that the trained drafter reads when it is asked."""
        return [self._trained.num_unread(seq) if self._trained else 0 for seq in seqs]

    def observe(self, seqs: List[Sequence], scores: Scores, verdicts: List[Verdict]) -> None:
        self._settle_untimed()
        if self._trained is not None:
            self._trained.observe(seqs, scores, verdicts)
        requests: list[RequestRecord] = []
        for seq, verdict in zip(seqs, verdicts, strict=True):
            made = self._made.pop(seq.seq_id, NOTHING_MADE)
            if not verdict.token_ids:
                continue
            request = self._requests.get(seq.seq_id)
            if request is not None:
                request.is_known = not request.is_silent
            if made is not NOTHING_MADE:
                self._learn(seq, made, verdict)
            # What a grammar forced was drafted by nobody here.
            num_accepted = min(verdict.num_accepted, len(made.draft))
            record = RequestRecord(
                seq.seq_id, self._names[made.source], len(made.draft), num_accepted
            )
            requests.append(record)
        decided, self._plan = self._plan, None
        reading_s, self._reading_s = self._reading_s, 0.0
        num_fed = [fed.stop - fed.start for fed in scores.fed]
        self._step = OpenStep(
            plan=decided,
            shape=PassShape(len(seqs), sum(num_fed), sum(scores.starts)),
            regime=common_regime(seqs),
            feeds_prompts=num_fed != [rows.stop - rows.start for rows in scores.rows],
            reading_s=reading_s,
            num_tokens=sum(len(verdict.token_ids) for verdict in verdicts),
            requests=requests,
        )

    def _learn(self, seq: Sequence, made: Made, verdict: Verdict) -> None:
        """What was said tells of the lookup's tokens too where they were not drafted."""
        said = verdict.token_ids
        if len(made.offered) and said:
            num_right, claims = made.num_right(said), made.offered.claims or ()
            self._calibration.observe(seq.seq_id, claims, num_right, num_right == len(said))
        if made.by_trained:
            num_drafted, was_cut = len(made.draft), len(said) == verdict.num_accepted
            if made.tree is not None:
                made.tree.observe(said)
                # Levels that were cut away count as refused: what asking for them brought.
                num_drafted = made.tree.num_levels
            num_accepted = min(verdict.num_accepted, num_drafted)
            if self._probing.is_due(seq.seq_id):  # what was counted is old by now
                self._acceptance.fade(seq.seq_id, 0.5)
            self._acceptance.observe(seq.seq_id, num_drafted, num_accepted, was_cut)

    def timed(self, times: StepTimes) -> None:
        step, self._step = self._step, None
        if step is None:
            return
        decided, shape, self._newest_regime = step.plan, step.shape, step.regime
        was_plain = self._stretches.is_plain
        if decided is not None and step.is_steady and step.is_planned:
            self._stretches.observe(shape, step.num_tokens, times.step_s, decided.seconds)
        else:
            self._stretches.pass_by()
        if decided is not None and step.is_steady and not was_plain:
            self._costs.observe(shape, step.regime, times.target_s, times.rest_s)
            plain_s = self._stretches.plain_s(shape.num_seqs, shape.context)
            self._judge_trials(step, times.step_s, plain_s)
        elif step.reads_much:
            self._judge_as_planned(step)
        self.decisions.add(step.record(self.decisions.num_steps, times))

    def _settle_untimed(self) -> None:
        """Do without the time of a step that was shared with other drafters' requests: it counts
        as one more step, and trials are judged by what the step was expected to take."""
        step, self._step = self._step, None
        if step is None:
            return
        self._stretches.pass_by()
        self._judge_as_planned(step)

    def _judge_as_planned(self, step: OpenStep) -> None:
        """As `_judge_trials`, by what the step was expected to take, for those that it was planned
        for and without reading: that is for all drafts to come."""
        if step.plan is not None and not step.feeds_prompts:
            num_planned = len(step.plan.choices)
            context = step.shape.context * num_planned // step.shape.num_seqs
            plain_s = self._stretches.plain_s(num_planned, context)
            self._judge_trials(step, step.plan.seconds - step.reading_s, plain_s)

    def _judge_trials(self, step: OpenStep, step_s: float, plain_s: float) -> None:
        """Tell of each draft by the trained drafter whether it was worth a step of `step_s` seconds
        where a plain one takes `plain_s`."""
        for seq_id, source, _, accepted in step.requests:
            by_trained = source in (self._names.get(TRAINED), self._names.get(MERGED))
            if by_trained and seq_id in self._requests:
                self._probing.observe(seq_id, (accepted + 1) * plain_s > step_s)

    def _economy(self) -> Economy:
        """What the newest step's kind of step costs, for one sequence."""
        most, newest = self._auto.num_speculative_tokens, self.decisions.tail(1)
        context = newest[0].context // newest[0].num_seqs if newest else 0
        pass_s = self._costs.curve(1, context, 1 + most, self._newest_regime)
        draft_s = self._draft_costs.up_to(1, self._most_trained)
        return Economy(pass_s, self._names.get(TRAINED), draft_s if self._trained else (0.0,))

    def release(self, seq: Sequence) -> None:
        self._made.pop(seq.seq_id, None)
        if self._requests.pop(seq.seq_id, None) is not None:
            self._lengths.observe(seq.num_output)
            self._acceptance.fade_regime(seq.seq_id, self._probing.num_waited(seq.seq_id))
            for learner in self._learners:
                learner.release(seq.seq_id)
            self._probing.release(seq.seq_id)
        self._lookup.release(seq)
        if self._trained is not None:
            self._trained.release(seq)

    def check_integrity(self) -> None:
        assert not self._made, f"drafts left of sequences {sorted(self._made)}"
        assert not self._requests, f"counts left of sequences {sorted(self._requests)}"
        for learner in self._learners:
            learner.check_integrity()
        self._probing.check_integrity()
        self._lookup.check_integrity()
        if self._trained is not None:
            self._trained.check_integrity()


def _context(seqs: List[Sequence]) -> int:
    """Tokens in the target's cache."""
    return sum(len(seq.tokens) for seq in seqs) - len(seqs)
