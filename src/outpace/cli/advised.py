"""The option --config: run a model as `outpace advise` says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outpace.cli.given import is_given
from outpace.errors import OptionError

if TYPE_CHECKING:
    from outpace import LLM
    from outpace.measure.advise.configuration import AdvisedConfig

config_option = click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Model, dtype and method from a file that `outpace advise --write` made.",
)


def advised(values: dict[str, Any]) -> AdvisedConfig | None:
    """What --config holds; None where it was not given."""
    from outpace.measure.advise.configuration import read_config

    path = values.get("config")
    return None if path is None else read_config(path)


def with_advised_model(values: dict[str, Any], config: AdvisedConfig) -> dict[str, Any]:
    """The options with the model and dtype of the file. Raises OptionError where a flag says
    otherwise."""
    from outpace.measure.advise.configuration import names_same_model

    model, dtype = values["model"], values["dtype"]
    if is_given("model") and not names_same_model(model, config.model):
        raise OptionError(_contradiction("--model", model, values["config"], config.model))
    if dtype not in ("auto", config.dtype):
        raise OptionError(_contradiction("--dtype", dtype, values["config"], config.dtype))
    return values | {"model": config.model, "dtype": config.dtype}


def advised_method(
    values: dict[str, Any], config: AdvisedConfig, flags: dict[str, str], given: dict[str, Any]
) -> dict[str, Any]:
    """The speculative configuration of the file. Raises OptionError where what was given beside it
    says otherwise.

    flags: what messages call each key. given: by key.
    """
    advised = dict(config.speculative_config)
    for key, value in given.items():
        if key not in advised:
            raise OptionError(
                f"{flags[key]} {value} is not what {values['config']} says, which leaves "
                f"{key!r} alone; give one of the two"
            )
        if value != advised[key]:
            raise OptionError(_contradiction(flags[key], value, values["config"], advised[key]))
    return advised


def check_advised_model(llm: LLM, config: AdvisedConfig, path: Path) -> LLM:
    """The engine, if its model is the one that was measured; raises ModelError otherwise."""
    try:
        config.check(llm.fingerprint, llm.model_name, str(path))
    except BaseException:
        llm.close()
        raise
    return llm


def _contradiction(flag: str, value: Any, path: Path, advised: Any) -> str:
    return f"{flag} {value} contradicts {path}, which says {advised}; give one of the two"
