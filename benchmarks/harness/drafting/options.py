"""The command line of the benchmark of drafting methods."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.arguments import BenchParser
from harness.options import as_count, as_json_object, as_list_of, as_ranges
from outpace.measure.prompts import PROMPTS_VARIABLE

DECODINGS = ("greedy", "sampled")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to measure. See the help texts of the command line."""

    model: str
    device: str
    dtypes: tuple[str, ...]
    model_impls: tuple[str, ...]
    threads: int | None
    methods: tuple[str, ...]
    method_configs: tuple[dict[str, Any], ...]
    prompts: tuple[Path, ...]
    per_column: int
    max_prompt_tokens: int
    max_tokens: int
    decodings: tuple[str, ...]
    warm_up_prompts: int
    widths: tuple[int, ...]
    width_methods: tuple[str, ...]
    width_prompts: int
    width_decodings: tuple[str, ...]
    rows: tuple[int, ...]
    contexts: tuple[int, ...]
    pass_repeats: int
    repeats: int
    minutes: float
    seed: int
    json: Path | None


def parse_options(description: str, arguments: Sequence[str] | None = None) -> Options:
    """Options from the command line; exits with a message for values that make no sense."""
    parser = BenchParser(description, _add_subject, _add_prompts, _add_widths, _add_effort)
    values = parser.values(arguments)
    for name in ("decodings", "width_decodings"):
        parser.check_known(name, values[name], DECODINGS)
    parser.check_rows(values["rows"])
    parser.check_place("--json", values["json"])
    for name in ("method_configs", "prompts"):
        values[name] = tuple(values[name] or ())
    return Options(**values)


def _add_subject(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", default="smollm2-135m", help="alias, GGUF file or Hugging Face directory")
    add("--device", default="auto", help="auto, cpu, cuda, ...")
    add("--dtypes", type=as_list_of(str), default="q4_1,bfloat16", help="of the weights")
    add(
        "--model-impls",
        type=as_list_of(str),
        default="native,torch",
        help="what computes the model; every combination with a dtype that exists is measured",
    )
    add(
        "--threads",
        type=as_count,
        help="of the native step and of torch (without it: each one's own choice)",
    )
    add(
        "--methods",
        type=as_list_of(str),
        default=(),
        help="methods to measure with their own defaults, in every shape they have; all: every "
        "installed one that needs no other model, as without it and without --method-config",
    )
    add(
        "--method-config",
        dest="method_configs",
        type=as_json_object,
        action="append",
        metavar="JSON",
        help="one more, with the keys of LLM's speculative_config; may be repeated",
    )


def _add_prompts(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--prompts",
        type=Path,
        action="append",
        metavar="FILE",
        help="JSON lines with `turns` or `prompt`, and `category`; may be repeated (without it: "
        f"spec_bench_dev.jsonl and humaneval_dev.jsonl in ${PROMPTS_VARIABLE}, else a built-in "
        "set)",
    )
    add("--per-column", type=as_count, default=4, help="questions of every category")
    add("--max-prompt-tokens", type=as_count, default=1700, help="longer ones are left out")
    add("--max-tokens", type=as_count, default=128, help="most output tokens of a run")
    add("--decodings", type=as_list_of(str), default=",".join(DECODINGS), help="greedy, sampled")
    add(
        "--warm-up-prompts",
        type=int,
        default=0,
        help="other prompts that an engine answers before each timed one, for drafters that "
        "remember what they saw of other requests",
    )


def _add_widths(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--widths", type=as_list_of(as_count), default="1,2,4,8,16,32", help="K of both shapes")
    add(
        "--width-methods",
        type=as_list_of(str),
        default=(),
        help="methods whose chains and trees are compared (without it: suffix and recycling where "
        "they are installed)",
    )
    add("--width-prompts", type=int, default=7, help="prompts of that comparison; 0: none")
    add("--width-decodings", type=as_list_of(str), default="greedy", help="of that comparison")
    add("--rows", type=as_ranges, default="1,2,3,5,9,17,33", help="of passes, such as 1-4,8")
    add("--contexts", type=as_list_of(as_count), default="100,800", help="cached tokens of passes")
    add("--pass-repeats", type=as_count, default=9, help="timings of every pass")


def _add_effort(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--repeats", type=as_count, default=3, help="most rounds over all prompts")
    add(
        "--minutes",
        type=float,
        default=40,
        help="nothing further is begun that would end later; one question of every category "
        "always runs",
    )
    add("--seed", type=int, default=0, help="of prompt choice, sampling and intervals")
    add("--json", type=Path, metavar="FILE", help="write everything measured here")
