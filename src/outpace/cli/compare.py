"""Plain against speculative decoding on one prompt, interleaved in one process."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import click

from outpace.cli.answers import Answer, Prompt, run_request
from outpace.cli.explain import shares, shares_words, steps_by_source
from outpace.errors import OptionError
from outpace.params import SamplingParams

if TYPE_CHECKING:
    from outpace import LLM

WHAT_IS_TIMED = (
    "output tokens after the first step over the time they took (prompt processing left out); "
    "median over the repeats, plain and speculative run in turn after one warm-up of each"
)
# Differences below this share are not called differences.
LEAST_DIFFERENCE = 0.05
# A pass over several rows can be a little cheaper than one over a single row, but not by more:
# a ratio further above the acceptance length has another cause.
MOST_ABOVE_ACCEPTANCE = 1.2


@dataclass(frozen=True, slots=True)
class Comparison:
    """What `--compare` found.

    ids_equal: whether all runs gave the same token ids; None where they need not (sampling
        without a seed, or a lossy rule). lossy: the name of the rule, if drafts were accepted by a
        lossy one. first_difference: index of the first output token that differs.
    plain_speeds, speculative_speeds: tokens/s of each run; empty where the answer was over
        after one step.
    acceptance_length: of the speculative runs together.
    shares: of a method that decides by itself, by source the share of the steps of those runs.
    """

    method: str
    repeats: int
    num_output_tokens: int
    ids_equal: bool | None
    first_difference: int | None
    plain_speeds: list[float]
    speculative_speeds: list[float]
    acceptance_length: float
    lossy: str | None = None
    shares: Mapping[str, float] | None = None

    @property
    def plain_tokens_per_s(self) -> float | None:
        return median(self.plain_speeds) if self.plain_speeds else None

    @property
    def speculative_tokens_per_s(self) -> float | None:
        return median(self.speculative_speeds) if self.speculative_speeds else None

    @property
    def ratio(self) -> float | None:
        if self.plain_tokens_per_s is None or self.speculative_tokens_per_s is None:
            return None
        return self.speculative_tokens_per_s / self.plain_tokens_per_s

    @property
    def is_reliable(self) -> bool:
        """False where the ratio is more than so many tokens per pass can give: the machine was
        busy with something else."""
        ratio = self.ratio
        return ratio is None or ratio <= MOST_ABOVE_ACCEPTANCE * self.acceptance_length


def compare_methods(llm: LLM, prompt: Prompt, params: SamplingParams, repeats: int) -> Comparison:
    """Run both ways `repeats` times in turn, after one warm-up of each.

    Raises OptionError for the method "none", which is what the others are compared with, and for
    several answers at once, which are another workload.
    """
    if params.n != 1:
        raise OptionError(f"--compare times one answer, but --n asks for {params.n}; leave one out")
    if llm.method == "none":
        raise OptionError(
            "--compare needs a drafter to compare with plain decoding, but the method is 'none'; "
            "name another with --method, or leave it out"
        )
    numbers = itertools.count()

    def run(speculative: bool) -> Answer:
        # A salt for each run, so that no drafter copies the answer of the run before.
        salted = {**_as_mapping(prompt), "cache_salt": f"run {next(numbers)}"}
        return run_request(llm, salted, params, speculative=speculative)

    for speculative in (False, True):
        run(speculative)
    log = llm.decisions
    used = steps_by_source(log) if log else {}
    plain: list[Answer] = []
    drafted: list[Answer] = []
    for turn in range(repeats):
        # Each goes first in every other turn, so that a drift of the machine favours neither.
        for speculative in (False, True) if turn % 2 == 0 else (True, False):
            (drafted if speculative else plain).append(run(speculative))
    lossy = drafted[0].output.lossy
    comparable = params.is_greedy or (params.seed is not None and lossy is None)
    differences = [first_difference(plain[0].token_ids, a.token_ids) for a in plain + drafted]
    differing = [place for place in differences if place is not None]
    num_steps = sum(a.output.stats.num_steps for a in drafted)
    num_output = sum(a.output.stats.num_output_tokens for a in drafted)
    return Comparison(
        method=llm.method,
        repeats=repeats,
        num_output_tokens=len(drafted[0].token_ids),
        ids_equal=not differing if comparable else None,
        first_difference=min(differing) if comparable and differing else None,
        plain_speeds=[a.tokens_per_s for a in plain if a.tokens_per_s is not None],
        speculative_speeds=[a.tokens_per_s for a in drafted if a.tokens_per_s is not None],
        acceptance_length=num_output / num_steps if num_steps else 0.0,
        lossy=lossy,
        shares=shares(used, steps_by_source(log)) if log else None,
    )


def _as_mapping(prompt: Prompt) -> dict[str, Any]:
    if isinstance(prompt, dict):
        return prompt
    return {"prompt": prompt} if isinstance(prompt, str) else {"messages": prompt}


def first_difference(left: list[int], right: list[int]) -> int | None:
    """Index of the first differing token; None if the lists are equal."""
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return None if len(left) == len(right) else min(len(left), len(right))


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    values: dict[str, Any] = {
        "method": comparison.method,
        "lossy": comparison.lossy,
        "ids_equal": comparison.ids_equal,
        "plain_tokens_per_s": comparison.plain_tokens_per_s,
        "speculative_tokens_per_s": comparison.speculative_tokens_per_s,
        "ratio": comparison.ratio,
        "acceptance_length": comparison.acceptance_length,
        "repeats": comparison.repeats,
        "num_output_tokens": comparison.num_output_tokens,
        "plain_speeds": comparison.plain_speeds,
        "speculative_speeds": comparison.speculative_speeds,
        "timed": WHAT_IS_TIMED,
    }
    if comparison.shares is not None:
        values["shares"] = dict(comparison.shares)
    if comparison.first_difference is not None:
        values["first_difference"] = comparison.first_difference
    return values


def show_comparison(comparison: Comparison) -> None:
    """Print the table and, in plain words, what it means."""
    from rich.console import Console
    from rich.table import Table

    table = Table("", "tokens/s", "slowest to fastest", "acceptance length", "ratio")
    table.add_row(
        "plain",
        _number(comparison.plain_tokens_per_s),
        _spread(comparison.plain_speeds),
        "1.00",
        "1.00",
    )
    table.add_row(
        comparison.method,
        _number(comparison.speculative_tokens_per_s),
        _spread(comparison.speculative_speeds),
        f"{comparison.acceptance_length:.2f}",
        _number(comparison.ratio),
    )
    Console().print(table)
    if comparison.shares:
        click.echo(f"Drafts by, in share of steps: {shares_words(comparison.shares)}.")
    click.echo(_same_ids_sentence(comparison))
    click.echo(_worth_sentence(comparison))
    click.echo(f"Timed: {WHAT_IS_TIMED}.", err=True)


def _same_ids_sentence(comparison: Comparison) -> str:
    if comparison.lossy is not None:
        return f"Token ids: not comparable. LOSSY: {comparison.lossy}; these are other answers."
    if comparison.ids_equal is None:
        return "Token ids: not comparable (sampling without a seed); add --seed to compare them."
    if comparison.ids_equal:
        return f"Token ids: equal in all runs ({comparison.num_output_tokens} tokens)."
    return (
        f"Token ids: DIFFERENT from output token {comparison.first_difference} on. Either a "
        "rounding tie or a bug; --dtype float64 tells which."
    )


def _worth_sentence(comparison: Comparison) -> str:
    ratio, method = comparison.ratio, comparison.method
    if ratio is None:
        return "Speed: the answer was over after one step; ask for a longer one to compare."
    if not comparison.is_reliable:
        return (
            f"Speed: not reliable. {ratio:.2f} times plain decoding is more than "
            f"{comparison.acceptance_length:.2f} tokens per pass can give; the machine was "
            "probably busy with something else. Run it again, or with more --repeats."
        )
    if comparison.repeats == 1:
        return (
            f"Speed: {method} ran at {ratio:.2f} times plain decoding, once. One run is no "
            "verdict; --repeats 3 or more gives one."
        )
    overlap = _overlap(comparison)
    if overlap or abs(ratio - 1) < LEAST_DIFFERENCE:
        why = "the runs overlap" if overlap else f"less than {LEAST_DIFFERENCE:.0%} apart"
        difference = f"no clear difference between {method} and plain decoding on this prompt"
        return f"Speed: {difference} ({why})."
    if ratio > 1:
        return f"Speed: {method} helps on this prompt, {ratio:.2f} times plain decoding."
    return f"Speed: {method} does not help on this prompt, {ratio:.2f} times plain decoding."


def _overlap(comparison: Comparison) -> bool:
    """Whether some plain run was as fast as some speculative one, and the other way round."""
    plain, drafted = comparison.plain_speeds, comparison.speculative_speeds
    return min(drafted) <= max(plain) and min(plain) <= max(drafted)


def _spread(speeds: list[float]) -> str:
    if len(speeds) == 1:
        return "one run, no spread"
    return f"{min(speeds):.2f} to {max(speeds):.2f}" if speeds else "-"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
