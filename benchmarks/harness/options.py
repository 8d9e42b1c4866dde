"""The command line of the engine's benchmark."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from harness.arguments import BenchParser
from outpace.measure.prompts import PROMPTS_VARIABLE

PEERS = ("transformers",)
DRAFT_MODEL_K = 2

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to measure. See the help texts of the command line."""

    model: str
    device: str
    dtypes: tuple[str, ...]
    speculative_configs: tuple[dict[str, Any], ...]
    draft_model: str | None
    peers: tuple[str, ...]
    prompts: Path | None
    num_prompts: int
    max_prompt_tokens: int
    max_tokens: int
    greedy_only: bool
    rows: tuple[int, ...]
    contexts: tuple[int, ...]
    pass_repeats: int
    repeats: int
    minutes: float
    threads: int | None
    seed: int
    json: Path | None


def parse_options(description: str, arguments: Sequence[str] | None = None) -> Options:
    """Options from the command line; exits with a message for values that make no sense."""
    parser = BenchParser(description, _add_subject, _add_prompts, _add_effort)
    values = parser.values(arguments)
    configs = values.pop("speculative_config") or [{"method": "ngram", "num_speculative_tokens": 4}]
    if values["draft_model"] is not None:
        configs.append(
            {
                "method": "draft_model",
                "model": values["draft_model"],
                "num_speculative_tokens": DRAFT_MODEL_K,
            }
        )
    parser.check_rows(values["rows"])
    parser.check_place("--json", values["json"])
    return Options(speculative_configs=tuple(configs), **values)


def _add_subject(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", default="smollm2-135m", help="alias, GGUF file or Hugging Face directory")
    add("--device", default="auto", help="auto, cpu, cuda, ...")
    add("--dtypes", type=as_list_of(str), default="float32,bfloat16", help="computed in turn")
    add(
        "--speculative-config",
        type=as_json_object,
        action="append",
        metavar="JSON",
        help="a drafter to measure, with the keys of LLM's speculative_config; may be repeated "
        '(without it: {"method": "ngram", "num_speculative_tokens": 4})',
    )
    add(
        "--draft-model",
        metavar="MODEL",
        help=f"smaller model with the same tokenizer: adds drafting with it (K={DRAFT_MODEL_K}), "
        "and the peers' own assisted generation",
    )
    add(
        "--peers",
        type=_peers,
        default=",".join(PEERS),
        help=f"other engines to run beside: {', '.join(PEERS)}, or none",
    )


def _add_prompts(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--prompts",
        type=Path,
        metavar="FILE",
        help="JSON lines with `turns` (the first is used) or `prompt`, and `category` (without "
        f"it: spec_bench_dev.jsonl in ${PROMPTS_VARIABLE} if that is set, else a built-in set)",
    )
    add("--num-prompts", type=as_count, default=20, help="spread evenly over the categories")
    add("--max-prompt-tokens", type=as_count, default=700, help="longer prompts are left out")
    add("--max-tokens", type=as_count, default=64, help="most output tokens of a run")
    add("--greedy-only", action="store_true", help="leave out what is sampled")


def _add_effort(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--rows", type=as_ranges, default="1-16", help="row counts of passes, such as 1-4,8,16")
    add("--contexts", type=as_list_of(as_count), default="100,1000", help="cached tokens of passes")
    add("--pass-repeats", type=as_count, default=9, help="timings of every pass")
    add("--repeats", type=as_count, default=3, help="most rounds over all prompts")
    add(
        "--minutes",
        type=float,
        default=12,
        help="no further round is begun that would end later; the first always runs",
    )
    add("--threads", type=as_count, help="of torch, for all engines (without it: torch's choice)")
    add("--seed", type=int, default=0, help="of prompt choice, sampling and intervals")
    add("--json", type=Path, metavar="FILE", help="write everything measured here")


def as_count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


def as_list_of(convert: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    def parse(text: str) -> tuple[T, ...]:
        return tuple(dict.fromkeys(convert(part.strip()) for part in text.split(",")))

    parse.__name__ = "list separated by commas"
    return parse


def as_ranges(text: str) -> tuple[int, ...]:
    values: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        values.update(range(as_count(first), as_count(last or first) + 1))
    return tuple(sorted(values))


def _peers(text: str) -> tuple[str, ...]:
    names = () if text == "none" else tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in PEERS:
            raise argparse.ArgumentTypeError(f"unknown engine {name!r}; known: {', '.join(PEERS)}")
    return names


def as_json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"expected a JSON object, got {text}")
    return value
