"""The options of `outpace train`: of all kinds of drafts, and of some."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from outpace.cli.draft_directory import DraftDirectory
from outpace.cli.model_options import Decorator, model_options

LOSSES = ("kl", "ce", "tv", "hybrid")
DEFAULT_EPOCHS = 2.0
DEFAULT_SAMPLING = "0:0.5,0.7:0.35,1:0.15"

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_POSITIVE = click.IntRange(min=1)


def common_options(*own: Decorator) -> Decorator:
    """What every kind takes, with the options of one kind among them."""

    def decorate(function: Any) -> Any:
        options = [*_data_options(), *_training_options(), *own, *_machine_options()]
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def _data_options() -> list[Decorator]:
    return [
        model_options("model"),
        click.option(
            "--prompts",
            multiple=True,
            type=_FILE,
            help="Prompts to answer, one on each line, or JSON lines with prompt, turns or "
            "messages (and source, category, license); may be repeated.",
        ),
        click.option(
            "--answers",
            multiple=True,
            type=_FILE,
            help="Answers to train on as they are: JSON lines of a prompt and its answer, as text "
            "or token ids; may be repeated.",
        ),
        click.option(
            "--self-prompts",
            type=click.IntRange(min=0),
            default=0,
            show_default=True,
            help="How many prompts the model is to invent itself.",
        ),
        click.option(
            "--out",
            required=True,
            type=click.Path(path_type=Path),
            help="Directory of the draft; must not exist. Work in progress is kept beside it, in "
            "OUT.work.",
        ),
        click.option("--num-prompts", type=_POSITIVE, help="Most prompts to take from the files."),
        click.option("--per-source", type=_POSITIVE, help="Most prompts of each source."),
        click.option(
            "--limit",
            "limits",
            multiple=True,
            metavar="SOURCE=N",
            help="Most prompts of one source; may be repeated.",
        ),
        click.option(
            "--sampling",
            default=DEFAULT_SAMPLING,
            show_default=True,
            metavar="MIX",
            help="Temperatures of the answers and the share of each.",
        ),
        click.option(
            "--max-tokens",
            type=_POSITIVE,
            default=256,
            show_default=True,
            help="Most tokens of an answer.",
        ),
        click.option(
            "--max-prompt-tokens",
            type=_POSITIVE,
            default=768,
            show_default=True,
            help="Longer prompts are left out.",
        ),
        click.option(
            "--benchmark",
            "benchmarks",
            multiple=True,
            type=_FILE,
            help="A file of questions that the draft will be judged by: prompts that share 13 "
            "words in a row with it are refused; may be repeated.",
        ),
        click.option(
            "--drop-contaminated",
            is_flag=True,
            help="Leave such prompts out instead of refusing them.",
        ),
        click.option(
            "--held-out",
            type=click.FloatRange(min=0, max=1, max_open=True),
            help="Share of the prompts that is not trained on but measured.  [default: about 0.03]",
        ),
    ]


def _training_options() -> list[Decorator]:
    return [
        click.option(
            "--minutes",
            type=click.FloatRange(min=0, min_open=True),
            help="Train for about so long, answers and features not counted.",
        ),
        click.option("--steps", type=_POSITIVE, help="Train for so many steps."),
        click.option(
            "--epochs",
            type=click.FloatRange(min=0, min_open=True),
            help=f"Train so many times on all answers.  [default: {DEFAULT_EPOCHS:g}, where "
            "neither --minutes nor --steps is given]",
        ),
        click.option(
            "--loss", type=click.Choice(LOSSES), default="kl", show_default=True, help="The loss."
        ),
        click.option(
            "--learning-rate",
            "lr_scale",
            type=click.FloatRange(min=0, min_open=True),
            default=1.0,
            show_default=True,
            help="Times the usual learning rates.",
        ),
        click.option(
            "--tokens-per-step",
            type=_POSITIVE,
            default=1900,
            show_default=True,
            help="Answer tokens of a step, about.",
        ),
        click.option(
            "--patience",
            type=click.IntRange(min=0),
            default=4,
            show_default=True,
            help="Stop after so many evaluations without a better one; 0 never does.",
        ),
        click.option(
            "--checkpoint-minutes",
            type=click.FloatRange(min=0),
            default=3.0,
            show_default=True,
            help="How often training is put on disk: what an interruption costs at most.",
        ),
        click.option(
            "--init",
            type=DraftDirectory(),
            help="A draft of the same kind to go on from, for example to fit it to prompts of a "
            "domain: its acceptance on them is reported before and after. Also the name of one "
            "that comes with this package: smollm2-135m-eagle3.",
        ),
        click.option(
            "--general-prompts",
            "general",
            multiple=True,
            type=_FILE,
            help="With --init: other prompts, or answers, on which to report both as well; may be "
            "repeated.",
        ),
    ]


def _machine_options() -> list[Decorator]:
    return [
        model_options("dtype", "model_impl"),
        click.option(
            "--seed",
            type=click.IntRange(min=0),
            default=0,
            show_default=True,
            help="Of all randomness.",
        ),
        model_options("threads"),
        click.option(
            "--keep-data",
            is_flag=True,
            help="Keep OUT.work once the draft is written; its answers.jsonl can be given to "
            "another run as --answers.",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end."),
    ]


_DRAFT_VOCABULARY = click.option(
    "--draft-vocab-size",
    type=_POSITIVE,
    help="How many of the target's tokens it can draft, the most frequent ones.  "
    "[default: 12288, or the target's; with --init that draft's]",
)
_TTT_STEPS = click.option(
    "--ttt-steps",
    type=_POSITIVE,
    help="Draft steps that it is trained to make one after the other.  [default: 5]",
)
_TRAIN_HEAD = click.option(
    "--train-head",
    is_flag=True,
    default=None,
    help="Train the output head too, instead of taking the target's; it is then stored.",
)
_INNER = click.option(
    "--intermediate-size", type=_POSITIVE, help="Neurons of its MLP.  [default: the target's]"
)
_KV_HEADS = click.option(
    "--num-kv-heads", type=_POSITIVE, help="Key and value heads.  [default: the target's]"
)

EAGLE = (_DRAFT_VOCABULARY, _TTT_STEPS, _TRAIN_HEAD, _INNER, _KV_HEADS)
MEDUSA = (
    _DRAFT_VOCABULARY,
    click.option("--num-heads", type=_POSITIVE, help="How many tokens it drafts.  [default: 3]"),
)
DRAFT_MODEL = (
    click.option(
        "--cost",
        type=click.FloatRange(min=0, max=1, min_open=True, max_open=True),
        help="What a draft step may cost, of a target pass; a size is proposed.  [default: 0.1]",
    ),
    click.option("--hidden-size", type=_POSITIVE, help="Its width, instead of the proposed one."),
    click.option("--num-layers", type=_POSITIVE, help="Its depth, instead of the proposed one."),
)
EARLY_EXIT = (
    _DRAFT_VOCABULARY,
    click.option(
        "--layer",
        type=_POSITIVE,
        help="How many of the target's layers draft.  [default: half of them]",
    ),
)
