"""Benchmark of sampling: what turning logits into verdicts costs, beside a pass of a model.

    python benchmarks/sampling.py --json results.json

Logits are made up in the shape of a language model's (a power law over ranks, with noise). Rows are
the positions of one draft that is accepted whole, so that every row is needed: rejections only make
it cheaper. The share is of a pass over one row of the model, timed in the same process.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from harness.progress import BenchProgress
from rich.console import Console
from rich.table import Table

from outpace import SamplingParams
from outpace.measure.passes import PassTimes, measure_passes
from outpace.measure.provenance import describe
from outpace.models.load import load_model
from outpace.sampling import History, probabilities
from outpace.types import Draft, Scores
from outpace.types import Sequence as TokenSequence
from outpace.verification.judge import verify

NUM_PROMPT, NUM_OUTPUT = 300, 200
CONTEXT_LEN = 100
PENALTIES = {"repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": 0.3}
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "greedy, penalties": {"temperature": 0, **PENALTIES},
    "temperature": {"temperature": 0.7},
    "temperature, seed": {"temperature": 0.7, "seed": 1},
    "top_k": {"temperature": 0.7, "top_k": 50},
    "top_p": {"temperature": 0.7, "top_p": 0.9},
    "top_p, penalties": {"temperature": 0.7, "top_p": 0.9, **PENALTIES},
    "typical_p": {"typical_p": 0.9},
}


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of judging one draft; `num_rows` is its length plus one."""

    way: str
    vocab_size: int
    num_rows: int
    seconds: list[float]


class LowestCoins:
    """Stands for a random generator and accepts every token of positive probability."""

    def random(self, size: int) -> np.ndarray:
        return np.zeros(size)


def measure(way: str, vocab_size: int, num_rows: int, repeats: int) -> Cost:
    rng = np.random.default_rng(vocab_size + num_rows)
    ranks = rng.permutation(vocab_size) + 1
    noise = 0.3 * rng.normal(size=(num_rows, vocab_size))
    logits = (1.5 * (noise - 1.3 * np.log(ranks))).astype(np.float32)
    tokens = rng.integers(0, vocab_size, NUM_PROMPT + NUM_OUTPUT).tolist()
    seq = TokenSequence(0, tokens, NUM_PROMPT, SamplingParams(max_tokens=None, **WAYS[way]))
    draft = accepted_draft(logits, seq)
    span = [slice(0, num_rows)]
    scores = Scores(torch.from_numpy(logits), rows=span, fed=span)
    seconds = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        (verdict,) = verify(scores, [seq], [draft], LowestCoins())  # type: ignore[arg-type]
        seconds.append(time.perf_counter() - started)
        assert verdict.num_accepted == len(draft)
    return Cost(way, vocab_size, num_rows, seconds[1:])


def accepted_draft(logits: np.ndarray, seq: TokenSequence) -> Draft:
    """Draft tokens that `verify` keeps to the last, found by asking it position by position."""
    tokens: list[int] = []
    for position in range(len(logits) - 1):
        span = [slice(0, 1)]
        ahead = TokenSequence(0, [*seq.tokens, *tokens], seq.num_prompt, seq.params)
        scores = Scores(torch.from_numpy(logits[position : position + 1]), rows=span, fed=span)
        (verdict,) = verify(scores, [ahead], [Draft()], np.random.default_rng(0))
        if not seq.params.is_greedy and seq.params.seed is None:
            p = probabilities(logits[position], History(ahead))
            verdict = type(verdict)((int(p.argmax()),))
        tokens.append(verdict.token_ids[0])
    return Draft(tuple(tokens))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sizes = {"type": int, "nargs": "+", "metavar": "N"}
    parser.add_argument("--vocab-sizes", default=[49152, 262144], **sizes)  # type: ignore[arg-type]
    parser.add_argument("--rows", default=[1, 8], **sizes)  # type: ignore[arg-type]
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all timings here")
    return parser.parse_args()


def show(costs: Sequence[Cost], pass_s: float, options: argparse.Namespace) -> None:
    table = Table(title=f"ms to judge, and share of a pass of {1e3 * pass_s:.1f} ms")
    table.add_column("", no_wrap=True)
    cases = [(size, rows) for size in options.vocab_sizes for rows in options.rows]
    for size, rows in cases:
        table.add_column(f"{size} tokens\n{rows} row{'s' if rows > 1 else ''}", justify="right")
    found = {(cost.way, cost.vocab_size, cost.num_rows): median(cost.seconds) for cost in costs}
    for way in WAYS:
        values = [found[way, size, rows] for size, rows in cases]
        table.add_row(way, *(f"{1e3 * v:.2f} ({v / pass_s:.1%})" for v in values))
    Console().print(table)


def main() -> None:
    options = parse()
    cases = [(w, v, n) for w in WAYS for v in options.vocab_sizes for n in options.rows]
    passes: list[PassTimes] = []
    with BenchProgress() as progress:
        progress.expect(len(cases) + options.repeats + 1)
        progress.describe("passes of the model")
        measure_passes(
            load_model(options.model, dtype=options.dtype),
            rows=[1],
            context_lens=[CONTEXT_LEN],
            repeats=options.repeats,
            seed=0,
            results=passes,
            tick=progress.tick,
        )
        costs = []
        for way, vocab_size, num_rows in cases:
            progress.describe(way)
            costs.append(measure(way, vocab_size, num_rows, options.repeats))
            progress.tick()
    show(costs, median(passes[0].seconds), options)
    if options.json:
        results = {"environment": describe(), "passes": passes, "costs": costs}
        options.json.write_text(json.dumps(results, default=asdict, indent=1) + "\n")


if __name__ == "__main__":
    main()
