"""Prompt lookup: what followed the last few tokens when they occurred before is proposed again.

Costs no model and no training (Saxena's prompt lookup decoding; `method: ngram` in vLLM). Pays
where answers repeat their context: rewriting, summarising, code edits, extraction.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass, field

from outpace.drafters.base import (
    Drafter,
    DrafterOptions,
    DraftingContext,
    check_whole_number,
    path_limit,
)
from outpace.drafters.parts.token_tree import TokenTree
from outpace.errors import OptionError
from outpace.types import Draft, Sequence

MAX_LOOKUP = 16
"""Longest n-gram that may be asked for. Every length costs a dictionary entry per token of the
context, and what repeats over this many tokens is hardly ever ambiguous any more."""


MAX_CONTINUATIONS = 16
"""Most occurrences that may be copied: each costs time in every step."""


@dataclass(frozen=True, kw_only=True)
class NgramOptions(DrafterOptions):
    """Options of prompt lookup.

    1 <= prompt_lookup_min <= prompt_lookup_max <= MAX_LOOKUP.
    """

    prompt_lookup_min: int = field(default=1, metadata={"help": "shortest n-gram looked up"})
    prompt_lookup_max: int = field(
        default=3, metadata={"help": f"longest n-gram looked up, at most {MAX_LOOKUP}"}
    )
    occurrence: str = field(
        default="latest", metadata={"help": "which earlier occurrence to copy: latest or earliest"}
    )
    num_continuations: int = field(
        default=1,
        metadata={"help": "most occurrences copied that go on differently, as one tree"},
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole_number("prompt_lookup_min", self.prompt_lookup_min, low=1)
        check_whole_number("prompt_lookup_max", self.prompt_lookup_max, low=1)
        check_whole_number("num_continuations", self.num_continuations, low=1)
        if self.num_continuations > MAX_CONTINUATIONS:
            raise OptionError(
                f"num_continuations must be at most {MAX_CONTINUATIONS}, got "
                f"{self.num_continuations}; older ones are hardly ever right"
            )
        if self.prompt_lookup_max > MAX_LOOKUP:
            raise OptionError(
                f"prompt_lookup_max must be at most {MAX_LOOKUP}, got {self.prompt_lookup_max}; "
                "longer n-grams cost time and memory for every token and find nothing more"
            )
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise OptionError(
                f"prompt_lookup_min ({self.prompt_lookup_min}) must not exceed "
                f"prompt_lookup_max ({self.prompt_lookup_max})"
            )
        if self.occurrence not in ("latest", "earliest"):
            raise OptionError(f"occurrence must be 'latest' or 'earliest', got {self.occurrence!r}")


class NgramIndex:
    """Where each n-gram of a growing token list ended, for n in [min_n, max_n].

    Of each n-gram at most `num_ends` ends are kept, each with another token after it. Indexing
    costs at most one dictionary write per token and n, and a lookup one read per n, whatever the
    length of the context.
    """

    def __init__(
        self, min_n: int, max_n: int, *, earliest: bool = False, num_ends: int = 1
    ) -> None:
        self._earliest = earliest
        self._num_ends = num_ends
        # One dictionary per length, longest first: the order in which they are asked.
        self._ends: list[tuple[int, dict[tuple[int, ...], tuple[int, ...]]]] = [
            (n, {}) for n in range(max_n, min_n - 1, -1)
        ]
        self._num_indexed = 0

    def find(self, tokens: List[int]) -> list[int]:
        """Where the continuations of repeated suffixes start, at most `num_ends`: those of the
        longest suffix first, of one suffix the latest first (or the earliest).

        `tokens` must start with the tokens of the previous call.
        """
        self._index(tokens)
        found: list[int] = []
        for n, ends in self._ends:
            if n < len(tokens):
                for end in ends.get(tuple(tokens[-n:]), ()):
                    if end not in found:
                        found.append(end)
                if len(found) >= self._num_ends:
                    break
        return found[: self._num_ends]

    def _index(self, tokens: List[int]) -> None:
        # The n-grams that end at the last token have no continuation yet.
        for n, ends in self._ends:
            for end in range(max(self._num_indexed, n), len(tokens)):
                key = tuple(tokens[end - n : end])
                known = ends.get(key, ())
                if known and self._num_ends > 1:
                    ends[key] = self._with(end, known, tokens)
                elif not known or not self._earliest:
                    ends[key] = (end,)
        self._num_indexed = max(self._num_indexed, len(tokens))

    def _with(self, end: int, known: tuple[int, ...], tokens: List[int]) -> tuple[int, ...]:
        """The ends to be kept once `end` is one of them."""
        if self._earliest:
            if any(tokens[other] == tokens[end] for other in known):
                return known
            return (*known, end)[: self._num_ends]
        others = (other for other in known if tokens[other] != tokens[end])
        return (end, *others)[: self._num_ends]


def copy_from(tokens: List[int], start: int, count: int) -> list[int]:
    """`count` tokens from `tokens[start:]`, going on into the copy itself at the end.

    A text that repeats with a short period would otherwise yield drafts no longer than one
    period, just where drafts are most often right.
    """
    copied = list(tokens[start : start + count])
    period = len(tokens) - start
    while len(copied) < count:
        copied.append(copied[len(copied) - period])
    return copied


def tree_of(
    continuations: List[List[int]], num_nodes: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(tokens, parents) of a tree of at most `num_nodes`: of each continuation a beginning, what
    they share once. The first one gets half of the nodes, each next one half of those left, the
    last one the rest."""
    tree = TokenTree()
    for number, continuation in enumerate(continuations, 1):
        size = len(tree.token_ids)
        left = num_nodes - size
        tree.add(continuation, size + (left if number == len(continuations) else (left + 1) // 2))
    return tuple(tree.token_ids), tuple(tree.parents)


class NgramDrafter(Drafter):
    """Copies what followed the longest suffix that occurred before in prompt or output."""

    Options = NgramOptions

    def __init__(self, options: NgramOptions, context: DraftingContext) -> None:
        super().__init__(options, context)
        self._ngram = options
        # Where no trees are taken the first continuation gets all that there is.
        self._num_ends = options.num_continuations if context.runner.takes_trees else 1
        self._indexes: dict[int, NgramIndex] = {}

    def propose(self, seqs: List[Sequence], budgets: List[int]) -> list[Draft]:
        return [self._propose(seq, budget) for seq, budget in zip(seqs, budgets, strict=True)]

    def _propose(self, seq: Sequence, budget: int) -> Draft:
        if budget <= 0:
            return Draft()
        options = self._ngram
        index = self._indexes.get(seq.seq_id)
        if index is None:
            index = self._indexes[seq.seq_id] = NgramIndex(
                options.prompt_lookup_min,
                options.prompt_lookup_max,
                earliest=options.occurrence == "earliest",
                num_ends=self._num_ends,
            )
        limit = path_limit(seq, budget)
        copies = [copy_from(seq.tokens, start, limit) for start in index.find(seq.tokens)]
        if not copies:
            return Draft()
        if len(copies) == 1:
            return Draft(tuple(copies[0]), origin="ngram")
        tokens, parents = tree_of(copies, budget)
        return Draft(tokens, origin="ngram", parents=parents)

    def release(self, seq: Sequence) -> None:
        self._indexes.pop(seq.seq_id, None)

    def check_integrity(self) -> None:
        assert not self._indexes, f"indexes left for sequences {sorted(self._indexes)}"
