"""Benchmark of quality: formats of weights and activations against float32, beside transformers.

    python benchmarks/quality.py --json quality.json

What `outpace measure-quality` does, with one more row: `transformers` in bfloat16, on a directory
that it writes from the same GGUF file. A choice of activations is good enough to be the default if
its greedy choices agree with float32 at least as often as those of that row.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import sys
import tempfile
from contextlib import redirect_stderr
from importlib import import_module
from pathlib import Path
from pydoc_data import topics
from typing import Any

import torch
from harness.options import as_count
from harness.progress import BenchProgress
from harness.step.weights import is_packed
from harness.tables import new_table, show_header, show_table
from platformdirs import user_cache_path
from rich.console import Console

from outpace.errors import OutpaceError
from outpace.measure.bench.peers.weights import main_format
from outpace.measure.configurations import (
    Comparison,
    Configuration,
    compare_configurations,
    comparison_json,
)
from outpace.measure.provenance import describe
from outpace.measure.texts import read_texts
from outpace.models.hub import names
from outpace.models.native.formats import ACTIVATIONS
from outpace.models.open import open_checkpoint

PLAIN_WIDTH = 150
REFERENCE = Configuration("float32")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--text",
        type=Path,
        action="append",
        metavar="FILE",
        help="prose, or prompts as JSON lines; may be repeated (without it: the language "
        "reference that comes with Python)",
    )
    add("--model", default="smollm2-135m", help="alias or GGUF file")
    add(
        "--compare",
        action="append",
        metavar="SETTINGS",
        help="as of `outpace measure-quality`; may be repeated (without it: bfloat16 and the "
        "file's own format with every kind of activations)",
    )
    add("--no-transformers", action="store_true", help="leave transformers out")
    add("--window", type=as_count, default=512, help="tokens that are read together")
    add("--max-tokens", type=as_count, default=8192, help="what is beyond them is left out")
    add("--threads", type=as_count, help="of every engine")
    add("--work-dir", type=Path, default=user_cache_path("outpace") / "benchmarks")
    add("--json", type=Path, metavar="FILE", help="write everything measured here")
    return parser.parse_args()


def ways_of(options: argparse.Namespace, path: Path) -> list[Configuration]:
    """What to compare, transformers last."""
    if options.compare:
        ways = [Configuration.parse(text) for text in options.compare]
    else:
        ways = [Configuration("bfloat16"), Configuration("bfloat16", model_impl="torch")]
        own = main_format(path)
        if own is not None and is_packed(own):
            ways += [Configuration(own, activations=kind) for kind in ACTIVATIONS]
    if not options.no_transformers:
        folder = str(as_directory(path, options.work_dir))
        ways += [
            Configuration(dtype, model_impl="transformers", model=folder)
            for dtype in ("bfloat16", "float32")
        ]
    return ways


def as_directory(path: Path, folder: Path) -> Path:
    """The model of a GGUF file as transformers saves it, in float32, made once."""
    if path.is_dir():
        return path
    target = folder / f"{path.stem}.{open_checkpoint(path).fingerprint()[:12]}.transformers"
    if target.exists():
        return target
    transformers: Any = import_module("transformers")
    transformers.utils.logging.set_verbosity_error()
    folder.mkdir(parents=True, exist_ok=True)
    source = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        made = Path(temporary) / "model"
        # Reading and writing draw bars of their own, for which there is no switch.
        with redirect_stderr(io.StringIO()):
            transformers.AutoTokenizer.from_pretrained(**source).save_pretrained(made)
            read = transformers.AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
            # It refuses to save what it has read from a GGUF file: another model takes its weights.
            del read.config.quantization_config
            model = transformers.AutoModelForCausalLM.from_config(read.config, dtype=torch.float32)
            model.load_state_dict(read.state_dict())
            model.save_pretrained(made)
        made.rename(target)
    return target


def show(found: list[Comparison], console: Console) -> None:
    table = new_table(
        "computed in", "perplexity", "same choice", "95 % interval", "KL", "largest KL"
    )
    first = found[0].quality
    table.add_row(REFERENCE.label, f"{first.reference_perplexity:.4f}")
    for comparison in found:
        row = comparison.quality
        low, high = row.same_choice_interval
        table.add_row(
            shown_label(comparison),
            f"{row.perplexity:.4f}",
            f"{row.same_choice_share:.2%}",
            f"{100 * low:.2f}-{high:.2%}",
            f"{row.mean_kl:.6f}",
            f"{row.max_kl:.4f}",
        )
    show_table(
        f"Against {REFERENCE.label}, {first.num_tokens} positions",
        table,
        "Same choice: the same most probable next token. KL: divergence, in nats.",
        console,
    )


def shown_label(comparison: Comparison) -> str:
    """Without the directory, which is the same model."""
    return comparison.label.partition(",model=")[0]


def main() -> int:
    options = parse()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    console = Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH)
    header = describe()
    show_header({"model": options.model, **header}, console, "Benchmark of quality")
    texts = read_texts(options.text) if options.text else ["\n\n".join(topics.topics.values())]
    try:
        with BenchProgress() as progress:
            progress.describe(f"loading {options.model}")
            path = names.resolve(options.model)
            found = compare_configurations(
                options.model,
                REFERENCE,
                ways_of(options, path),
                texts,
                window_len=options.window,
                max_tokens=options.max_tokens,
                threads=options.threads,
                progress=progress.at,
            )
    except OutpaceError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    show(found, console)
    if options.json is not None:
        results = {
            "header": header,
            "model": options.model,
            "window": options.window,
            "text_sha256": hashlib.sha256("\n\n".join(texts).encode()).hexdigest(),
            **comparison_json([relabelled(comparison) for comparison in found]),
        }
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0


def relabelled(comparison: Comparison) -> Comparison:
    return Comparison(shown_label(comparison), comparison.runs_on, comparison.quality)


if __name__ == "__main__":
    sys.exit(main())
