"""The command line of the benchmark of `auto`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from harness.arguments import BenchParser
from harness.auto.methods import as_config, as_configs
from harness.options import as_count, as_list_of
from harness.step.options import as_format_and_file
from outpace.measure.prompts import PROMPTS_VARIABLE

DECODINGS = ("greedy", "sampled")
PARTS = ("main", "entropy", "mixed", "batch")
PEERS = ("llama.cpp",)
FIXED = "suffix:1,suffix:4,suffix:16,eagle3:1,eagle3:2,eagle3:3"
QUICK = {
    "fixed": "suffix:2",
    "formats": "auto",
    "per_column": 1,
    "max_tokens": 8,
    "entropy_prompts": 1,
    "groups": 1,
    "batch_sizes": "1,2",
    "repeats": 1,
    "minutes": 0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to measure. See the help texts of the command line."""

    model: str
    device: str
    formats: tuple[str, ...]
    model_impl: str
    threads: int | None
    subject: dict[str, Any]
    fixed: tuple[dict[str, Any], ...]
    draft: str | None
    parts: tuple[str, ...]
    peers: tuple[str, ...]
    files: dict[str, Path]
    work_dir: Path
    prompts: tuple[Path, ...]
    per_column: int
    max_prompt_tokens: int
    max_tokens: int
    decodings: tuple[str, ...]
    temperature: float
    entropy_prompts: int
    entropy_temperature: float
    groups: int
    batch_sizes: tuple[int, ...]
    batch_prompt_tokens: int
    batch_decodings: tuple[str, ...]
    quick: bool
    repeats: int
    minutes: float
    seed: int
    json: Path | None


def parse_options(description: str, arguments: Sequence[str] | None = None) -> Options:
    """Options from the command line; exits with a message for values that make no sense."""
    parts = (_add_subject, _add_peers, _add_prompts, _add_batches, _add_effort)
    parser = BenchParser(description, *parts, quick=QUICK)
    values = parser.values(arguments)
    for name, known in (
        ("parts", PARTS),
        ("decodings", DECODINGS),
        ("batch_decodings", DECODINGS),
    ):
        parser.check_known(name, values[name], known)
    parser.check_place("--json", values["json"])
    for name in ("peers", "prompts"):
        values[name] = tuple(values[name] or ())
    values["files"] = dict(values.pop("file") or [])
    return Options(**values)


def _add_subject(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", default="smollm2-135m", help="alias, GGUF file or Hugging Face directory")
    add("--device", default="auto", help="auto, cpu, cuda, ...")
    add("--formats", type=as_list_of(str), default="q4_1,bfloat16", help="of the weights")
    add("--model-impl", default="auto", help="what computes the model: auto, native or torch")
    add("--threads", type=as_count, help="of every engine (without it: each one's own choice)")
    add(
        "--subject",
        type=as_config,
        default="auto",
        metavar="METHOD[:K[:SHAPE]]",
        help="the method that is put to the test",
    )
    add(
        "--fixed",
        type=as_configs,
        default=FIXED,
        metavar="METHOD:K[:SHAPE],...",
        help="what it is compared with besides plain decoding; K may be a range, such as "
        "eagle3:1-6; none: nothing else",
    )
    add("--draft", metavar="DIR", help="trained draft for all methods that take one")
    add("--parts", type=as_list_of(str), default=",".join(PARTS), help="what to measure")


def _add_peers(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--peer",
        dest="peers",
        action="append",
        choices=PEERS,
        help="another engine to run beside, greedy and plain, on the same weights",
    )
    add(
        "--file",
        type=as_format_and_file,
        action="append",
        metavar="FORMAT=FILE",
        help="GGUF file for the peer; may be repeated (without it: the model's own file if it is "
        "in that format, else one that the peer makes of it in --work-dir)",
    )
    add(
        "--work-dir",
        type=Path,
        default=user_cache_path("outpace") / "benchmarks",
        help="where files in other formats are kept",
    )


def _add_prompts(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--prompts",
        type=Path,
        action="append",
        metavar="FILE",
        help="JSON lines with `turns` (the first is used) or `prompt`, and `category`; may be "
        f"repeated (without it: spec_bench_dev.jsonl and humaneval_dev.jsonl in "
        f"${PROMPTS_VARIABLE}, else a built-in set)",
    )
    add("--per-column", type=as_count, default=8, help="most prompts of every category")
    add("--max-prompt-tokens", type=as_count, default=1700, help="longer ones are left out")
    add("--max-tokens", type=as_count, default=128, help="most output tokens of a request")
    add("--decodings", type=as_list_of(str), default=",".join(DECODINGS), help="of part main")
    add("--temperature", type=float, default=0.8, help="of what is sampled, without a seed")
    add("--entropy-prompts", type=as_count, default=24, help="random ones of part entropy")
    add("--entropy-temperature", type=float, default=1.5, help="of part entropy")


def _add_batches(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--groups", type=as_count, default=8, help="most batches of every kind and size")
    add(
        "--batch-sizes",
        type=as_list_of(as_count),
        default="1,2,4,8,16",
        help="requests decoded together in part batch",
    )
    add("--batch-prompt-tokens", type=as_count, default=300, help="longer prompts are left out")
    add("--batch-decodings", type=as_list_of(str), default="greedy", help="of part batch")


def _add_effort(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--quick", action="store_true", help="only see that everything runs")
    add("--repeats", type=as_count, default=3, help="most rounds over everything")
    add(
        "--minutes",
        type=float,
        default=40,
        help="nothing further is begun that would end later; one prompt of every category and "
        "one batch of every kind always run",
    )
    add("--seed", type=int, default=0, help="of the choice of prompts")
    add("--json", type=Path, metavar="FILE", help="write everything measured here")
