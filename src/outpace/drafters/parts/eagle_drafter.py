"""What the methods `eagle` and `eagle3` share: all but the kind of head they load."""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from outpace.drafters.base import (
    Drafter,
    DrafterOptions,
    DraftingContext,
    check_shape,
    check_whole_number,
    path_limit,
)
from outpace.errors import ModelError
from outpace.types import Draft, Scores, Sequence, Verdict

if TYPE_CHECKING:
    from outpace.control.rivals import Ranked
    from outpace.heads.base import EagleRunner
    from outpace.models.load import LoadedModel

FLOAT_BYTES = 4
MAX_TREE_SLOTS = 512
"""Most cache slots of a row that are set aside for the nodes of a tree."""


@dataclass(frozen=True, kw_only=True)
class EagleOptions(DrafterOptions):
    """Options of drafting by an EAGLE head.

    model: a draft's directory; None is the one that comes with the package for its default model.
        From Python also an `EagleRunner` that is open already.
    """

    model: Any = field(
        default=None,
        metadata={"help": "draft's directory (default: the one that comes with the package)"},
    )
    num_speculative_tokens: int = field(
        default=3, metadata={"help": "most draft tokens per step (K), of a tree all its nodes"}
    )
    shape: str = field(default="chain", metadata={"help": "what to draft: chain or tree"})
    tree_top_k: int = field(
        default=4,
        metadata={"help": "nodes of each level of a tree that get children, and how many each"},
    )
    tree_depth: int = field(default=4, metadata={"help": "most draft tokens on a path of a tree"})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shape(self.shape)
        check_whole_number("tree_top_k", self.tree_top_k, low=1)
        check_whole_number("tree_depth", self.tree_depth, low=1)

    @property
    def num_tree_slots(self) -> int:
        """Cache slots for the columns of a tree: of all nodes but the deepest, and no more than
        the tree has nodes."""
        inner = self.tree_top_k * (self.tree_depth - 1)
        return min(inner, self.num_speculative_tokens, MAX_TREE_SLOTS)


class EagleDrafter(Drafter):
    """Runs a small head over the target's features some tokens ahead.

    A draft is a chain, or a dynamic tree whose nodes are judged one-hot; on targets that take no
    trees it is always a chain. It stays silent until the target's features of the tokens before the
    newest are known. Of long texts, and past the head's own context, it knows the end alone.

    Memory besides the head's weights: keys and values of its one layer for every sequence, 2 x
    kv_heads x head_dim floats a token, and features that came in since the last draft
    (`EagleRows`). `row_bytes` counts four bytes for each, and that as many features wait as may.
    """

    Options = EagleOptions
    algorithm: ClassVar[str]

    @classmethod
    def row_bytes(cls, options: DrafterOptions, target: LoadedModel, max_model_len: int) -> int:
        from outpace.drafters.parts.eagle_rows import MOST_WAITING
        from outpace.heads.open import eagle_config_of
        from outpace.models.attention import padded_capacity

        assert isinstance(options, EagleOptions)
        config = eagle_config_of(options.model, target, cls.algorithm)
        num_columns = min(max_model_len, config.max_position_embeddings)
        num_slots = num_columns + (options.num_tree_slots if options.shape == "tree" else 0)
        slot = 2 * config.num_key_value_heads * config.head_dim
        pending = min(max_model_len, MOST_WAITING) * config.feature_size
        return FLOAT_BYTES * (padded_capacity(num_slots) * slot + pending)

    def __init__(self, options: EagleOptions, context: DraftingContext) -> None:
        # Heavy imports wait until a head is really opened: the command line imports this file to
        # read its options.
        from outpace.drafters.parts.eagle_drafts import EagleDrafts
        from outpace.drafters.parts.eagle_rows import EagleRows

        super().__init__(options, context)
        head = _open_head(options, context, self.algorithm)
        self.capture = head.config.feature_layers
        self._is_tree = options.shape == "tree" and context.runner.takes_trees
        self._top_k, self._depth = options.tree_top_k, options.tree_depth
        max_len = min(context.max_model_len, head.config.max_position_embeddings)
        slots = max_len + (options.num_tree_slots if self._is_tree else 0)
        self._rows = EagleRows(head, num_rows=context.max_num_seqs, num_slots=slots)
        num_tokens = context.runner.model.num_logits
        if int(head.draft_token_ids[-1]) >= num_tokens:
            raise ModelError(
                f"the draft knows token {int(head.draft_token_ids[-1])}, but {context.target.name} "
                f"has {num_tokens} tokens; use a draft that was trained for it"
            )
        self._drafts = EagleDrafts(self._rows, context.rng, self.algorithm, num_tokens)

    def adopt(self, seq: Sequence, source: Sequence | None, length: int) -> int:
        return self._rows.adopt(seq, source, length)

    def propose(self, seqs: List[Sequence], budgets: List[int]) -> list[Draft]:
        limits = [self._limit(seq, budget) for seq, budget in zip(seqs, budgets, strict=True)]
        if not self._is_tree:
            return self._drafts.chains(seqs, limits)
        depths = [min(limit, self._depth) for limit in limits]
        room = self._rows.cache.capacity
        nodes = [
            min(budget, room - self._rows.num_columns(seq)) if limit else 0
            for seq, budget, limit in zip(seqs, budgets, limits, strict=True)
        ]
        return self._drafts.trees(seqs, nodes, depths, self._top_k)

    def rank(self, seqs: List[Sequence], depths: List[int], width: int) -> list[list[Ranked]]:
        """What a greedy chain of at most `depths[i]` tokens after each sequence is chosen from: at
        each position the `width` likeliest tokens, the chain's own first."""
        limits = [self._limit(seq, depth) for seq, depth in zip(seqs, depths, strict=True)]
        return self._drafts.ranked(seqs, limits, width)

    def _limit(self, seq: Sequence, budget: int) -> int:
        """How many tokens may be drafted on one path; 0 where nothing can be."""
        if not self._rows.is_ready(seq):
            return 0
        # Every draft token but the last takes a column.
        room = self._rows.max_columns - self._rows.num_columns(seq) + 1
        return max(0, min(path_limit(seq, budget), room))

    def num_unread(self, seq: Sequence) -> int:
        return self._rows.num_unread(seq)

    def observe(self, seqs: List[Sequence], scores: Scores, verdicts: List[Verdict]) -> None:
        self._rows.observe(seqs, scores, verdicts)

    def release(self, seq: Sequence) -> None:
        self._rows.release(seq)

    def check_integrity(self) -> None:
        self._rows.check_integrity()


def _open_head(options: EagleOptions, context: DraftingContext, algorithm: str) -> EagleRunner:
    """Raises ModelError where the draft does not go with the target, or there is none."""
    from pathlib import Path

    from outpace.heads.open import open_eagle

    if options.model is None or isinstance(options.model, str | Path):
        return open_eagle(options.model, context.target, algorithm)
    head: EagleRunner = options.model
    return head
