"""What a drafter is. One file per method; the file's name is the method's name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from collections.abc import Sequence as List
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from outpace.errors import OptionError
from outpace.types import Draft, Scores, Sequence, StepTimes, Verdict

if TYPE_CHECKING:
    import numpy as np

    from outpace.control.decisions import DecisionLog
    from outpace.models.load import LoadedModel
    from outpace.runner import Runner


@dataclass(frozen=True, kw_only=True)
class DrafterOptions:
    """Options every drafter has. Subclasses add their own fields; the command line and
    `speculative_config` are derived from them, `metadata={"help": ...}` included."""

    num_speculative_tokens: int = field(
        default=4, metadata={"help": "most draft tokens per step (K), of a tree all its nodes"}
    )

    def __post_init__(self) -> None:
        check_whole_number("num_speculative_tokens", self.num_speculative_tokens, low=0)

    @property
    def draft_limit(self) -> int:
        """Most draft tokens that a request may have per step; 0 if it is never drafted for."""
        return self.num_speculative_tokens


def check_whole_number(name: str, value: object, *, low: int) -> None:
    """Raise OptionError unless `value` is an int of at least `low`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise OptionError(f"{name} must be a whole number of at least {low}, got {value!r}")


def check_shape(value: object) -> None:
    """Raise OptionError unless `value` is a shape that drafts may have."""
    if value not in ("chain", "tree"):
        raise OptionError(f"shape must be 'chain' or 'tree', got {value!r}")


def check_flag(name: str, value: object) -> None:
    """Raise OptionError unless `value` is a bool."""
    if not isinstance(value, bool):
        raise OptionError(f"{name} must be true or false, got {value!r}")


@dataclass(frozen=True, slots=True)
class DraftingContext:
    """What a drafter may use when it is built.

    target: the target model (its tokenizer, config and fingerprint).
    max_num_seqs, max_model_len: most sequences at a time, most tokens of each.
    rng: coins of unseeded requests, shared with verification.
    models: what `Drafter.models` returned; memory is planned for a cache of each.
    runner: the target with its cache, for drafters that run a part of it (`Runner.early_exit`).
    """

    target: LoadedModel
    max_num_seqs: int
    max_model_len: int
    rng: np.random.Generator
    runner: Runner
    models: List[LoadedModel] = ()


def path_limit(seq: Sequence, budget: int) -> int:
    """Most draft tokens worth having on one path, of a chain its length: no more than `budget`, nor
    than the answer has room for beside one token of the target's own."""
    if seq.max_len is None:
        return budget
    return max(0, min(budget, seq.max_len - len(seq.tokens) - 1))


class Drafter(ABC):
    """Guesses the next tokens of sequences.

    Life of a sequence here: `adopt`, then `propose` and `observe` alternate, once per step, then
    `release`. A sequence that is decoded plainly beside others is neither adopted nor proposed for.
    Where an engine has several drafters, each is told of its own sequences only.
    A sequence is known by its `seq_id`; `tokens` only ever grows at the end between two calls,
    by the tokens committed in between, which need not be the ones proposed here.

    A drafter may be slow or wrong and never changes what is said; if it raises, the engine
    counts the error and that request goes on without drafts.
    """

    Options: ClassVar[type[DrafterOptions]] = DrafterOptions

    capture: List[int] = ()
    """Target layers whose output `observe` wants in `scores.hidden`."""

    longest: int | None = None
    """Most tokens on a path of its drafts, where that is less than any that may be asked for."""

    decisions: DecisionLog | None = None
    """What it decided, for drafters that choose how far to draft."""

    @classmethod
    def models(
        cls, options: DrafterOptions, load_model: Callable[[Any], LoadedModel]
    ) -> list[LoadedModel]:
        """Load the models that it will run on caches of its own. Called once, before it is built.

        load_model: loads a model the way the target was loaded (dtype, device, progress).
        """
        return []

    @classmethod
    def row_bytes(cls, options: DrafterOptions, target: LoadedModel, max_model_len: int) -> int:
        """Most memory, in bytes, that it will keep for one sequence of full length, caches of its
        `models` excepted. Called before it is built: the engine plans its rows with it."""
        return 0

    def __init__(self, options: DrafterOptions, context: DraftingContext) -> None:
        """Raises OptionError or ModelError when it cannot serve this target."""
        self.options = options

    @classmethod
    def method_name(cls) -> str:
        """The method's name: that of the file the class stands in."""
        return cls.__module__.rpartition(".")[2]

    @abstractmethod
    def propose(self, seqs: List[Sequence], budgets: List[int]) -> list[Draft]:
        """Propose at most `budgets[i]` tokens after `seqs[i].tokens`, for each sequence.

        Fewer, or none, is always fine. Must not change the sequences. Each draft's q must be
        exactly what its token was drawn from (None for a deterministic choice). A budget counts
        the nodes of a tree, probes included. What lies deeper than `path_limit` is cut off; where
        the target takes no trees, all but the first child of each node is.
        """

    def num_unread(self, seq: Sequence) -> int:
        """How many tokens of its text the next `propose` has to read first, for drafters that take
        noticeable time to read: `auto` holds it against what their drafts may gain."""
        return 0

    def observe(  # noqa: B027 - most drafters learn nothing here
        self, seqs: List[Sequence], scores: Scores, verdicts: List[Verdict]
    ) -> None:
        """Learn what the target pass returned and what was decided.

        Called after every pass, also for prompt chunks and for steps without drafts (their
        verdicts are empty or hold one token). `seqs` already hold the decided tokens; `scores`
        is valid during the call only.
        """

    def timed(self, times: StepTimes) -> None:  # noqa: B027 - most drafters do not care
        """Learn what the step took whose `observe` was last. Sequences that ended in it are
        released by then. Not called for a step that held sequences of other drafters too, whose
        time says nothing of this one."""

    def adopt(self, seq: Sequence, source: Sequence | None, length: int) -> int:
        """Take over a cached prefix: the target holds the first `length` tokens of `seq` already
        and will not feed them, so `observe` will not see their features.

        source: the running sequence whose cache row was copied, or None where a closed row was
        opened again. Returns from where the target must feed (at most `length`): the drafter that
        needs features says how far its own memory of that prefix reaches, or from where on it needs
        some where it has none. Called once per sequence, when it gets its row, before anything is
        fed.
        """
        return length

    def release(self, seq: Sequence) -> None:  # noqa: B027 - stateless drafters keep nothing
        """Forget a sequence that ended; also called for sequences never seen here."""

    def check_integrity(self) -> None:  # noqa: B027 - nothing to check without state
        """Raise AssertionError if something is held for a sequence that ended. Called idle."""
