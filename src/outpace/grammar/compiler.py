"""From what a request asks for to a grammar for one model."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from outpace.errors import OptionError
from outpace.grammar.compilation import Compilation
from outpace.grammar.source import readable, source_of, to_llguidance, unusable
from outpace.grammar.special import special_tokens, with_texts_as_text
from outpace.grammar.state import Grammar
from outpace.params import StructuredOutputsParams

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

LEXER_FUEL = 200_000
"""Work, in the library's unit (50 a microsecond, about), that an expression may take to compile. At
its default of 1,000,000 some compile whose first mask takes 12 s and 1.7 GB."""
STEP_FUEL = 50_000
"""The same for one mask; everyday schemas stay below 20,000. A mask holds up its step, and with it
every other request: at the library's default of 200,000 a hard expression can do so for 260 ms, and
with this for some 15."""
MAX_LEXER_STATES = 50_000
"""States of the lexer of one grammar, of 1 to 2 kB each, which all of its answers share."""
MAX_CACHED, MAX_CACHED_BYTES = 32, 256 * 1024
"""Compiled grammars that are kept, and bytes of their sources together."""


class GrammarCompiler:
    """Makes grammars for one model. Any thread may call it.

    The tokenizer's tables are built at the first `compile`, which takes about a third of a second
    for a vocabulary of 50,000. Compiled grammars are kept, the newest ones.
    """

    def __init__(
        self,
        tokenizer_json: Callable[[], str],
        vocab_size: int,
        end_token_ids: Collection[int],
    ) -> None:
        """tokenizer_json: returns the text of the model's tokenizer.json. vocab_size: how many
        logits the model has. end_token_ids: what ends its answers."""
        self._tokenizer_json = tokenizer_json
        self._vocab_size = vocab_size
        self._end_token_ids = sorted(i for i in end_token_ids if 0 <= i < vocab_size)
        self._tokenizer: LLTokenizer | None = None
        self._special: dict[str, int] = {}
        self._building = threading.Lock()
        self._cache: OrderedDict[tuple[str, bool, str], Grammar] = OrderedDict()
        self._cached = threading.Lock()

    def compile(self, asked: StructuredOutputsParams, *, timeout_s: float | None = None) -> Grammar:
        """The grammar that is asked for.

        timeout_s: most seconds to wait. What takes longer goes on in a thread of its own until the
            library's limits end it; neither holds Python's lock meanwhile.
        Raises OptionError for what cannot be compiled, is too large or takes too long.
        """
        if not self._end_token_ids:
            raise OptionError(
                "structured_outputs needs a model with an end token, by which a complete answer "
                "ends; this one has none (set eos_token_id)"
            )
        source = source_of(asked)
        key = (asked.kind, asked.disable_any_whitespace, source)
        with self._cached:
            if (grammar := self._cache.get(key)) is not None:
                self._cache.move_to_end(key)
                return grammar
        work = Compilation(lambda: self._matcher(asked, source))
        matcher = work.result(asked.kind, timeout_s)
        grammar = Grammar(
            matcher, lambda: self._matcher(asked, source), self._vocab_size, self._end_token_ids
        )
        self._keep(key, grammar)
        return grammar

    def _keep(self, key: tuple[str, bool, str], grammar: Grammar) -> None:
        with self._cached:
            self._cache[key] = grammar
            while len(self._cache) > MAX_CACHED or self._num_bytes() > MAX_CACHED_BYTES:
                self._cache.popitem(last=False)

    def _num_bytes(self) -> int:
        return sum(len(source) for _, _, source in self._cache)

    def _matcher(self, asked: StructuredOutputsParams, source: str) -> LLMatcher:
        """A matcher at the start, its first mask computed. Raises OptionError."""
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(
            initial_lexer_fuel=LEXER_FUEL,
            step_lexer_fuel=STEP_FUEL,
            max_lexer_states=MAX_LEXER_STATES,
            verbose_errors=False,
        )
        tokenizer = self._llguidance_tokenizer()
        try:
            text = to_llguidance(asked, source, self._special)
        except Exception as error:  # the converter raises many kinds
            raise unusable(asked.kind, str(error) or type(error).__name__) from None
        matcher = LLMatcher(tokenizer, text, log_level=0, limits=limits)
        if not matcher.is_error():
            # The first mask builds what the others share; grammars without any word show here too.
            matcher.compute_bitmask()
        if matcher.get_error().startswith("NoExtension"):
            raise unusable(
                asked.kind, "nothing matches it that could be written in the model's tokens"
            )
        if matcher.is_error():
            raise unusable(asked.kind, matcher.get_error())
        return matcher

    def _llguidance_tokenizer(self) -> LLTokenizer:
        from llguidance import LLTokenizer

        with self._building:
            if self._tokenizer is None:
                try:
                    own = self._tokenizer_json()
                    self._special = special_tokens(own)
                    self._tokenizer = LLTokenizer(
                        with_texts_as_text(own),
                        n_vocab=self._vocab_size,
                        eos_token=self._end_token_ids,
                    )
                except Exception as error:
                    raise OptionError(
                        "structured_outputs cannot be had with this model's tokenizer: "
                        f"{readable(str(error))}"
                    ) from None
            return self._tokenizer
