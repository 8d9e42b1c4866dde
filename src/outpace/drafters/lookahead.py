"""Lookahead decoding: the target finds n-grams ahead of the text while it verifies older ones.

Fu et al., 2402.02057. A window of tokens past the end of the text rides along in every pass, fed
but never accepted. Position by position it is a Jacobi iteration, and the path that each position
takes over N passes is an n-gram that the target holds for plausible. A pool keeps them; those that
begin with the newest token are the drafts. No model and no training, but many rows in each pass.
"""

from __future__ import annotations

import random
from collections.abc import Sequence as List
from dataclasses import dataclass, field

from outpace.drafters.base import (
    Drafter,
    DrafterOptions,
    DraftingContext,
    check_flag,
    check_shape,
    check_whole_number,
    path_limit,
)
from outpace.drafters.parts.jacobi_window import JacobiWindow, Ngram, NgramPool
from outpace.drafters.parts.token_tree import TokenTree
from outpace.errors import ModelError, OptionError
from outpace.types import NO_DRAFT, Draft, Scores, Sequence, Verdict


@dataclass(frozen=True, kw_only=True)
class LookaheadOptions(DrafterOptions):
    """Options of lookahead decoding.

    The window takes window_size * (ngram_size - 1) of the num_speculative_tokens, the guesses what
    is left. The defaults suit processors, where rows are dear; the paper's setting for GPUs with a
    target of 7B parameters is window_size 15, ngram_size 5, guess_set_size 15 and 120 rows.
    """

    num_speculative_tokens: int = field(
        default=8, metadata={"help": "most draft tokens per step (K), of a tree all its nodes"}
    )
    window_size: int | None = field(
        default=None,
        metadata={"help": "places ahead of the text searched for n-grams; default: what fills K/2"},
    )
    ngram_size: int = field(default=4, metadata={"help": "tokens of an n-gram, at least 2"})
    guess_set_size: int = field(
        default=4, metadata={"help": "n-grams kept for each first token, and most verified at once"}
    )
    pool_from_text: bool = field(
        default=True, metadata={"help": "take the n-grams of prompt and answer into the pool too"}
    )
    shape: str = field(default="tree", metadata={"help": "what to draft: chain or tree"})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole_number("ngram_size", self.ngram_size, low=2)
        check_whole_number("guess_set_size", self.guess_set_size, low=1)
        check_shape(self.shape)
        check_flag("pool_from_text", self.pool_from_text)
        if not (self.pool_from_text or self.num_columns) and self.num_speculative_tokens:
            raise OptionError(
                "without a window and without the n-grams of the text lookahead has nothing to "
                "propose: allow pool_from_text, or give window_size or more num_speculative_tokens"
            )
        if self.window_size is not None:
            check_whole_number("window_size", self.window_size, low=0)
            if 0 < self.num_speculative_tokens <= self.window_rows:
                raise OptionError(
                    f"a window of {self.window_size} places and n-grams of {self.ngram_size} "
                    f"tokens take {self.window_rows} rows of each pass, which leaves no room for "
                    "guesses: num_speculative_tokens must be more than that, got "
                    f"{self.num_speculative_tokens}"
                )

    @property
    def num_columns(self) -> int:
        """The window's size, given or chosen."""
        if self.window_size is not None:
            return self.window_size
        return self.num_speculative_tokens // 2 // (self.ngram_size - 1)

    @property
    def window_rows(self) -> int:
        """Most rows that the window takes in a pass."""
        return self.num_columns * (self.ngram_size - 1)


@dataclass(slots=True)
class _Memory:
    """What is held for a sequence.

    num_pooled: how many of its tokens were looked at for n-grams of the text.
    draft: the draft whose scores are still to come.
    tips: the rows of those scores that say how the window's columns go on; None where the window
        was left out of the draft.
    """

    pool: NgramPool
    window: JacobiWindow
    num_pooled: int = 0
    draft: Draft = NO_DRAFT
    tips: list[int] | None = None


class LookaheadDrafter(Drafter):
    """Merges the pool's n-grams for the newest token into a tree and lets the window ride along.

    The window starts with tokens of the text so far, picked by a fixed seed: tokens that are at
    home here lead to usable n-grams sooner than random ones of the whole vocabulary. Where a budget
    has no room for window and guesses, or the answer ends within the window's reach, only guesses
    are proposed: they are worth something now.
    """

    Options = LookaheadOptions

    def __init__(self, options: LookaheadOptions, context: DraftingContext) -> None:
        super().__init__(options, context)
        if not context.runner.takes_trees:
            raise ModelError(
                "method 'lookahead' feeds a window of guesses beside its draft, which makes a "
                f"tree, and {context.target.name} as it is run here takes no trees; use another "
                "method, or another model_impl"
            )
        self._lookahead = options
        self._memories: dict[int, _Memory] = {}

    def propose(self, seqs: List[Sequence], budgets: List[int]) -> list[Draft]:
        return [self._propose(seq, budget) for seq, budget in zip(seqs, budgets, strict=True)]

    def _propose(self, seq: Sequence, budget: int) -> Draft:
        memory, limit = self._memory(seq), path_limit(seq, budget)
        if self._lookahead.pool_from_text:
            self._pool_text(memory, seq.tokens)
        guesses = memory.pool.guesses(seq.tokens[-1])
        if self._lookahead.shape == "chain":
            guesses = guesses[:1]
        window_ids, window_parents, last = memory.window.nodes()
        rides = len(window_ids) < budget and memory.window.depth <= limit
        if not rides:
            window_ids, window_parents, last = [], [], []
        token_ids, parents = merged(guesses, budget - len(window_ids), limit)
        start = len(token_ids)
        # Row 0 follows the newest token, row j + 1 node j.
        memory.tips = [start + node + 1 for node in last] if rides else None
        memory.draft = Draft(
            (*token_ids, *window_ids),
            origin="lookahead",
            parents=(*parents, *(p if p < 0 else start + p for p in window_parents)),
            num_probes=len(window_ids),
        )
        return memory.draft

    def observe(self, seqs: List[Sequence], scores: Scores, verdicts: List[Verdict]) -> None:
        logits = scores.on_host()
        for seq, rows, verdict in zip(seqs, scores.rows, verdicts, strict=True):
            memory = self._memories.get(seq.seq_id)
            if memory is None:
                continue
            following = None
            # A draft that was changed on its way is not the one whose scores came back.
            if memory.tips is not None and rows.stop - rows.start == 1 + len(memory.draft):
                following = [int(logits[rows.start + tip].argmax()) for tip in memory.tips]
            for ngram in memory.window.advance(len(verdict.token_ids), following):
                memory.pool.add(ngram)
            memory.draft, memory.tips = NO_DRAFT, None

    def release(self, seq: Sequence) -> None:
        self._memories.pop(seq.seq_id, None)

    def check_integrity(self) -> None:
        assert not self._memories, f"windows left for sequences {sorted(self._memories)}"

    def _memory(self, seq: Sequence) -> _Memory:
        memory = self._memories.get(seq.seq_id)
        if memory is None:
            options, rng = self._lookahead, random.Random(0)
            window = JacobiWindow(
                options.num_columns, options.ngram_size, lambda: rng.choice(seq.tokens)
            )
            memory = _Memory(NgramPool(options.guess_set_size), window)
            self._memories[seq.seq_id] = memory
        return memory

    def _pool_text(self, memory: _Memory, tokens: List[int]) -> None:
        """Add the n-grams of the text that were not complete at the last call."""
        size = self._lookahead.ngram_size
        for start in range(max(0, memory.num_pooled - size + 1), len(tokens) - size + 1):
            memory.pool.add(tuple(tokens[start : start + size]))
        memory.num_pooled = len(tokens)


def merged(guesses: List[Ngram], max_nodes: int, max_depth: int) -> tuple[list[int], list[int]]:
    """Token runs as one tree in which equal beginnings are shared: tokens and parents (-1: root).

    No more than `max_nodes` nodes, the first runs first, and none deeper than `max_depth`.
    """
    tree = TokenTree()
    for guess in guesses:
        tree.add(guess[:max_depth], max_nodes)
    return tree.token_ids, tree.parents
