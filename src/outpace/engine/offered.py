"""The drafting methods of one engine, and which of them a request asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outpace.drafters.base import check_whole_number
from outpace.errors import OptionError
from outpace.params import refuse_unknown

PLAIN = "none"


@dataclass(frozen=True, slots=True)
class OfferedMethods:
    """default: the engine's own method. limits: every method it has -> its num_speculative_tokens,
    the most draft tokens per step."""

    default: str
    limits: Mapping[str, int]

    @property
    def names(self) -> list[str]:
        """What a request may name, plain decoding included."""
        return list(dict.fromkeys([self.default, *self.limits, PLAIN]))

    def choose(self, asked: bool | Mapping[str, Any]) -> tuple[str, int]:
        """(method, most draft tokens per step) of a request; none of them decodes it plainly.

        asked: whether to draft at all, or `{"method": ..., "num_speculative_tokens": ...}`, where
            what is left out is the engine's own.
        Raises OptionError for a method that the engine does not have, and for longer drafts than
        it was set up for.
        """
        if isinstance(asked, bool):
            return self.default, self.limits[self.default] if asked else 0
        if not isinstance(asked, Mapping):
            raise OptionError(
                "speculative must be true, false or a mapping like "
                f'{{"method": ..., "num_speculative_tokens": ...}}, got {asked!r:.80}'
            )
        refuse_unknown("option of one request's speculation", asked, _KEYS)
        method = asked.get("method", self.default)
        if method == PLAIN:
            return self._plainly(asked)
        if not isinstance(method, str) or method not in self.limits:
            raise OptionError(
                f"method must be one of {', '.join(self.names)} here, got {method!r:.80}; others "
                "are to be named when it starts (LLM's request_methods, --request-method of serve)"
            )
        return method, self._limit(method, asked)

    def _limit(self, method: str, asked: Mapping[str, Any]) -> int:
        most = self.limits[method]
        limit = asked.get("num_speculative_tokens", most)
        check_whole_number("num_speculative_tokens", limit, low=0)
        if limit > most:
            raise OptionError(
                f"num_speculative_tokens={limit} is more than the {most} that method "
                f"{method!r} was set up for"
            )
        return int(limit)

    def _plainly(self, asked: Mapping[str, Any]) -> tuple[str, int]:
        if asked.get("num_speculative_tokens", 0) != 0:
            raise OptionError(
                f"num_speculative_tokens={asked['num_speculative_tokens']!r} with method "
                f"{PLAIN!r}: nothing is drafted; leave it out"
            )
        return self.default, 0


_KEYS = ("method", "num_speculative_tokens")
