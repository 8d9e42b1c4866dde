"""The command line of the step's benchmark."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_path

from harness.arguments import BenchParser
from harness.options import as_count, as_list_of, as_ranges

FORMATS = ("float32", "bfloat16", "q4_1", "q4_0", "q8_0")
PEERS = ("torch", "llama.cpp")
AUTO = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to measure. See the help texts of the command line."""

    model: str
    files: dict[str, Path]
    formats: tuple[str, ...]
    activations: tuple[str, ...]
    kv_cache_dtype: str
    peers: tuple[str, ...]
    rows: tuple[int, ...]
    contexts: tuple[int, ...]
    prefills: tuple[int, ...]
    repeats: int
    prefill_repeats: int
    burst: int
    minutes: float
    threads: int | None
    seed: int
    work_dir: Path
    json: str | None
    plot: Path | None
    show: Path | None


def parse_options(description: str, arguments: Sequence[str] | None = None) -> Options:
    """Options from the command line; exits with a message for values that make no sense."""
    parser = BenchParser(description, _add_subject, _add_effort, _add_output)
    values = parser.values(arguments)
    for name, known in (("formats", FORMATS), ("peers", PEERS)):
        values[name] = tuple(dict.fromkeys(values[name] or ()))
        parser.check_known(name, values[name], known)
    parser.check_rows(values["rows"])
    if values["json"] not in (None, "-"):
        parser.check_place("--json", Path(values["json"]))
    parser.check_place("--plot", values["plot"])
    values["files"] = dict(values.pop("file") or [])
    return Options(**values)


def _add_subject(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", default="smollm2-135m", help="alias, GGUF file or Hugging Face directory")
    add(
        "--file",
        type=as_format_and_file,
        action="append",
        metavar="FORMAT=FILE",
        help="the model's GGUF file in a packed format; may be repeated (without it: its own file "
        "if it is in that format, else one that llama.cpp makes of it in --work-dir)",
    )
    add("--formats", type=as_list_of(str), default=",".join(FORMATS), help="of the weights")
    add(
        "--activations",
        type=as_list_of(str),
        default=AUTO,
        help="what activations become beside packed weights; several are measured side by side",
    )
    add("--kv-cache-dtype", default=AUTO, help="of the native cache")
    add(
        "--peer",
        dest="peers",
        action="append",
        choices=PEERS,
        help="another engine to measure beside, on the same weights; may be repeated",
    )


def _add_effort(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--rows", type=as_ranges, default="1,2,4,8,16,32", help="of passes, such as 1-4,8")
    add("--contexts", type=as_list_of(as_count), default="100,1000,4000", help="cached tokens")
    add("--prefills", type=as_list_of(int), default="512,2048", help="prompt lengths; 0: none")
    add("--repeats", type=as_count, default=9, help="most rounds over everything")
    add("--prefill-repeats", type=as_count, default=3, help="rounds that feed whole prompts too")
    add("--burst", type=as_count, default=3, help="passes in a row, of which the median counts")
    add("--minutes", type=float, default=10, help="no further round is begun that would end later")
    add("--threads", type=as_count, help="of every engine (without it: one for each physical core)")
    add("--seed", type=int, default=0, help="of contexts and of the order of passes")


def _add_output(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--work-dir",
        type=Path,
        default=user_cache_path("outpace") / "benchmarks",
        help="where files in other formats are kept",
    )
    add("--json", metavar="FILE", help="write everything measured here; -: to standard output")
    add("--plot", type=Path, metavar="FILE", help="draw v(n) as SVG")
    add(
        "--show",
        type=Path,
        metavar="FILE",
        help="tell (and draw) an earlier --json, measure nothing",
    )


def as_format_and_file(text: str) -> tuple[str, Path]:
    name, _, path = text.partition("=")
    if name not in FORMATS or not Path(path).is_file():
        raise argparse.ArgumentTypeError(f"{text!r} is not FORMAT=FILE of {', '.join(FORMATS)}")
    return name, Path(path)
