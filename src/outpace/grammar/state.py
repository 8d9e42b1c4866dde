"""A compiled grammar, and how far one answer has come in it."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as List
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from outpace.errors import OptionError
from outpace.grammar.compilation import Compilation
from outpace.grammar.source import readable

if TYPE_CHECKING:
    from jaxtyping import Float, UInt8
    from llguidance import LLMatcher

LEXER_ERROR = "lexer error"
"""What the library says where that table is full, or an expression takes too much work."""
MAX_COMPILED = 8
"""How often a grammar is compiled anew for one answer."""

_Answer = TypeVar("_Answer")


class Grammar:
    """A compiled grammar. Any thread may call it.

    vocab_size: how many logits the model has. end_token_ids: those that end an answer, ascending.
    """

    def __init__(
        self,
        matcher: LLMatcher,
        compile_again: Callable[[], LLMatcher],
        vocab_size: int,
        end_token_ids: List[int],
    ) -> None:
        self.vocab_size = vocab_size
        self.end_token_ids = frozenset(end_token_ids)
        self._matcher = matcher
        self._compile_again = compile_again

    def start(self) -> GrammarState:
        """A state for one answer, at its beginning."""
        return GrammarState(self)

    def matcher(self, *, anew: bool = False) -> LLMatcher:
        """A matcher at the start. They share what was found out about the expressions in it, up to
        a limit; anew: begin with none of that."""
        if anew:
            self._matcher = Compilation(self._compile_again).result("grammar", None)
        return self._matcher.deep_copy()


class GrammarState:
    """What a grammar allows at the positions of one answer. Belongs to one thread at a time.

    It is asked with the tokens before a position and goes there by itself, keeping the longest part
    that what it consumed has in common with them. That one rule covers chains, trees, rejected
    drafts, stops and positions asked about twice.

    tokens: the sequence's, whose output begins at index `start`. They only ever grow at the end, so
    that what was once found equal is not compared again: asking costs what the drafted tokens cost,
    however long the output is. After any other change `forget` must be called.
    """

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar
        self._num_compiled = 0
        self._begin(grammar.matcher())

    def forbid(
        self,
        logits: Float[np.ndarray, " V"],
        tokens: List[int],
        start: int,
        drafted: List[int] = (),
    ) -> None:
        """Set the logits of all tokens to -inf that may not come after the output and `drafted`.

        Where `drafted` holds a token that may not stand there, or an end token, all are: nothing
        comes after it, and the position is never reached. Raises OptionError where the grammar
        takes more work than its limits allow.
        """
        mask = self._ask(lambda: self._mask(tokens, start, drafted))
        if mask is None:
            logits.fill(-np.inf)
            return
        size = min(logits.size, self._grammar.vocab_size)
        forbidden = np.unpackbits(mask, bitorder="little", count=size) == 0
        np.copyto(logits[:size], -np.inf, where=forbidden)
        logits[size:] = -np.inf

    def forced(self, tokens: List[int], start: int) -> tuple[int, ...]:
        """The tokens that must come after the output, as the tokenizer would write them; () where
        there is a choice. Others may spell the same text, so that it is the model that decides."""

        def run() -> List[int]:
            is_there = self._move(tokens, start, ())
            return self._matcher.compute_ff_tokens() if is_there else ()

        try:
            token_ids = self._ask(run)
        except OptionError:  # of no concern unless the position's mask says so too
            return ()
        return tuple(token_ids[: self._num_text_tokens(token_ids)])

    def num_allowed(self, tokens: List[int], start: int, drafted: List[int]) -> int:
        """How many of `drafted` may come after the output, one after the other; an end token is
        the last."""
        num_text = self._num_text_tokens(drafted)
        ends = self._grammar.end_token_ids
        has_end = num_text < len(drafted) and drafted[num_text] in ends
        known = list(drafted[: num_text + has_end])

        def count() -> int:
            if not (known and self._move(tokens, start, ())):
                return 0
            if self._matcher.is_stopped():  # whole; the library takes no token then, nor an end
                return int(num_text == 0)
            return self._matcher.validate_tokens(known)

        try:
            return self._ask(count)
        except OptionError:
            return len(drafted)

    def forget(self) -> None:
        """Compare the output anew, whatever was found equal."""
        self._num_agreed = 0

    def _begin(self, matcher: LLMatcher) -> None:
        self._matcher = matcher
        self._consumed: list[int] = []  # by the matcher, end tokens never
        self._num_agreed = 0  # of them, how many are known to be output
        self._masks: dict[int, UInt8[np.ndarray, " bytes"]] = {}  # by how many of them precede it

    def _ask(self, question: Callable[[], _Answer]) -> _Answer:
        """The answer to a question that uses the matcher.

        Where the library meets a limit it gives up for good, so that it is begun anew for the next
        question: the position may be one that is never reached. A full table of the lexer's states
        is no fault of the position, which is asked about once more with an empty one.
        Raises OptionError where it gives up.
        """
        reason = ""
        for _ in range(2):
            if self._matcher.is_error():
                is_full = LEXER_ERROR in self._matcher.get_error()
                if reason and not is_full:
                    break
                self._num_compiled += is_full
                if self._num_compiled > MAX_COMPILED:
                    break
                self._begin(self._grammar.matcher(anew=is_full))
            answer = question()
            if not self._matcher.is_error():
                return answer
            reason = self._matcher.get_error()
        raise OptionError(
            "structured_outputs takes too much work at this place of the answer: "
            f"{readable(reason or self._matcher.get_error())}; simplify it"
        )

    def _mask(
        self, tokens: List[int], start: int, drafted: List[int]
    ) -> UInt8[np.ndarray, " bytes"] | None:
        """A bit for each token that may come, the first token's the lowest; None for none."""
        place, common = self._place(tokens, start, drafted)
        if common == place and place in self._masks:
            return self._masks[place]
        if not self._move(tokens, start, drafted):
            return None
        self._masks[place] = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        return self._masks[place]

    def _place(self, tokens: List[int], start: int, drafted: List[int]) -> tuple[int, int]:
        """How many tokens precede the position, and with how many of them the consumed ones
        begin."""
        consumed, num_output = self._consumed, len(tokens) - start
        common = min(self._num_agreed, num_output)
        limit = min(len(consumed), num_output)
        while common < limit and consumed[common] == tokens[start + common]:
            common += 1
        self._agree(common)
        place = num_output + len(drafted)
        if common == num_output:
            limit = min(len(consumed), place)
            while common < limit and consumed[common] == drafted[common - num_output]:
                common += 1
        return place, common

    def _move(self, tokens: List[int], start: int, drafted: List[int]) -> bool:
        """Go to a position. False where nothing may come there; the state is somewhere before it
        then."""
        place, common = self._place(tokens, start, drafted)
        num_back = len(self._consumed) - common
        if num_back:
            self._matcher.rollback(num_back)
            del self._consumed[common:]
            self._masks = {at: mask for at, mask in self._masks.items() if at <= common}
        num_output = len(tokens) - start
        rest = [*tokens[start + common :], *drafted[max(0, common - num_output) :]]
        possible = rest[: self._num_text_tokens(rest)]
        if possible:
            self._consumed += possible[: self._matcher.try_consume_tokens(possible)]
        self._agree(min(len(self._consumed), num_output))
        return len(self._consumed) == place

    def _agree(self, count: int) -> None:
        """So many of the consumed tokens are output: nothing before them is asked about again."""
        if count > self._num_agreed:
            self._masks = {at: mask for at, mask in self._masks.items() if at >= count}
        self._num_agreed = count

    def _num_text_tokens(self, token_ids: List[int]) -> int:
        """How many come before the first that is an end token or outside the vocabulary."""
        ends, size = self._grammar.end_token_ids, self._grammar.vocab_size
        others = (i for i, token in enumerate(token_ids) if token in ends or not 0 <= token < size)
        return next(others, len(token_ids))
