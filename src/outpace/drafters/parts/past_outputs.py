"""A bounded memory of past outputs, apart for each cache salt."""

from __future__ import annotations

from collections.abc import Sequence as List

from outpace.drafters.parts.continuations import OTHER_TEXT, Context, contexts_of
from outpace.drafters.parts.suffix_automaton import ROOT, SuffixAutomaton

MAX_SALTS = 256
"""Most cache salts in one generation of the store."""


class OutputStore:
    """What was said before, at most `max_tokens` tokens of it, in one automaton per cache salt.

    Kept in generations: once the youngest is full, the oldest is forgotten as a whole, so that no
    text ever has to be taken out of an automaton.

    Memory: about 0.5 kB per token.
    """

    def __init__(self, max_tokens: int, max_context: int) -> None:
        """max_tokens: at least 1. max_context: as of `SuffixAutomaton`."""
        self.max_tokens = max_tokens
        self.max_context = max_context
        self._generation_tokens = max(1, max_tokens // 2)
        self._generations: list[dict[str, SuffixAutomaton]] = [{}]  # the youngest first
        self._num_youngest = 0

    def automata(self, salt: str) -> list[SuffixAutomaton]:
        """What is remembered for requests of this salt. To be read only."""
        return [generation[salt] for generation in self._generations if salt in generation]

    def add(self, salt: str, tokens: List[int]) -> None:
        """Remember one output for requests of the same salt."""
        automaton = None
        for token in tokens:
            if automaton is None or self._num_youngest >= self._generation_tokens:
                automaton = self._youngest(salt)
            automaton.extend(token)
            self._num_youngest += 1
        if automaton is not None:
            automaton.end_text()

    def _youngest(self, salt: str) -> SuffixAutomaton:
        """The automaton of a salt in a generation that has room."""
        youngest = self._generations[0]
        is_full = self._num_youngest >= self._generation_tokens
        if is_full or (salt not in youngest and len(youngest) >= MAX_SALTS):
            kept = self.max_tokens // self._generation_tokens - 1
            youngest, self._num_youngest = {}, 0
            self._generations = [youngest, *self._generations[:kept]]
        if salt not in youngest:
            youngest[salt] = SuffixAutomaton(self.max_context)
        return youngest[salt]

    @property
    def num_tokens(self) -> int:
        """How many tokens are remembered, of all salts."""
        return sum(
            automaton.num_tokens
            for generation in self._generations
            for automaton in generation.values()
        )

    def check_integrity(self) -> None:
        """Raise AssertionError if more is remembered than may be."""
        held = self.num_tokens
        assert held <= self.max_tokens, f"{held} tokens remembered, {self.max_tokens} allowed"
        salts = max(len(generation) for generation in self._generations)
        assert salts <= MAX_SALTS, f"{salts} salts remembered, {MAX_SALTS} allowed"


class Follower:
    """Follows the text of one request through what is remembered for its salt."""

    def __init__(self, store: OutputStore, salt: str) -> None:
        self._store = store
        self._salt = salt
        # For each automaton the state and length of the match, and its size then.
        self._matches: list[tuple[SuffixAutomaton, int, int, int]] = []

    def follow(self, tokens: List[int], num_new: int) -> list[list[Context]]:
        """For each automaton of the store the contexts that end the text, longest first.

        tokens: the text; its last `num_new` were added since the last call.
        """
        before = {id(match[0]): match for match in self._matches}
        matches = []
        for automaton in self._store.automata(self._salt):
            _, state, length, size = before.get(id(automaton), (automaton, ROOT, 0, -1))
            num_behind = num_new
            # Another automaton, or one that grew: its longest match may be another one, too.
            if size != automaton.num_tokens or num_new > automaton.max_context:
                state, length, num_behind = ROOT, 0, automaton.max_context
            for token in tokens[max(0, len(tokens) - num_behind) :]:
                state, length = automaton.step(state, length, token)
            matches.append((automaton, state, length, automaton.num_tokens))
        self._matches = matches
        return [
            contexts_of(automaton, state, length, OTHER_TEXT)
            for automaton, state, length, _ in matches
        ]
