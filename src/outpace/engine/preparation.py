"""From a prompt and its parameters to requests: everything is checked before anything runs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from outpace.engine.fold import OutputFold
from outpace.engine.inputs import Prompt, split_salt, to_token_ids
from outpace.engine.offered import OfferedMethods
from outpace.engine.parameters import bad_words_ids, check_for_model
from outpace.engine.request import Request, RequestGroup
from outpace.errors import ContextLengthError, OptionError
from outpace.grammar import Grammar, GrammarCompiler
from outpace.models.load import LoadedModel
from outpace.params import SamplingParams, StructuredOutputsParams
from outpace.types import Sequence


@dataclass(slots=True)
class Preparation:
    """Makes requests for one engine. Any thread may call it.

    max_model_len: most tokens of prompt and output together.
    methods: the drafting methods that a request may choose from.
    lossy: the name of the rule that accepts draft tokens, if it is not a lossless one.
    """

    target: LoadedModel
    max_model_len: int
    methods: OfferedMethods
    lossy: str | None
    _ids: itertools.count[int] = field(default_factory=itertools.count)
    _grammars: GrammarCompiler = field(init=False)

    def __post_init__(self) -> None:
        tokenizer = self.target.tokenizer
        self._grammars = GrammarCompiler(
            tokenizer.to_json, self.target.decoder.num_logits, tokenizer.end_token_ids
        )

    def prepare(
        self, prompt: Prompt, params: SamplingParams, speculative: bool | Mapping[str, Any]
    ) -> RequestGroup:
        """Raises OptionError for whatever cannot be honoured as given."""
        if not isinstance(params, SamplingParams):
            given = type(params).__name__
            raise OptionError(f"sampling_params must be SamplingParams, got {given}")
        method, draft_limit = self.methods.choose(speculative)
        tokenizer, vocab_size = self.target.tokenizer, self.target.decoder.num_logits
        check_for_model(params, tokenizer.end_token_ids, vocab_size)
        salt, prompt = split_salt(prompt)
        text, token_ids = to_token_ids(prompt, tokenizer, vocab_size)
        self._check_length(token_ids)
        bad_words = bad_words_ids(params.bad_words, tokenizer)
        grammar = self._grammar(params)
        requests = [
            self._answer(
                Sequence(
                    seq_id=next(self._ids),
                    tokens=list(token_ids),
                    num_prompt=len(token_ids),
                    params=params,
                    end_token_ids=tokenizer.end_token_ids,
                    choice=choice,
                    bad_words_ids=bad_words,
                    cache_salt=salt,
                    method=method,
                    grammar=None if grammar is None else grammar.start(),
                ),
                draft_limit,
            )
            for choice in range(params.n)
        ]
        lossy = self.lossy if draft_limit and not params.is_greedy else None
        return RequestGroup(str(requests[0].seq.seq_id), text, requests, lossy)

    def _grammar(self, params: SamplingParams) -> Grammar | None:
        asked = params.structured_outputs
        if asked is None:
            return None
        assert isinstance(asked, StructuredOutputsParams), "SamplingParams makes one of a mapping"
        return self._grammars.compile(asked)

    def _check_length(self, token_ids: list[int]) -> None:
        if len(token_ids) >= self.max_model_len:
            is_raisable = self.max_model_len < self.target.max_len
            way_out = f" or raise max_model_len (the model allows {self.target.max_len})"
            raise ContextLengthError(
                f"the prompt has {len(token_ids)} tokens and leaves no room for an answer in a "
                f"context of {self.max_model_len}; shorten it{way_out if is_raisable else ''}"
            )

    def _answer(self, seq: Sequence, draft_limit: int) -> Request:
        """The request for one answer; it is finished already if there is nothing to run."""
        params = seq.params
        room = self.max_model_len - seq.num_prompt
        max_new = room if params.max_tokens is None else min(params.max_tokens, room)
        seq.max_len = seq.num_prompt + max_new
        fold = OutputFold(self.target.tokenizer, params, seq.end_token_ids, max(max_new, 1))
        is_scored = params.prompt_logprobs is not None and seq.choice == 0
        if max_new == 0 and not is_scored:
            fold.finish("length")
        return Request(
            seq, fold, max_new, draft_limit, prompt_logprobs=[None] if is_scored else None
        )
