"""The law of first tokens: against a softmax of its own, and what cannot come is counted apart."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from tiny import fresh_logits, tiny_model

from outpace import SamplingParams
from outpace.measure.audit.text_law import NextToken, TextLaw, next_token, text_law
from outpace.measure.ties import request_sequence
from outpace.models.load import LoadedModel

pytestmark = pytest.mark.usefixtures("unchecked_shapes")
V = 8
SMALL = tiny_model(vocab_size=V, seed=3, scale=0.5)
PROMPT = [2, 3, 4, 2, 3, 4, 2, 3]


def law_of(model: LoadedModel, least: float, **params: object) -> TextLaw:
    seq = request_sequence(model, PROMPT, SamplingParams(**params), len(PROMPT))
    return text_law(model, seq, length=2, least=least)


def softmax(tokens: list[int], temperature: float) -> np.ndarray:
    logits = fresh_logits(SMALL, tokens).numpy() / temperature
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def test_every_cell_is_the_product_of_its_tokens_probabilities() -> None:
    law = law_of(SMALL, least=0.0, temperature=0.7)
    first = softmax(PROMPT, 0.7)
    for a, b in itertools.product(range(V), repeat=2):
        expected = first[a] * softmax([*PROMPT, a], 0.7)[b]
        assert law.cells[a, b] == pytest.approx(expected, rel=1e-9)
    assert sum(law.cells.values()) == pytest.approx(1)


def test_rare_texts_are_pooled_with_what_they_begin_with() -> None:
    fine, coarse = law_of(SMALL, least=0.0), law_of(SMALL, least=0.1)
    assert 1 < len(coarse.cells) < len(fine.cells)
    assert all(mass >= 0.1 for cell, mass in coarse.cells.items() if len(cell) == 2)
    texts = list(itertools.product(range(V), repeat=2))
    weights = dict.fromkeys(coarse.cells, 0.0)
    for text in texts:
        weights[next(c for c in (text, text[:1], ()) if c in coarse.cells)] += fine.cells[text]
    assert weights == pytest.approx(coarse.cells)
    assert coarse.counts(texts).sum() == len(texts)


def test_filters_and_penalties_are_part_of_it() -> None:
    plain, filtered = law_of(SMALL, 0.0), law_of(SMALL, 0.0, top_k=2, presence_penalty=1.5)
    kept = np.flatnonzero(filtered.following[()].p)
    assert len(kept) == 2
    text = (int(kept[0]), int(kept[0]))
    assert filtered.cells.get(text, 0.0) < plain.cells[text] * 5
    assert filtered.cells.get(text, 0.0) != pytest.approx(plain.cells[text])


def test_what_cannot_come_is_counted_apart() -> None:
    law = law_of(SMALL, 0.0, top_k=2)
    possible = next(cell for cell, mass in law.cells.items() if len(cell) == 2 and mass > 0)
    forbidden = int(np.flatnonzero(law.following[()].p == 0)[0])
    counts = law.counts([possible, (forbidden, 0), possible])
    assert counts[-1] == 1
    assert counts.sum() == 3
    assert law.probabilities[-1] == 0


def test_tokens_at_the_edge_of_a_filter_are_not_impossible_where_rounding_moves_it() -> None:
    """The third of three nearly equal tokens is cut off by top_k=2, and might as well stay."""
    model = tiny_model(vocab_size=V, seed=3, dtype="float32")
    seq = request_sequence(model, PROMPT, SamplingParams(top_k=2), len(PROMPT))
    logits = np.array([0, 0, 5, 5, 5 - 1e-7, 4, 0, 0], np.float32)
    after = next_token(model, logits, seq)
    assert np.flatnonzero(after.p).tolist() == [2, 3]
    assert not after.forbids(4)
    assert after.forbids(5)


def test_an_edge_is_an_edge_of_what_was_kept() -> None:
    assert NextToken(np.array([0.0, 1.0]), frozenset({0})).forbids(0) is False
    assert NextToken(np.array([0.0, 1.0]), frozenset()).forbids(0) is True
