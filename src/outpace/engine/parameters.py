"""What sampling parameters mean for one model: ids against its vocabulary, words as tokens."""

from __future__ import annotations

from collections.abc import Sequence as List

from outpace.errors import OptionError
from outpace.models.tokenizer import Tokenizer
from outpace.params import SamplingParams


def check_for_model(params: SamplingParams, end_ids: frozenset[int], vocab_size: int) -> None:
    """Raise OptionError for what this model cannot honour: token ids that it does not have, more
    logprobs than it has tokens, or parameters that leave no token to begin with."""
    named = {
        "logit_bias": params.logit_bias or (),
        "allowed_token_ids": params.allowed_token_ids or (),
        "stop_token_ids": params.stop_token_ids,
    }
    for name, token_ids in named.items():
        for token_id in token_ids:
            if token_id >= vocab_size:
                raise OptionError(
                    f"{name} holds token id {token_id}, which is outside the model's vocabulary "
                    f"of {vocab_size}"
                )
    for name in ("logprobs", "prompt_logprobs"):
        if (getattr(params, name) or 0) > vocab_size:
            raise OptionError(
                f"{name} must be at most {vocab_size}, the size of the model's vocabulary, "
                f"got {getattr(params, name)}"
            )
    allowed, forbidden = params.allowed_token_ids, end_ids | set(params.stop_token_ids)
    if params.min_tokens and allowed is not None and forbidden.issuperset(allowed):
        raise OptionError(
            "allowed_token_ids holds nothing but tokens that end the output, and min_tokens "
            f"({params.min_tokens}) forbids those: no token could be generated"
        )


def bad_words_ids(words: List[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Token ids of words that must not be written, each without and with a space before it.

    As in vLLM and `transformers` a word is what its own encoding says: the same letters spelled
    with other tokens, as part of a longer word for instance, are another matter.
    Raises OptionError for a word that has no tokens.
    """
    encoded: dict[tuple[int, ...], None] = {}
    for word in words:
        bare = word.lstrip() or word
        spellings = [bare] if bare.isspace() else [bare, f" {bare}"]
        for spelling in spellings:
            token_ids = tuple(tokenizer.encode(spelling, add_special_tokens=False))
            if not token_ids:
                raise OptionError(
                    f"bad_words holds {word!r}, which this model's tokenizer turns into no token "
                    "at all; leave it out"
                )
            encoded[token_ids] = None
    return tuple(encoded)
