"""A tiny target in float64 and ways to run it, shared by the tests of the engine."""

from __future__ import annotations

from typing import Any

from scripted import scripted
from tiny import tiny_model

from outpace import LLM, SamplingParams
from outpace.outputs import RequestOutput

VOCAB = 96
TARGET = tiny_model(seed=1, max_len=256)
PROMPT = [5, 6, 7, 8, 9, 10, 11]
PROMPTS = [PROMPT, [40, 41], list(range(2, 50)), [3], [60, 61, 62] * 5, [17, 4], [90], [33, 2, 8]]
GREEDY = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)


def run(llm: LLM, params: Any = GREEDY, prompts: list[list[int]] = PROMPTS) -> list[RequestOutput]:
    return llm.generate([{"prompt_token_ids": ids} for ids in prompts], params)


def ids_of(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


def speculating(propose: Any, k: int = 4, **options: Any) -> LLM:
    config = {"method": scripted(propose), "num_speculative_tokens": k}
    return LLM(TARGET, speculative_config=config, **options)


def expected(answers: dict[tuple[int, ...], list[int]], count: int = 60) -> list[list[int]]:
    return [answers[tuple(ids)][:count] for ids in PROMPTS]


def count_fed_tokens(monkeypatch: Any) -> list[int]:
    """The number of tokens fed to the target in each pass from now on; grows as passes are made."""
    sizes: list[int] = []
    forward = TARGET.decoder.forward

    def counting(batch: Any, *args: Any) -> Any:
        sizes.append(len(batch.token_ids))
        return forward(batch, *args)

    monkeypatch.setattr(TARGET.decoder, "forward", counting)
    return sizes


def feed_in_chunks(chunk: int, monkeypatch: Any) -> None:
    """Engines made from now on feed at most this many tokens a step."""
    from outpace.engine import setup as module

    engine = module.Engine
    monkeypatch.setattr(
        module, "Engine", lambda *a, **kw: engine(*a, max_num_batched_tokens=chunk, **kw)
    )
