"""What the target answers, plainly: the texts on which all candidates are judged."""

from __future__ import annotations

import time
from collections.abc import Sequence as List
from dataclasses import dataclass
from itertools import zip_longest

from outpace.errors import OptionError
from outpace.measure.advise.options import AdviseOptions, Clock
from outpace.measure.advise.replay import Recorded
from outpace.measure.kept import KeptEngine
from outpace.measure.prompts import BenchPrompt
from outpace.measure.timing import PLAIN_CONFIG
from outpace.models.load import LoadedModel

CHUNK = 4
"""Answers recorded, and replayed, together."""
FEWEST_TOKENS = 16
_GOOD_TOKENS = 48
_PROBE_TOKENS = 12
_MIN_STEPS = 3
_DEARER = 2.0
"""Times what it took to record that a replay takes, about: drafts are verified at all positions."""


@dataclass(frozen=True, slots=True)
class Amount:
    """How much is recorded. step_s: of a plain step, about."""

    num_prompts: int
    max_tokens: int
    step_s: float


def spread(prompts: List[BenchPrompt], most: int) -> list[BenchPrompt]:
    """At most `most` prompts, category by category in turn, so that the first few are of all."""
    by_category: dict[str, list[BenchPrompt]] = {}
    for prompt in prompts:
        by_category.setdefault(prompt.category, []).append(prompt)
    rounds = zip_longest(*by_category.values())
    return [prompt for row in rounds for prompt in row if prompt is not None][:most]


def amount_for(
    seconds: float, replay_seconds: float, step_s: float, num_prompts: int, max_tokens: int
) -> Amount:
    """What can be recorded in this time: long answers first, then many.

    replay_seconds: that a replay of as many answers as are made together may take.
    """
    fewest = min(FEWEST_TOKENS, max_tokens)
    max_tokens = max(fewest, min(max_tokens, int(replay_seconds / (_DEARER * step_s))))
    num_steps = seconds / step_s
    chunks = -(-num_prompts // CHUNK)
    chunks = max(1, min(chunks, int(num_steps // min(_GOOD_TOKENS, max_tokens))))
    tokens = min(max_tokens, max(fewest, int(num_steps // chunks)))
    return Amount(min(num_prompts, chunks * CHUNK), tokens, step_s)


def record(
    loaded: LoadedModel,
    prompts: List[BenchPrompt],
    options: AdviseOptions,
    clock: Clock,
    *,
    share: float,
    replay_share: float,
    num_replays: int,
    max_model_len: int,
) -> tuple[list[Recorded], Amount]:
    """Answer prompts plainly, as many as fit into this share of the time.

    replay_share: of the time, for `num_replays` of the first few.
    Raises OptionError where every answer was over at once.
    """
    chosen = spread(prompts, options.most_prompts)
    engine = KeptEngine(
        loaded, PLAIN_CONFIG, name="plain", max_model_len=max_model_len, max_num_seqs=CHUNK
    )
    try:
        step_s = _step_seconds(engine, chosen[: min(CHUNK, len(chosen))], options)
        amount = amount_for(
            clock.left(share),
            replay_share * options.seconds / max(num_replays, 1),
            step_s,
            len(chosen),
            options.max_tokens,
        )
        params = options.params(amount.max_tokens)
        found: list[Recorded] = []
        for start in range(0, amount.num_prompts, CHUNK):
            chunk = chosen[start : min(start + CHUNK, amount.num_prompts)]
            asked = [{"prompt_token_ids": list(prompt.token_ids)} for prompt in chunk]
            for prompt, output in zip(chunk, engine.llm.generate(asked, params), strict=True):
                answer = tuple(output.outputs[0].token_ids)
                found.append(Recorded(prompt.label, prompt.category, prompt.token_ids, answer))
            clock.tick()
    finally:
        engine.close()
    kept = [each for each in found if len(each.answer) >= _MIN_STEPS]
    if not kept:
        raise OptionError(
            f"all {len(found)} answers were over after fewer than {_MIN_STEPS} tokens; give "
            "prompts that ask for longer ones"
        )
    return kept, amount


def _step_seconds(engine: KeptEngine, prompts: List[BenchPrompt], options: AdviseOptions) -> float:
    """About what a plain step over these prompts takes, prompts read included in neither."""
    params = options.params(_PROBE_TOKENS, ignore_eos=True)
    asked = [{"prompt_token_ids": list(prompt.token_ids)} for prompt in prompts]
    engine.llm.generate(asked, params)
    started = time.perf_counter()  # what was read is cached now
    engine.llm.generate(asked, params)
    return (time.perf_counter() - started) / _PROBE_TOKENS
