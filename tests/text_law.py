"""The law of the first tokens of a real target's answers, in cells, computed and counted.

Over a large vocabulary most texts are too rare to be counted one by one. A cell is a text of some
length, or what begins with a shorter one and lies in no longer cell.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as List

import numpy as np
from jaxtyping import Float
from scipy.stats import chi2
from tiny import new_runner, new_sequence

from outpace.models.load import LoadedModel
from outpace.runner import Runner
from outpace.types import Sequence

Text = tuple[int, ...]
Misfit = tuple[float, int]
"""A chi-square statistic and its degrees of freedom."""


def text_law(
    model: LoadedModel, prompt: List[int], temperature: float, *, length: int, least: float
) -> dict[Text, float]:
    """The probability of each cell: of all texts of up to `length` tokens that have one of at least
    `least`, what longer cells take off excepted. () holds the rest; they sum to 1.

    From logits of plain passes, one token at a time, with a softmax of its own in float64.
    """
    room = int(1 / least) + 2
    runner = new_runner(model, num_rows=room, num_tokens=len(prompt) + length)
    source = new_sequence(prompt)
    runner.open(source)
    cells: dict[Text, float] = {(): 1.0}
    level: dict[Text, Float[np.ndarray, " V"]] = {(): _laws(runner, [source], temperature)[0]}
    for depth in range(1, length + 1):
        longer: list[Text] = []
        for text, row in level.items():
            whole = cells[text]
            for token in np.flatnonzero(whole * row >= least).tolist():
                cells[*text, token] = whole * float(row[token])
                cells[text] -= cells[*text, token]
                longer.append((*text, token))
        if depth < length and longer:
            level = dict(zip(longer, _after(runner, source, longer, temperature), strict=True))
    return cells


def _after(
    runner: Runner, source: Sequence, texts: List[Text], temperature: float
) -> list[Float[np.ndarray, " V"]]:
    """The target's law of the token after the prompt and each text."""
    seqs = [new_sequence([*source.tokens, *text], i + 1) for i, text in enumerate(texts)]
    for seq in seqs:
        runner.fork(source, seq)
    laws = _laws(runner, seqs, temperature)
    for seq in seqs:
        runner.release(seq)
    return laws


def _laws(
    runner: Runner, seqs: List[Sequence], temperature: float
) -> list[Float[np.ndarray, " V"]]:
    logits = np.asarray(runner.extend(seqs, last_only=True).logits, np.float64) / temperature
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return list(weights / weights.sum(axis=1, keepdims=True))


def misfit(law: dict[Text, float], texts: Iterable[Text]) -> Misfit:
    """Pearson's chi-square of texts against the law of cells.

    Cells of which fewer than 5 are expected are counted as one.
    """
    counts = dict.fromkeys(law, 0)
    for text in texts:
        while text not in counts:
            text = text[:-1]
        counts[text] += 1
    observed = np.array(list(counts.values()), float)
    expected = np.array(list(law.values())) * observed.sum()
    rare = expected < 5
    if rare.any():
        observed = np.append(observed[~rare], observed[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
    return float(((observed - expected) ** 2 / expected).sum()), len(observed) - 1


def p_value(misfits: Iterable[Misfit]) -> float:
    """Of independent samples together."""
    statistics, freedoms = zip(*misfits, strict=True)
    return float(chi2.sf(sum(statistics), sum(freedoms)))
