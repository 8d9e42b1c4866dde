"""`outpace plan`: whether a model with its draft fits, from configuration files alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from outpace.cli.answers import dump_json
from outpace.cli.model_options import DEFAULT_MODEL
from outpace.cli.progress import DownloadProgress

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from outpace.measure.plan.planner import DeviceFit, Plan
    from outpace.measure.plan.terms import Term

_DTYPES = "auto|float32|bfloat16|float16|q4_0|q4_1|q8_0|awq|gptq"


@click.command()
@click.option(
    "--target",
    default=DEFAULT_MODEL,
    show_default=True,
    metavar="NAME",
    help="Alias, GGUF file, Hugging Face folder, a config.json alone, or hub id (config.json only "
    "is fetched).",
)
@click.option(
    "--draft",
    metavar="NAME",
    help="What drafts: a model named like --target, or a trained head's folder or config.json.",
)
@click.option(
    "--method",
    metavar="NAME",
    help="How tokens are drafted.  [default: the draft's method, or auto]",
)
@click.option(
    "--dtype",
    default="auto",
    show_default=True,
    metavar=f"[{_DTYPES}]",
    help="What weights are held in; auto is what they are stored in.",
)
@click.option(
    "--draft-dtype",
    metavar="DTYPE",
    help="The same of the draft.  [default: --dtype where that is a plain one, else auto]",
)
@click.option(
    "--group-size",
    type=int,
    default=128,
    show_default=True,
    help="Inputs that share a scale with --dtype awq or gptq; -1: all.",
)
@click.option(
    "--kv-dtype",
    default="auto",
    show_default=True,
    metavar="[auto|float32|bfloat16|float16]",
    help="What keys and values are kept in; auto is float32 with float32 weights, else bfloat16.",
)
@click.option("--batch", type=int, default=1, show_default=True, help="Sequences at a time.")
@click.option(
    "--context",
    type=int,
    help="Tokens of each sequence, prompt and answer together.  [default: as LLM takes it]",
)
@click.option(
    "--num-speculative-tokens",
    type=int,
    help="Draft tokens per step, of a tree all its nodes.  [default: the method's]",
)
@click.option(
    "--devices",
    metavar="SIZES",
    help="Memory of the devices: 24GB, 80GiB, 2x24GB, 24GB,16GB.  [default: what is free here]",
)
@click.option(
    "--tensor-parallel",
    type=int,
    help="Devices that share one target.  [default: all that are given]",
)
@click.option(
    "--draft-tensor-parallel",
    type=int,
    default=1,
    show_default=True,
    help="Devices that share one draft: 1 (each holds all of it) or as many as the target's.",
)
@click.option(
    "--max-num-batched-tokens",
    type=int,
    default=512,
    show_default=True,
    help="Tokens of the largest pass.",
)
@click.option(
    "--reserve",
    type=float,
    default=10.0,
    show_default=True,
    metavar="PERCENT",
    help="Of each device's memory, left alone.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, sizes in bytes.")
def plan(**values: Any) -> None:
    """Say what a model and its draft take in memory, whether that fits, and what would.

    From configuration files alone, the arithmetic shown; no weights are loaded.
    """
    as_json, target, reserve = values["as_json"], values["target"], values["reserve"]
    with DownloadProgress(f"fetching {target}") as progress:
        found, facts = _planned(values, progress)
    if as_json:
        click.echo(dump_json(facts | as_dict(found)))
        return
    from rich.console import Console

    show(found, facts, reserve, Console())


def _planned(values: dict[str, Any], progress: Any) -> tuple[Plan, dict[str, Any]]:
    """The plan, and what it is for."""
    from outpace.measure.plan.devices import parse_devices, this_machine
    from outpace.measure.plan.drafts import read_draft
    from outpace.measure.plan.options import PlanOptions
    from outpace.measure.plan.planner import Planner
    from outpace.measure.plan.source import read_source

    given, shared = values["devices"], values["tensor_parallel"]
    devices = [this_machine()] if given is None else parse_devices(given)
    options = PlanOptions(
        **{
            name: values[name]
            for name in (
                "dtype",
                "draft_dtype",
                "kv_dtype",
                "group_size",
                "batch",
                "context",
                "draft_tensor_parallel",
                "num_speculative_tokens",
                "max_num_batched_tokens",
            )
        },
        tensor_parallel=len(devices) if shared is None else shared,
        reserve_percent=values["reserve"],
    )
    target = read_source(values["target"], progress)
    draft = read_draft(target, values["method"], values["draft"], options, progress)
    facts = {
        "target": target.name,
        "method": draft.method,
        "draft": draft.name or None,
        "dtype": options.dtype,
        "kv_dtype": options.kv_dtype,
        "tensor_parallel": options.tensor_parallel,
        "draft_tensor_parallel": options.draft_tensor_parallel,
        "reserve_percent": options.reserve_percent,
    }
    return Planner(target, draft, options, devices).plan(), facts


def as_dict(plan: Plan) -> dict[str, Any]:
    """A plan as JSON has it; sizes in bytes."""
    return {
        "batch": plan.batch,
        "context": plan.context,
        "context_limit": plan.context_limit,
        "num_speculative_tokens": plan.num_speculative_tokens,
        "num_copies": plan.num_copies,
        "terms": [
            {
                "group": term.group,
                "name": term.name,
                "formula": term.formula,
                "num_bytes": term.num_bytes,
                "device_bytes": term.device_bytes,
            }
            for term in plan.terms
        ],
        "num_bytes": plan.num_bytes,
        "device_bytes": plan.device_bytes,
        "devices": [
            {
                "name": fit.device.name,
                "num_bytes": fit.device.num_bytes,
                "usable_bytes": fit.usable_bytes,
                "needed_bytes": fit.needed_bytes,
                "fits": fit.fits,
            }
            for fit in plan.devices
        ],
        "fits": plan.fits,
        "largest_batch": plan.largest_batch,
        "largest_context": plan.largest_context,
        "notes": list(plan.notes),
    }


def show(plan: Plan, facts: dict[str, Any], reserve: float, console: Console) -> None:
    """Print the table, the verdict for each kind of device, the most that fits, and notes."""
    console.print(_table(plan, facts))
    is_limit = plan.largest_context == plan.context_limit
    limit = " (what the model was made for)" if is_limit else ""
    context = f"{plan.largest_context:,} tokens{limit}" if plan.largest_context else "none fits"
    batch = f"{plan.largest_batch:,}" if plan.largest_batch else "not even one sequence fits"
    lines = [
        *_verdicts(plan.devices, reserve),
        f"Largest batch at {plan.context:,} tokens: {batch}.",
        f"Largest context at batch {plan.batch:,}: {context}.",
        *plan.notes,
    ]
    if plan.num_copies > 1:
        lines.append(f"The devices hold {plan.num_copies} copies, each with its own sequences.")
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _table(plan: Plan, facts: dict[str, Any]) -> Table:
    from rich.table import Table

    drafted = facts["method"] + (f" ({facts['draft']})" if facts["draft"] else "")
    title = (
        f"{facts['target']} with {drafted}, K = {plan.num_speculative_tokens}, "
        f"batch {plan.batch:,}, {plan.context:,} tokens"
    )
    is_split = facts["tensor_parallel"] > 1
    table = Table("what", "arithmetic", title=title)
    for heading in ("in all", "each device") if is_split else ("bytes",):
        table.add_column(heading, justify="right", no_wrap=True)

    def add(name: str, formula: str, num_bytes: int, device_bytes: int) -> None:
        sizes = (num_bytes, device_bytes) if is_split else (device_bytes,)
        table.add_row(name, formula, *map(size, sizes))

    group = None
    for term in plan.terms:
        if term.group != group and group is not None:
            table.add_section()
        group = term.group
        add(term.name, term.formula, term.num_bytes, term.device_bytes)
    table.add_section()
    add("total", _sums(plan.terms), plan.num_bytes, plan.device_bytes)
    return table


def _sums(terms: tuple[Term, ...]) -> str:
    """The groups of a plan as a sum, on the device with the largest share."""
    sums: dict[str, int] = {}
    for term in terms:
        sums[term.group] = sums.get(term.group, 0) + term.device_bytes
    return " + ".join(f"{group} {size(num_bytes)}" for group, num_bytes in sums.items())


def _verdicts(devices: tuple[DeviceFit, ...], reserve: float) -> list[str]:
    lines = []
    for fit in dict.fromkeys(devices):
        count = devices.count(fit)
        where = fit.device.name if count == 1 else f"each of {count} × {fit.device.name}"
        verdict = "Fits" if fit.fits else "Does NOT fit"
        lines.append(
            f"{verdict} in {where}: {size(fit.needed_bytes)} needed, {size(fit.usable_bytes)} "
            f"usable ({reserve:g} % of {size(fit.device.num_bytes)} left alone)."
        )
    return lines


def size(num_bytes: int) -> str:
    """Bytes for people: "1.88 GB", GB being 10^9."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if num_bytes >= scale:
            return f"{num_bytes / scale:.2f} {unit}"
    return f"{num_bytes} B"
