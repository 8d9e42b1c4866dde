"""Prompt lookup: what followed the last few tokens when they occurred before is proposed again.

Costs no model and no training (Saxena's prompt lookup decoding; `method: ngram` in vLLM). Pays
where answers repeat their context: rewriting, summarising, code edits, extraction.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass, field

from outpace.drafters.base import Drafter, DrafterOptions, DraftingContext, check_whole_number
from outpace.errors import OptionError
from outpace.types import Draft, Sequence

MAX_LOOKUP = 16
"""Longest n-gram that may be asked for. Every length costs a dictionary entry per token of the
context, and what repeats over this many tokens is hardly ever ambiguous any more."""


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

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole_number("prompt_lookup_min", self.prompt_lookup_min, low=1)
        check_whole_number("prompt_lookup_max", self.prompt_lookup_max, low=1)
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

    Indexing costs at most one dictionary write per token and n, and a lookup one read per n,
    whatever the length of the context.
    """

    def __init__(self, min_n: int, max_n: int, *, earliest: bool = False) -> None:
        self._earliest = earliest
        # One dictionary per length, longest first: the order in which they are asked.
        self._ends: list[tuple[int, dict[tuple[int, ...], int]]] = [
            (n, {}) for n in range(max_n, min_n - 1, -1)
        ]
        self._num_indexed = 0

    def find(self, tokens: List[int]) -> int | None:
        """Where the continuation of the longest repeated suffix starts, or None.

        `tokens` must start with the tokens of the previous call.
        """
        self._index(tokens)
        for n, ends in self._ends:
            if n < len(tokens):
                end = ends.get(tuple(tokens[-n:]))
                if end is not None:
                    return end
        return None

    def _index(self, tokens: List[int]) -> None:
        # The n-grams that end at the last token have no continuation yet.
        for n, ends in self._ends:
            for end in range(max(self._num_indexed, n), len(tokens)):
                key = tuple(tokens[end - n : end])
                if self._earliest:
                    ends.setdefault(key, end)
                else:
                    ends[key] = end
        self._num_indexed = max(self._num_indexed, len(tokens))


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


class NgramDrafter(Drafter):
    """Copies what followed the longest suffix that occurred before in prompt or output."""

    Options = NgramOptions

    def __init__(self, options: NgramOptions, context: DraftingContext) -> None:
        super().__init__(options, context)
        self._ngram = options
        self._indexes: dict[int, NgramIndex] = {}

    def propose(self, seqs: List[Sequence], budgets: List[int]) -> list[Draft]:
        return [self._propose(seq, budget) for seq, budget in zip(seqs, budgets, strict=True)]

    def _propose(self, seq: Sequence, budget: int) -> Draft:
        if budget <= 0:
            return Draft()
        index = self._indexes.get(seq.seq_id)
        if index is None:
            options = self._ngram
            index = self._indexes[seq.seq_id] = NgramIndex(
                options.prompt_lookup_min,
                options.prompt_lookup_max,
                earliest=options.occurrence == "earliest",
            )
        start = index.find(seq.tokens)
        if start is None:
            return Draft()
        return Draft(tuple(copy_from(seq.tokens, start, budget)), origin="ngram")

    def release(self, seq: Sequence) -> None:
        self._indexes.pop(seq.seq_id, None)

    def check_integrity(self) -> None:
        assert not self._indexes, f"indexes left for sequences {sorted(self._indexes)}"
