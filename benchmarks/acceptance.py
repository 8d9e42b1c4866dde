"""Acceptance of trained drafts over whole sets of prompts, by kind of prompt and position.

    python benchmarks/acceptance.py --draft smollm2-135m-eagle3 --draft my-medusa --json found.json

The target answers every prompt greedily, several at a time; each draft is then replayed on these
answers, which for greedy decoding is exact: a cycle drafts K tokens after the newest one, keeps
those that are the answer's, and adds one of the target's own. No time is measured, so a busy
machine does no harm, and what was done is kept in --work-dir: a run that is repeated goes on.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from harness.options import as_count
from harness.progress import BenchProgress
from harness.tables import new_table, show_header, show_table
from platformdirs import user_cache_path
from rich.console import Console

from outpace import LLM
from outpace.errors import OptionError, OutpaceError
from outpace.files import check_writable, write_whole
from outpace.heads.bundled import find_draft
from outpace.heads.kinds import detect_kind
from outpace.heads.target_parts import TargetParts
from outpace.measure.generator import EngineGenerator
from outpace.measure.prompts import default_files, read_questions
from outpace.measure.provenance import describe
from outpace.models.load import LoadedModel, load_model
from outpace.runner import Runner
from outpace.training.answers import Answer, AnswerOptions, SamplingMix, generate_answers
from outpace.training.capture import capture_features
from outpace.training.evaluation import evaluate
from outpace.training.options import Evaluation
from outpace.training.prompts import Prompt
from outpace.training.store import FeatureStore, Header
from outpace.training.trainees import DraftSettings, captured_layers, make_trainee

PLAIN_WIDTH = 150
GREEDY = SamplingMix(((0.0, 1.0),))
COLUMNS = "mean of columns"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--draft",
        action="append",
        required=True,
        metavar="DIR",
        help="directory of a draft, or the name of one of the package; may be repeated",
    )
    add("--model", default="smollm2-135m", help="the target: alias, file or folder")
    add("--dtype", default="bfloat16", help="what the target is computed in")
    add("--prompts", type=Path, action="append", metavar="FILE", help="may be repeated")
    add("--max-k", type=as_count, default=6, help="longest draft")
    add("--max-tokens", type=as_count, default=128, help="of an answer")
    add("--max-prompt-tokens", type=as_count, default=1000, help="longer prompts are left out")
    add("--batch", type=as_count, default=16, help="answers that are generated together")
    add("--threads", type=as_count, help="processor threads")
    add("--work-dir", type=Path, default=user_cache_path("outpace") / "benchmarks" / "acceptance")
    add("--json", type=Path, metavar="FILE", help="write everything found here")
    return parser.parse_args()


class Replay:
    """The target's answers, and drafts on them."""

    def __init__(
        self,
        options: argparse.Namespace,
        directories: Sequence[Path],
        progress: BenchProgress,
    ) -> None:
        self._options, self._progress = options, progress
        self._target: LoadedModel = load_model(
            options.model, dtype=options.dtype, threads=options.threads
        )
        self._parts = TargetParts(self._target)
        wanted = options.max_prompt_tokens + options.max_tokens
        self._context = min(wanted, self._target.max_len)
        # Before half an hour of answers.
        self._drafts = [DraftSettings(kind=detect_kind(path), init=path) for path in directories]
        for settings in self._drafts:
            settings.check(self._parts)
        self.answers = self._answers()
        if not self.answers:
            raise OptionError(f"no prompt has at most {options.max_prompt_tokens} tokens")

    def _answers(self) -> list[Answer]:
        options, target = self._options, self._target
        prompts = [
            Prompt(question.messages, question.category)
            for question in read_questions(options.prompts or default_files())
        ]
        plan = AnswerOptions(
            target.fingerprint, GREEDY, options.max_tokens, options.max_prompt_tokens
        )
        with LLM(
            target,
            speculative_config={"method": "none"},
            max_model_len=self._context,
            max_num_seqs=options.batch,
        ) as llm:
            return generate_answers(
                prompts,
                EngineGenerator(llm),
                target.tokenizer,
                options.work_dir / f"answers-{plan.run}-{target.dtype}.jsonl",
                plan,
                lambda done, total, _: self._progress.at("answers", done, total),
            )

    def evaluated(self) -> Iterator[dict[str, Evaluation]]:
        """For each draft, by column, in the order of the prompts."""
        layers = [captured_layers(settings, self._parts) for settings in self._drafts]
        store = self._captured({layer for each in layers for layer in each})
        columns = self._columns(store)
        for name, settings in zip(self._options.draft, self._drafts, strict=True):
            yield self._evaluate(name, settings, store, columns)

    def _columns(self, store: FeatureStore) -> dict[str, list[int]]:
        """The sequences of each."""
        keys = {answer.key for answer in self.answers}
        columns: dict[str, list[int]] = {}
        for index in range(len(store)):
            if store.key(index) in keys:
                columns.setdefault(store.source(index), []).append(index)
        return columns

    def _evaluate(
        self,
        draft: str,
        settings: DraftSettings,
        store: FeatureStore,
        columns: dict[str, list[int]],
    ) -> dict[str, Evaluation]:
        trainee = make_trainee(settings, self._parts, store)
        found = {}
        for done, (name, indices) in enumerate(columns.items(), 1):
            found[name] = evaluate(trainee, store, indices, self._options.max_k)
            self._progress.at(f"{draft}: {name}", done, len(columns))
        return found

    def _captured(self, wanted: set[int]) -> FeatureStore:
        """What the target's layers said, kept for the next run that wants the same ones."""
        layers, parts = tuple(sorted(wanted)), self._parts
        said = f"{parts.fingerprint[:12]}-{self._target.dtype}"
        name = f"features-{said}-{'-'.join(map(str, layers))}"
        store = FeatureStore.open_to_write(
            self._options.work_dir / name,
            Header(layers, parts.hidden_size, parts.vocab_size, parts.fingerprint),
        )
        cache = self._target.new_cache(num_rows=8, num_tokens=self._context)
        capture_features(
            self.answers,
            Runner(self._target.decoder, cache),
            store,
            held_out_share=0.0,  # a draft's start is made from sequences that are not
            max_tokens=self._context,
            progress=lambda done, total: self._progress.at("features", done, total),
        )
        return store


def make_folder(path: Path) -> None:
    """Raises OptionError where that is impossible."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(f"the folder {path} cannot be made: {error.strerror}") from None


def directory_of(name: str) -> Path:
    """As `find_draft`; and raises ModelError for a directory without a draft, before the target is
    loaded."""
    found = find_draft(name)
    detect_kind(found)
    return found


def means(found: dict[str, Evaluation]) -> tuple[float, ...]:
    """Acceptance length at K = 1, 2, ...: the mean of the columns, each counting alike."""
    columns = [each.tokens_per_cycle for each in found.values()]
    return tuple(sum(lengths) / len(columns) for lengths in zip(*columns, strict=True))


def show(name: str, found: dict[str, Evaluation], max_k: int, console: Console) -> None:
    lengths = [f"K = {k}" for k in range(1, max_k + 1)]
    positions = [f"at {k}" for k in range(1, max_k + 1)]
    table = new_table("", *lengths, *positions)
    for column, each in found.items():
        cells = [f"{v:.2f}" for v in each.tokens_per_cycle]
        table.add_row(column, *cells, *(f"{v:.3f}" for v in each.acceptance))
    table.add_row(COLUMNS, *(f"{v:.2f}" for v in means(found)))
    show_table(
        name,
        table,
        "Output tokens per target pass with K draft tokens; then how often the draft token at each "
        "position was right, given that all before it were.",
        console,
    )


def record(options: argparse.Namespace, header: Any, replay: Replay, drafts: Any) -> dict[str, Any]:
    counts: dict[str, int] = {}
    for answer in replay.answers:
        counts[answer.source] = counts.get(answer.source, 0) + 1
    return {
        "header": header,
        "options": {name: value for name, value in vars(options).items() if name != "work_dir"},
        "num_prompts": counts,
        "num_answer_tokens": sum(len(answer.answer_token_ids) for answer in replay.answers),
        "drafts": drafts,
    }


def as_plain(found: dict[str, Evaluation]) -> dict[str, Any]:
    values: dict[str, Any] = {
        name: {"tokens_per_cycle": each.tokens_per_cycle, "acceptance": each.acceptance}
        for name, each in found.items()
    }
    return values | {COLUMNS: {"tokens_per_cycle": means(found)}}


def run(options: argparse.Namespace, directories: Sequence[Path]) -> None:
    console = Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH)
    header = describe()
    show_header(header, console, "Acceptance of trained drafts, replayed on greedy answers")
    drafts = {}
    with BenchProgress() as progress:
        replay = Replay(options, directories, progress)
        for draft, found in zip(options.draft, replay.evaluated(), strict=True):
            drafts[draft] = as_plain(found)
            show(draft, found, options.max_k, console)
    if options.json is not None:
        document = record(options, header, replay, drafts)
        write_whole(options.json, json.dumps(document, default=str))


def main() -> int:
    options = parse()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    try:
        if options.json is not None:
            check_writable(options.json)
        directories = [directory_of(name) for name in options.draft]
        make_folder(options.work_dir)
        run(options, directories)
    except OutpaceError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
