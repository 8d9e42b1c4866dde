"""What a trained draft says of itself: a model card for people, training.json for programs."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Mapping
from collections.abc import Sequence as List
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from outpace.files import without_folders
from outpace.models.hub.aliases import published_name
from outpace.training.answers import Answer
from outpace.training.recipe import Outcome, Recipe
from outpace.training.run_directory import write_json

CARD, RECORD = "README.md", "training.json"
FORMAT = 1
_TITLES = {
    "eagle3": "EAGLE-3 head",
    "eagle": "EAGLE head",
    "medusa": "Medusa heads",
    "early_exit": "Trained exit",
    "draft_model": "Draft model",
}
_NO_LICENSE = "not stated"


def write_card(
    directory: Path, recipe: Recipe, outcome: Outcome, *, version: str, command: List[str]
) -> dict[str, Any]:
    """Write README.md and training.json into a draft's directory; returns the latter's content.

    version: of this package. command: the command line's words; paths among them are reduced to
    their last part.
    """
    record = training_record(recipe, outcome, version=version, command=command)
    write_json(directory / RECORD, record)
    temporary = directory / f".{CARD}.partial"
    temporary.write_text(card_text(record), encoding="utf-8")
    temporary.replace(directory / CARD)
    return record


def training_record(
    recipe: Recipe, outcome: Outcome, *, version: str, command: List[str]
) -> dict[str, Any]:
    """Everything that is known of a run, as JSON."""
    target, data, result = recipe.target, recipe.data, outcome.result
    return {
        "format": FORMAT,
        "method": recipe.settings.kind,
        "written": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": " ".join(map(without_folders, command)),
        "target": {
            "name": without_folders(target.name),
            "published_as": without_folders(published_name(target.name)),
            "fingerprint": target.fingerprint,
            "tokenizer_fingerprint": target.tokenizer.fingerprint(),
            "dtype": target.dtype,
            "runs_on": target.model_impl,
        },
        "draft": {
            **recipe.settings.as_json(),
            "trained_parameters": outcome.num_parameters,
            "captured_layers": list(outcome.capture),
        },
        "data": {
            "sources": _sources(outcome.answers),
            "answers": len(outcome.answers),
            "answer_tokens": sum(len(a.answer_token_ids) for a in outcome.answers),
            "answers_by_temperature": _by_temperature(outcome.answers),
            "answers_given": [path.name for path in data.answers],
            "max_tokens": data.max_tokens,
            "max_prompt_tokens": data.max_prompt_tokens,
            "sequences": outcome.num_sequences,
            "held_out_sequences": outcome.num_held_out,
            "checked_against": [path.name for path in data.benchmarks],
            "left_out": outcome.dropped,
        },
        "training": {
            **{key: value for key, value in recipe.training.as_dict().items() if value is not None},
            "steps": result.steps,
            "answer_tokens_read": result.tokens,
            "seconds": round(result.seconds, 1),
            "best_step": result.best_step,
            "stopped_early": result.stopped_early,
        },
        "before": {name: asdict(each) for name, each in outcome.before.items()},
        "after": {name: asdict(each) for name, each in outcome.after.items()},
        "versions": {
            "outpace": version,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "hardware": hardware(),
    }


def hardware() -> str:
    """The machine in general words."""
    return (
        f"{platform.system()} on {platform.machine()}, {os.cpu_count()} logical processors, "
        f"{torch.get_num_threads()} threads for training"
    )


def card_text(record: Mapping[str, Any]) -> str:
    """The model card, in Markdown."""
    target, data, draft = record["target"], record["data"], record["draft"]
    method = record["method"]
    lines = [
        f"# {_TITLES[method]} for {target['name']}",
        "",
        f"Drafts for {target['name']} by speculative decoding (method `{method}`). What it "
        "proposes is checked by the target: it decides how fast answers come, not what they say.",
        "",
        "```python",
        "from outpace import LLM",
        "",
        f'config = {{"method": "{method}", "model": "THIS DIRECTORY"}}',
        f'llm = LLM("{target["name"]}", speculative_config=config)',
        "```",
        "",
        "## Acceptance",
        "",
        *_acceptance(record),
        "",
        "## Data",
        "",
        *_data(data),
        "",
        "## Training",
        "",
        *_training(record["training"], draft),
        "",
        "## Provenance",
        "",
        *_facts(
            {
                "Target": f"{target['name']}, {target['dtype']} on {target['runs_on']}",
                "Target's name elsewhere": target["published_as"],
                "Target's fingerprint": f"`{target['fingerprint']}`",
                "Tokenizer's fingerprint": f"`{target['tokenizer_fingerprint']}`",
                "Versions": ", ".join(f"{k} {v}" for k, v in record["versions"].items()),
                "Machine": record["hardware"],
                "Written": record["written"],
                "Command": f"`{record['command']}`",
            }
        ),
        "",
    ]
    return "\n".join(lines)


def _acceptance(record: Mapping[str, Any]) -> list[str]:
    """Tables of evaluations, before and after where there are both."""
    if not record["after"]:
        return ["Nothing was held out: not measured."]
    lines = [
        "Greedy decoding replayed on the target's own answers to prompts that were not trained on. "
        "K draft tokens a step; output tokens per target pass, its own token included (plain "
        "decoding: 1.00); then how often the draft token at each position was accepted, given that "
        "all before it were.",
        "",
    ]
    names = list(record["after"])
    count = len(record["after"][names[0]]["acceptance"])
    heads = [*(f"K = {k}" for k in range(1, count + 1)), *(f"at {k}" for k in range(1, count + 1))]
    lines += [f"| | {' | '.join(heads)} |", "|-|" + "-|" * len(heads)]
    for name in names:
        for when in ("before", "after"):
            found = record[when].get(name)
            if found is not None:
                label = f"{name}, {when}" if record["before"] else name
                lines.append(_acceptance_row(label, found))
    return lines


def _acceptance_row(label: str, found: Mapping[str, Any]) -> str:
    lengths = [f"{value:.2f}" for value in found["tokens_per_cycle"]]
    rates = [f"{value:.3f}" for value in found["acceptance"]]
    return f"| {label} | {' | '.join([*lengths, *rates])} |"


def _data(data: Mapping[str, Any]) -> list[str]:
    lines = [
        f"{data['answers']:,} answers of the target, {data['answer_tokens']:,} tokens; "
        f"{data['held_out_sequences']} of {data['sequences']:,} sequences held out by their "
        "prompts.",
        "",
        "| source of the prompts | licence | answers | answer tokens |",
        "|-|-|-|-|",
    ]
    for row in data["sources"]:
        lines.append(
            f"| {row['source']} | {row['license']} | {row['answers']:,} | "
            f"{row['answer_tokens']:,} |"
        )
    mix = ", ".join(f"{count:,} at {t}" for t, count in data["answers_by_temperature"].items())
    facts = {"Temperatures": mix}
    if data["answers_given"]:
        facts["Given, not generated by this run"] = ", ".join(data["answers_given"])
    checked = ", ".join(data["checked_against"]) or "nothing"
    facts["Checked for questions of"] = checked
    if data["left_out"]:
        facts["Left out"] = data["left_out"]
    return [*lines, "", *_facts(facts)]


def _training(training: Mapping[str, Any], draft: Mapping[str, Any]) -> list[str]:
    ended = "stopped early" if training["stopped_early"] else "to its planned end"
    return [
        f"{training['steps']:,} steps over {training['answer_tokens_read']:,} answer tokens in "
        f"{training['seconds'] / 60:.1f} minutes, {ended}; the parameters are those of step "
        f"{training['best_step'] or training['steps']:,}.",
        "",
        *_facts({key.replace("_", " "): value for key, value in {**draft, **training}.items()}),
    ]


def _facts(values: Mapping[str, Any]) -> list[str]:
    return [f"- {key}: {value}" for key, value in values.items()]


def _sources(answers: List[Answer]) -> list[dict[str, Any]]:
    counts: Counter[str] = Counter(answer.source for answer in answers)
    tokens: Counter[str] = Counter()
    licenses: dict[str, set[str]] = {source: set() for source in counts}
    for answer in answers:
        tokens[answer.source] += len(answer.answer_token_ids)
        licenses[answer.source].add(answer.license or _NO_LICENSE)
    return [
        {
            "source": source,
            "license": "; ".join(sorted(licenses[source])),
            "answers": count,
            "answer_tokens": tokens[source],
        }
        for source, count in counts.most_common()
    ]


def _by_temperature(answers: List[Answer]) -> dict[str, int]:
    counts = Counter(answer.temperature for answer in answers)
    return {f"{temperature:g}": count for temperature, count in sorted(counts.items())}
