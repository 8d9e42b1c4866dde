"""Command-line options, derived from the classes they configure, and what is built from them."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

import click

from outpace.cli.advised import (
    advised,
    advised_method,
    check_advised_model,
    config_option,
    with_advised_model,
)
from outpace.cli.model_options import Decorator, model_options
from outpace.errors import OptionError
from outpace.params import SamplingParams
from outpace.strict_json import without_duplicates

if TYPE_CHECKING:
    from outpace import LLM

# Keys of a speculative configuration that every method understands.
METHOD_FLAGS = {
    "method": "--method",
    "num_speculative_tokens": "--num-speculative-tokens",
    "model": "--speculative-model",
    "acceptance_method": "--acceptance-method",
}


class _Method(click.Choice):  # type: ignore[type-arg]
    """One of the drafting methods. Choice's own message would show their names with - for _."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        for name in self.choices:
            if str(value).replace("-", "_") == name:
                return name
        return self.fail(f"{value!r} is not one of {', '.join(self.choices)}.", param, ctx)


def engine_options(function: Any) -> Any:
    """Add the options of the model, the drafter and the machine."""
    from outpace.drafters import DEFAULT_METHOD, available_methods

    plain = [
        model_options("model"),
        click.option(
            "--method",
            type=_Method(available_methods()),
            metavar=f"[{'|'.join(available_methods())}]",
            help="How tokens are drafted; none decodes plainly.  "
            f"[default: {DEFAULT_METHOD}, or draft_model with --speculative-model]",
        ),
        click.option(
            "--num-speculative-tokens",
            type=int,
            help="Most draft tokens per step, of a tree all its nodes.  "
            f"[{_defaults_of('num_speculative_tokens')}]",
        ),
        click.option(
            "--acceptance-method",
            type=click.Choice(["exact", "typical"]),
            help="How draft tokens are accepted; typical is NOT lossless.  [default: exact]",
        ),
        click.option(
            "--speculative-model",
            metavar="NAME",
            help="What drafts: a smaller model, named like --model, or a trained draft's folder.",
        ),
        click.option(
            "--speculative-config",
            metavar="JSON",
            help="The drafter's configuration as one JSON object.",
        ),
        *_drafter_options(),
        config_option,
        model_options("dtype", "model_impl", "kv_cache_dtype", "activations"),
        click.option(
            "--max-model-len",
            type=int,
            help="Most tokens of prompt and answer together.  [default: the model's]",
        ),
        click.option(
            "--device",
            default="auto",
            show_default=True,
            metavar="DEVICE",
            help="Where to compute: cpu, cuda, cuda:1, ...; auto takes a GPU if there is one.",
        ),
        model_options("threads"),
    ]
    for decorate in reversed(plain):
        function = decorate(function)
    return function


def build_speculative_config(values: dict[str, Any]) -> dict[str, Any] | None:
    """The drafter's configuration from flags and JSON together, or from --config; None where there
    is none of them.

    Raises OptionError for malformed JSON, for a key given both ways, for what contradicts --config,
    and for flags of another method than the default where none is named.
    """
    flags = {
        key: (flag, values[_dest(flag)])
        for key, flag in [*METHOD_FLAGS.items(), *_drafter_flags().items()]
        if values[_dest(flag)] is not None
    }
    config = _parse_config(values["speculative_config"])
    for key, (flag, _) in flags.items():
        if key in config:
            raise OptionError(f"{flag} and --speculative-config both give {key!r}; give it once")
    config |= {key: value for key, (_, value) in flags.items()}
    file = advised(values)
    if file is not None:
        named = dict.fromkeys(config, "--speculative-config")
        named |= {key: flag for key, (flag, _) in flags.items()}
        return advised_method(values, file, named, config)
    if "method" not in config and "model" not in config:
        _refuse_flags_of_others({key: flag for key, (flag, _) in flags.items()})
    return config or None


def _refuse_flags_of_others(flags: dict[str, str]) -> None:
    """Raise OptionError for a flag that the default method does not have. flags: by key."""
    from outpace.drafters import DEFAULT_METHOD, options_of

    known = {field.name for field in dataclasses.fields(options_of(DEFAULT_METHOD))}
    others = [flag for key, flag in flags.items() if key not in known | METHOD_FLAGS.keys()]
    if others:
        raise OptionError(
            f"{', '.join(others)} configures another method than {DEFAULT_METHOD!r}, which drafts "
            "unless one is named; add --method"
        )


def check_stdin() -> None:
    """Raise OptionError where standard input was closed by whoever started this process."""
    if sys.stdin is None:
        raise OptionError("standard input is closed; connect a terminal, a file or a pipe to it")


def open_llm(values: dict[str, Any], request_methods: Sequence[str] = (), **further: Any) -> LLM:
    """Load the model that the options name, showing how far a download or packing is.

    request_methods: methods besides the engine's own that its requests may name. further: what
    else `LLM` takes that no option gives.
    """
    config, file = build_speculative_config(values), advised(values)
    if file is not None:
        values = with_advised_model(values, file)

    from outpace import LLM
    from outpace.cli.progress import DownloadProgress

    with DownloadProgress(f"loading {values['model']}") as progress:
        llm = LLM(
            values["model"],
            speculative_config=config,
            request_methods=request_methods,
            dtype=values["dtype"],
            model_impl=values["model_impl"],
            kv_cache_dtype=values["kv_cache_dtype"],
            activations=values["activations"],
            threads=values["threads"],
            max_model_len=values["max_model_len"],
            device=values["device"],
            max_num_seqs=values.get("max_num_seqs") or values.get("n") or 1,
            progress=progress,
            **further,
        )
    return llm if file is None else check_advised_model(llm, file, values["config"])


def _parse_config(text: str | None) -> dict[str, Any]:
    return {} if text is None else parse_json_object(text)


def parse_json_object(text: str) -> dict[str, Any]:
    """The value of --speculative-config. Raises OptionError unless it is a JSON object."""
    try:
        config = json.loads(text, object_pairs_hook=without_duplicates)
    except (ValueError, RecursionError) as error:
        reason = str(error).partition(";")[0]
        raise OptionError(f"--speculative-config is not valid JSON: {reason}") from error
    if not isinstance(config, dict):
        raise OptionError(
            f'--speculative-config must be an object such as {{"method": "ngram"}}, got {text}'
        )
    return config


def _drafter_fields() -> dict[str, tuple[Any, str]]:
    """Option name -> (type, help), over all drafters."""
    from outpace.drafters import available_methods, options_of

    found: dict[str, tuple[Any, str]] = {}
    for method in available_methods():
        hints = get_type_hints(options_of(method))
        for field in dataclasses.fields(options_of(method)):
            if field.name in METHOD_FLAGS:
                continue
            found.setdefault(field.name, (hints[field.name], field.metadata.get("help", "")))
    return found


def _drafter_flags() -> dict[str, str]:
    """Option name -> its flag; a name that means something else here gets a prefix."""
    taken = {field.name for field in dataclasses.fields(SamplingParams)}
    taken |= {
        "dtype",
        "model_impl",
        "kv_cache_dtype",
        "activations",
        "config",
        "max_model_len",
        "device",
        "threads",
        "json",
        "raw",
        "repeats",
        "system",
    }
    return {
        name: flag_of(f"speculative_{name}" if name in taken else name)
        for name in _drafter_fields()
    }


def _drafter_options() -> list[Decorator]:
    flags = _drafter_flags()
    return [
        option_of(_dest(flags[name]), flags[name], hint, f"{text}.  [{_defaults_of(name)}]")("")
        for name, (hint, text) in _drafter_fields().items()
    ]


def _defaults_of(name: str) -> str:
    """Which methods have an option, each with its default where there is one."""
    from outpace.drafters import available_methods, options_of

    found = []
    for method in available_methods():
        for field in dataclasses.fields(options_of(method)):
            if field.name == name and method != "none":
                has_default = field.default not in (None, dataclasses.MISSING)
                found.append(f"{method}: {field.default}" if has_default else method)
    return ", ".join(found)


def option_of(name: str, flag: str, hint: Any, help_text: str) -> Callable[[object], Decorator]:
    """An option for a field of type `hint`: None or () where it was not given.

    Returns a function of the default to show, so that the defaults stay where they belong.
    """
    kind, multiple = _scalar_type(hint)
    settings: dict[str, Any] = {"multiple": multiple}
    if kind is bool:
        flag, settings = f"{flag}/--no-{flag.removeprefix('--')}", {"default": None}
    elif get_origin(kind) is Literal:
        settings["type"] = click.Choice([str(choice) for choice in get_args(kind)])
    else:
        settings["type"] = kind

    sentence = help_text.strip()
    sentence = sentence[:1].upper() + sentence[1:]

    def with_default(shown: object) -> Decorator:
        suffix = "" if shown == "" else f"  [default: {shown}]"
        return click.option(flag, name, help=sentence + suffix, **settings)

    return with_default


def _scalar_type(hint: Any) -> tuple[Any, bool]:
    """`int | None` -> (int, False); `tuple[int, ...] | list[int]` -> (int, True)."""
    parts = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    parts = tuple(part for part in parts if part is not type(None))
    for part in parts:
        if get_origin(part) in (tuple, list):
            return get_args(part)[0], True
    assert len(parts) == 1, f"no command-line form for {hint}"
    return parts[0], False


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def _dest(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def help_from_docstring(cls: type) -> dict[str, str]:
    """The `name: text` and `name, other: text` entries of a docstring, one per field."""
    names = {field.name for field in dataclasses.fields(cls)}
    texts: dict[str, str] = {}
    for block in re.split(r"\n(?=    \w)|\n\n", cls.__doc__ or ""):
        head, colon, text = block.partition(":")
        listed = [name.strip() for name in head.split(",")]
        if colon and names.issuperset(listed):
            # What None means cannot be typed on a command line.
            typed = re.sub(r" \(None: [^)]*\)", "", " ".join(text.split()))
            texts |= dict.fromkeys(listed, typed)
    return texts
