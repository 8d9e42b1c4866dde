"""The command line of the server's benchmark."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.arguments import BenchParser
from harness.options import as_count, as_list_of
from outpace.measure.prompts import PROMPTS_VARIABLE

QUICK = {
    "clients": "1,2",
    "requests_per_client": 1,
    "least_requests": 2,
    "per_column": 1,
    "max_tokens": 8,
    "sets": 1,
    "repeats": 1,
    "minutes": 0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to measure. See the help texts of the command line."""

    model: str
    dtype: str
    model_impl: str
    device: str
    threads: int | None
    method: str
    max_num_seqs: int
    clients: tuple[int, ...]
    requests_per_client: int
    least_requests: int
    prompts: tuple[Path, ...]
    per_column: int
    max_prompt_tokens: int
    max_tokens: int
    sets: int
    quick: bool
    repeats: int
    minutes: float
    seed: int
    json: Path | None


def parse_options(description: str, arguments: Sequence[str] | None = None) -> Options:
    """Options from the command line; exits with a message for values that make no sense."""
    parser = BenchParser(description, _add_server, _add_requests, _add_effort, quick=QUICK)
    values = parser.values(arguments)
    parser.check_place("--json", values["json"])
    values["prompts"] = tuple(values["prompts"] or ())
    return Options(**values)


def _add_server(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", default="smollm2-135m", help="alias, GGUF file or Hugging Face directory")
    add("--dtype", default="auto", help="of the weights")
    add("--model-impl", default="auto", help="what computes the model: auto, native or torch")
    add("--device", default="auto", help="auto, cpu, cuda, ...")
    add("--threads", type=as_count, help="of the server (without it: its own choice)")
    add("--method", default="auto", help="the server's, compared with plain decoding")
    add("--max-num-seqs", type=as_count, default=16, help="answers that it decodes together")


def _add_requests(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--clients", type=as_list_of(as_count), default="1,2,4,8,16", help="at the same time")
    add("--requests-per-client", type=as_count, default=4, help="in a set of requests")
    add("--least-requests", type=as_count, default=8, help="in a set of requests for few clients")
    add(
        "--prompts",
        type=Path,
        action="append",
        metavar="FILE",
        help="JSON lines with `turns` (the first is used) or `prompt`, and `category`; may be "
        f"repeated (without it: spec_bench_dev.jsonl and humaneval_dev.jsonl in "
        f"${PROMPTS_VARIABLE}, else a built-in set)",
    )
    add("--per-column", type=as_count, default=16, help="most prompts of every category")
    add("--max-prompt-tokens", type=as_count, default=700, help="longer ones are left out")
    add("--max-tokens", type=as_count, default=128, help="most output tokens of a request")
    add("--sets", type=as_count, default=8, help="most sets of requests for each number of clients")


def _add_effort(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--quick", action="store_true", help="only see that everything runs")
    add("--repeats", type=as_count, default=3, help="most rounds over all sets")
    add(
        "--minutes",
        type=float,
        default=30,
        help="nothing further is begun that would end later; one set for every number of clients "
        "always runs",
    )
    add("--seed", type=int, default=0, help="of the choice of prompts")
    add("--json", type=Path, metavar="FILE", help="write everything measured here")
