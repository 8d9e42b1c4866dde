"""Traces of tiny models, shared by the tests of `outpace trace`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from engine_cases import PROMPT, TARGET, VOCAB
from scripted import in_a_tree, right_for, sampled, scripted, siblings

from outpace import LLM, SamplingParams
from outpace.engine.instruments import Instruments
from outpace.measure.trace.records import Trace
from outpace.measure.trace.run import trace_generation

Q = np.random.default_rng(7).dirichlet(np.ones(VOCAB))


def half_right(answer: list[int]) -> Any:
    """Drafts that are right for two tokens; `answer` is the greedy one to PROMPT."""
    return right_for({tuple(PROMPT): answer}, VOCAB, lambda seq: 2)


def drafting(kind: str, answer: list[int]) -> Any:
    """Drafters of every shape: "chain", "tree", "sampled", "siblings", "probes"."""
    chain = half_right(answer)
    made: dict[str, Callable[[], Any]] = {
        "chain": lambda: chain,
        "tree": lambda: in_a_tree(chain, VOCAB, seed=3),
        "probes": lambda: in_a_tree(chain, VOCAB, seed=3, num_probes=2),
        "sampled": lambda: sampled(Q, seed=4),
        "siblings": lambda: siblings(Q, seed=5),
    }
    return scripted(made[kind]())


def opener(
    method: Any, k: int = 6, model: Any = TARGET, **options: Any
) -> Callable[[Instruments], LLM]:
    def open_llm(instruments: Instruments) -> LLM:
        config = {"method": method, "num_speculative_tokens": k}
        return LLM(model, speculative_config=config, instruments=instruments, **options)

    return open_llm


def traced(method: Any, params: SamplingParams, path: Path | None = None, **more: Any) -> Trace:
    """A traced answer to PROMPT."""
    prompt = {"prompt_token_ids": PROMPT}
    options = {name: more.pop(name) for name in ("k", "model", "max_num_seqs") if name in more}
    return trace_generation(opener(method, **options), prompt, params, path=path, **more)
