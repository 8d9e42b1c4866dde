"""The law of the first tokens of a model's answers, in cells, computed from plain passes.

Over a large vocabulary most texts are too rare to be counted one by one. A cell is a text of some
length, or what begins with a shorter one and lies in no longer cell.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from collections.abc import Sequence as List
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int

from outpace.measure.ties import rounding_tolerance
from outpace.models.load import LoadedModel
from outpace.params import SamplingParams
from outpace.runner import Runner
from outpace.sampling import History, probabilities
from outpace.sampling.filters import distribution
from outpace.types import Sequence

Text = tuple[int, ...]

_MOST_EXPONENT = 50.0
_MOST_ROWS = 32
"""Texts that are fed together."""


@dataclass(frozen=True, slots=True)
class NextToken:
    """What may come after a text. p: its distribution [V]. edge: tokens that the parameters cut off
    by less than rounding can move; where logits are always the same bits there are none."""

    p: Float[np.ndarray, " V"]
    edge: frozenset[int]

    def forbids(self, token: int) -> bool:
        return not self.p[token] > 0 and token not in self.edge


@dataclass(frozen=True, slots=True)
class TextLaw:
    """cells: the probability of each, () for the rest of all texts; they sum to 1.
    following: what may come after the prompt, (), and after each cell that others go on from."""

    cells: dict[Text, float]
    following: dict[Text, NextToken]

    @property
    def probabilities(self) -> Float[np.ndarray, " cells"]:
        """Of the cells in order, and at last 0: of texts that cannot come."""
        return np.array([*self.cells.values(), 0.0])

    def counts(self, texts: Iterable[List[int]]) -> Int[np.ndarray, " cells"]:
        """How many texts lie in each cell, the last one those with a token that cannot come."""
        places = {cell: i for i, cell in enumerate(self.cells)}
        counts = np.zeros(len(places) + 1, dtype=np.int64)
        for text in map(tuple, texts):
            counts[-1 if self.forbids(text) else places[self._cell_of(text)]] += 1
        return counts

    def forbids(self, text: Text) -> bool:
        """Whether a token of the text has probability 0, as far as is known."""
        return any(
            text[:i] in self.following and self.following[text[:i]].forbids(text[i])
            for i in range(len(text))
        )

    def _cell_of(self, text: Text) -> Text:
        while text not in self.cells:
            text = text[:-1]
        return text


def text_law(loaded: LoadedModel, seq: Sequence, *, length: int, least: float) -> TextLaw:
    """Cells for all texts of up to `length` tokens that have one of probability `least` or more,
    what longer cells take off excepted.

    seq: a request whose tokens are its prompt. Every token is fed by itself, without any draft, and
    what a request's parameters make of logits is what the engine makes of them.
    """
    num_rows = min(loaded.decoder.max_rows or _MOST_ROWS + 1, _MOST_ROWS + 1)
    cache = loaded.new_cache(num_rows=num_rows, num_tokens=len(seq.tokens) + length)
    runner = Runner(loaded.decoder, cache)
    runner.open(seq)
    cells: dict[Text, float] = {(): 1.0}
    following: dict[Text, NextToken] = {}
    level: dict[Text, NextToken] = {(): _next_tokens(loaded, runner, [seq])[0]}
    if not runner.takes_trees:
        runner.release(seq)
    for depth in range(1, length + 1):
        following |= level
        longer: list[Text] = []
        for text, after in level.items():
            whole = cells[text]
            for token in np.flatnonzero(whole * after.p >= least).tolist():
                cells[*text, token] = whole * float(after.p[token])
                cells[text] -= cells[*text, token]
                longer.append((*text, token))
        if depth == length or not longer:
            break
        level = dict(zip(longer, _after(loaded, runner, seq, longer), strict=True))
    # What rounding leaves where longer cells take all of a text is no probability.
    cells = {text: max(mass, 0.0) for text, mass in cells.items()}
    total = math.fsum(cells.values())
    return TextLaw({text: mass / total for text, mass in cells.items()}, following)


def _after(
    loaded: LoadedModel, runner: Runner, source: Sequence, texts: List[Text]
) -> list[NextToken]:
    """What may come after the prompt and each text."""
    found: list[NextToken] = []
    together = runner.cache.num_free_rows
    for start in range(0, len(texts), together):
        seqs = [
            replace(source, seq_id=source.seq_id + 1 + i, tokens=[*source.tokens, *text])
            for i, text in enumerate(texts[start : start + together])
        ]
        for seq in seqs:
            runner.fork(source, seq)
        found += _next_tokens(loaded, runner, seqs)
        for seq in seqs:
            runner.release(seq)
    return found


def _next_tokens(loaded: LoadedModel, runner: Runner, seqs: List[Sequence]) -> list[NextToken]:
    scores = runner.extend(seqs, last_only=True)
    logits = scores.on_host()
    return [
        next_token(loaded, logits[rows.start], seq)
        for rows, seq in zip(scores.rows, seqs, strict=True)
    ]


def next_token(loaded: LoadedModel, logits: Float[np.ndarray, " V"], seq: Sequence) -> NextToken:
    """From raw logits after all tokens of `seq`."""
    history = History(seq)
    p = probabilities(logits, history)
    tolerance = rounding_tolerance(loaded, logits)
    if not tolerance:
        return NextToken(p, frozenset())
    processed = history.processed(logits)
    lowest_kept = float(processed[p > 0].min())
    at_edge = (p == 0) & (processed >= lowest_kept - tolerance)
    if seq.params.top_p < 1:
        at_edge |= (p == 0) & (_with_more_mass(processed, seq.params, tolerance) > 0)
    return NextToken(p, frozenset(np.flatnonzero(at_edge).tolist()))


def _with_more_mass(
    processed: Float[np.ndarray, " V"], params: SamplingParams, tolerance: float
) -> Float[np.ndarray, " V"]:
    """The distribution with top_p as far up as rounding can move the mass of the tokens before the
    line: the one behind it may come then, however much less likely it is.

    Where logits move by no more than the tolerance against each other, the odds of any set of
    tokens change by at most its exponential.
    """
    factor = math.exp(min(tolerance / params.temperature, _MOST_EXPONENT))
    top_p = factor * params.top_p / (1 + (factor - 1) * params.top_p)
    more: Float[np.ndarray, " V"] = distribution(processed, replace(params, top_p=top_p))
    return more
