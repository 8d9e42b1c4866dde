"""Suffix decoding: what followed the end of the text before, in this request or in past outputs.

After SuffixDecoding (Oliaro et al. 2411.04975): the longer the match and the more often the same
token followed it, the longer the draft. Differs in that the probability of a token is blended from
matches of several lengths (`parts/continuations.py`), where the paper reads it off the counts of
one, and in suffix automata instead of trees of bounded depth.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass, field
from heapq import merge
from math import inf

from outpace.drafters.base import (
    Drafter,
    DrafterOptions,
    DraftingContext,
    check_shape,
    check_whole_number,
    path_limit,
)
from outpace.drafters.parts.continuations import Context, best_chain, best_tree, contexts_of
from outpace.drafters.parts.past_outputs import Follower, OutputStore
from outpace.drafters.parts.suffix_automaton import SuffixAutomaton
from outpace.errors import OptionError
from outpace.types import Draft, Sequence

MAX_TREE_DEPTH = 128
"""Longest match that may be asked for. Every token of it may cost an update per token appended,
and what matches over 24 tokens is hardly more certain to go on than what matches over 16."""

MAX_NUMBER = 1e6
"""Largest factor or offset: far beyond any draft, and safely made a whole number."""

NO_DRAFT = Draft(origin="suffix")


@dataclass(frozen=True, kw_only=True)
class SuffixOptions(DrafterOptions):
    """Options of suffix decoding. Keys that vLLM has mean the same as there; their defaults are
    those that were fastest here, with probabilities that are estimated differently."""

    num_speculative_tokens: int = field(
        default=16, metadata={"help": "most draft tokens per step (K), of a tree all its nodes"}
    )
    shape: str = field(
        default="chain",
        metadata={"help": "chain: only the most probable continuation; tree: several"},
    )
    suffix_decoding_max_tree_depth: int = field(
        default=24,
        metadata={"help": f"longest match looked for, in tokens, at most {MAX_TREE_DEPTH}"},
    )
    suffix_decoding_max_spec_factor: float = field(
        default=4.0, metadata={"help": "longest draft, as a multiple of the length of the match"}
    )
    suffix_decoding_max_spec_offset: float = field(
        default=0.0, metadata={"help": "tokens added to the longest draft"}
    )
    suffix_decoding_min_token_prob: float = field(
        default=0.13,
        metadata={"help": "least estimated probability that a draft token will be accepted"},
    )
    store_tokens: int = field(
        default=0,
        metadata={"help": "tokens of past outputs remembered to draft from; 0 remembers none"},
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shape(self.shape)
        depth = self.suffix_decoding_max_tree_depth
        check_whole_number("suffix_decoding_max_tree_depth", depth, low=1)
        if depth > MAX_TREE_DEPTH:
            raise OptionError(
                f"suffix_decoding_max_tree_depth must be at most {MAX_TREE_DEPTH}, got {depth}"
            )
        self._check_between("suffix_decoding_max_spec_factor", 0, inf)
        self._check_between("suffix_decoding_max_spec_offset", 0, inf)
        self._check_between("suffix_decoding_min_token_prob", 0, 1)
        check_whole_number("store_tokens", self.store_tokens, low=0)

    def _check_between(self, name: str, low: float, high: float) -> None:
        value = getattr(self, name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        most = min(high, MAX_NUMBER)
        if not is_number or not low <= value <= most:
            wanted = f"a number from {low} to {most:g}"
            raise OptionError(f"{name} must be {wanted}, got {value!r}")

    def longest_draft(self, match_len: int) -> int:
        """Most draft tokens on one path after a match of `match_len` tokens; 0 without a match."""
        if not match_len:
            return 0
        length = match_len * self.suffix_decoding_max_spec_factor
        # 1e-6: 0.1 * 30 is 3, in floating point a little less than the three tokens it means.
        return int(length + self.suffix_decoding_max_spec_offset + 1e-6)


class _Text:
    """What is known of one sequence."""

    def __init__(self, max_context: int, follower: Follower | None) -> None:
        self._automaton = SuffixAutomaton(max_context)
        self._follower = follower

    def contexts(self, tokens: List[int]) -> list[Context]:
        """The suffixes that occurred before, longest first, once the text has become `tokens`."""
        automaton = self._automaton
        new = tokens[automaton.num_tokens :]
        for token in new:
            automaton.extend(token)
        contexts = contexts_of(automaton, *automaton.longest_repeat())
        if self._follower is None:
            return contexts
        stored = self._follower.follow(tokens, len(new))
        return list(merge(contexts, *stored, key=lambda context: -(context[2] // context[3])))


class SuffixDrafter(Drafter):
    """Drafts what followed the longest repeated suffixes, as far as the counts make it likely."""

    Options = SuffixOptions

    def __init__(self, options: SuffixOptions, context: DraftingContext) -> None:
        super().__init__(options, context)
        self._suffix = options
        self._texts: dict[int, _Text] = {}
        self._store: OutputStore | None = None
        if options.store_tokens:
            self._store = OutputStore(options.store_tokens, options.suffix_decoding_max_tree_depth)

    def adopt(self, seq: Sequence, source: Sequence | None, length: int) -> int:
        """Nothing is taken over; but what it says is stored even if no draft is ever asked for."""
        self._text(seq)
        return length

    def propose(self, seqs: List[Sequence], budgets: List[int]) -> list[Draft]:
        return self.propose_above(self._suffix.suffix_decoding_min_token_prob, seqs, budgets)

    def propose_above(
        self, min_prob: float, seqs: List[Sequence], budgets: List[int]
    ) -> list[Draft]:
        """`propose` with another least probability of a draft token, which may change from step to
        step."""
        return [
            self._propose(seq, budget, min_prob) for seq, budget in zip(seqs, budgets, strict=True)
        ]

    def _propose(self, seq: Sequence, budget: int, min_prob: float) -> Draft:
        options, text = self._suffix, self._text(seq)
        limit = path_limit(seq, budget)
        if limit <= 0:
            return NO_DRAFT
        contexts = text.contexts(seq.tokens)
        limit = min(limit, options.longest_draft(contexts[0][2] // contexts[0][3]))
        if limit <= 0:
            return NO_DRAFT
        if options.shape == "chain":
            tokens, probs = best_chain(contexts, limit, min_prob)
            return Draft(tokens, origin="suffix", claims=probs)
        tokens, parents = best_tree(contexts, budget, limit, min_prob)
        return Draft(tokens, origin="suffix", parents=parents)

    def _text(self, seq: Sequence) -> _Text:
        text = self._texts.get(seq.seq_id)
        if text is None:
            follower = None if self._store is None else Follower(self._store, seq.cache_salt)
            max_context = self._suffix.suffix_decoding_max_tree_depth
            text = self._texts[seq.seq_id] = _Text(max_context, follower)
        return text

    def release(self, seq: Sequence) -> None:
        text = self._texts.pop(seq.seq_id, None)
        if text is not None and self._store is not None:
            self._store.add(seq.cache_salt, seq.tokens[seq.num_prompt :])

    def check_integrity(self) -> None:
        assert not self._texts, f"automata left for sequences {sorted(self._texts)}"
        if self._store is not None:
            self._store.check_integrity()
