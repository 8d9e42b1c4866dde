"""Quality of one way of computing a model against another: the arithmetic, and tiny models."""

from __future__ import annotations

import math

import pytest
import torch
from tiny import tiny_model, tiny_tokenizer

from outpace.errors import OptionError
from outpace.measure.quality import (
    Quality,
    QualitySums,
    compare_models,
    make_windows,
    num_positions,
)


def logits(*rows: list[float]) -> torch.Tensor:
    """Logits of the given probabilities, each row shifted by a constant that must not matter."""
    return torch.tensor(rows).log() + 3.0


def test_sums_by_hand() -> None:
    """Two positions over three tokens, added in two pieces.

    Perplexities: exp of -(ln 1/2 + ln 1/4) / 2 = sqrt(8) for the reference, and of
    -(ln 1/4 + ln 1/4) / 2 = 4 for the other. Divergences: 1/2 ln 2 + 1/4 ln 1 + 1/4 ln 1/2 at the
    first position, 0 at the second.
    """
    sums = QualitySums()
    sums.add(logits([0.5, 0.25, 0.25]), logits([0.25, 0.25, 0.5]), [0])
    sums.add(logits([0.25, 0.5, 0.25]), logits([0.25, 0.5, 0.25]), [2])
    found = sums.result()
    assert found.num_tokens == 2
    assert found.reference_perplexity == pytest.approx(math.sqrt(8))
    assert found.perplexity == pytest.approx(4.0)
    assert found.num_same_choices == 1
    assert found.same_choice_share == 0.5
    assert found.mean_kl == pytest.approx(math.log(2) / 8)
    assert found.max_kl == pytest.approx(math.log(2) / 4)


def test_a_token_that_the_reference_rules_out_costs_nothing() -> None:
    sums = QualitySums()
    sums.add(logits([0.5, 0.5, 0.0]), logits([0.25, 0.25, 0.5]), [0])
    assert sums.result().mean_kl == pytest.approx(math.log(2))
    sums.add(logits([0.5, 0.5, 0.0]), logits([1.0, 0.0, 0.0]), [0])
    assert sums.result().max_kl == math.inf


@pytest.mark.parametrize(
    ("same", "low", "high"),
    # Wilson's interval, from the closed form; 0 and n have one side at the edge.
    [(50, 0.4038, 0.5962), (98, 0.9300, 0.9945), (100, 0.9630, 1.0), (0, 0.0, 0.0370)],
)
def test_interval(same: int, low: float, high: float) -> None:
    quality = Quality(100, 1.0, 1.0, same, 0.0, 0.0)
    assert quality.same_choice_interval == pytest.approx((low, high), abs=1e-4)


def test_windows_begin_anew_and_never_span_texts() -> None:
    tokenizer = tiny_tokenizer()
    one, two = tokenizer.encode("abcdefg"), tokenizer.encode("hij")
    assert make_windows(["abcdefg", "hij"], tokenizer, window_len=3) == [
        one[:3],
        one[3:6],  # "g" alone would predict nothing
        two,
    ]
    windows = make_windows(["abcdefg", "hij"], tokenizer, window_len=3, max_tokens=9)
    assert windows == [one[:3], one[3:6], two[:2]]
    assert num_positions(windows) == 5


def test_windows_begin_as_the_model_expects(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = tiny_tokenizer()
    plain = tokenizer.encode

    def with_begin(text: str, add_special_tokens: bool = True) -> list[int]:
        return [*([tokenizer.bos_id] if add_special_tokens else []), *plain(text)]

    monkeypatch.setattr(tokenizer, "encode", with_begin)
    a, b, c = plain("abc")
    begin = tokenizer.bos_id
    assert make_windows(["abc"], tokenizer, window_len=3) == [[begin, a, b], [begin, c]]


@pytest.mark.parametrize("texts", [[], [""], ["a"], ["a", "b"]])
def test_texts_too_short_are_refused(texts: list[str]) -> None:
    with pytest.raises(OptionError, match="too short"):
        make_windows(texts, tiny_tokenizer(), window_len=8)


def test_a_window_predicts_something() -> None:
    with pytest.raises(OptionError, match="at least 2 tokens"):
        make_windows(["abc"], tiny_tokenizer(), window_len=1)


def brute_force(models: list, windows: list[list[int]]) -> QualitySums:
    """The same figures from one forward pass a prefix."""
    from tiny import fresh_logits

    sums = QualitySums()
    for window in windows:
        for end in range(1, len(window)):
            rows = [fresh_logits(model, window[:end])[None] for model in models]
            sums.add(*rows, [window[end]])
    return sums


def test_models_are_compared_position_by_position(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outpace.measure.quality._CHUNK_LEN", 4)
    models = [tiny_model(seed=seed) for seed in (0, 1)]
    windows = [list(range(5, 18)), [7, 3], list(range(40, 49))]
    ticks: list[int] = []
    found = compare_models(*models, windows, ticks.append)
    wanted = brute_force(models, windows).result()
    assert found.num_tokens == wanted.num_tokens == sum(ticks) == 21
    assert found.num_same_choices == wanted.num_same_choices < 21
    for name in ("perplexity", "reference_perplexity", "mean_kl", "max_kl"):
        assert getattr(found, name) == pytest.approx(getattr(wanted, name), rel=1e-9), name


def test_a_model_equals_itself() -> None:
    model = tiny_model()
    found = compare_models(model, tiny_model(), [list(range(5, 60))])
    assert (found.same_choice_share, found.mean_kl, found.max_kl) == (1.0, 0.0, 0.0)
    assert found.perplexity == found.reference_perplexity


def test_models_that_cannot_be_compared_are_refused() -> None:
    with pytest.raises(OptionError, match="not the same model"):
        compare_models(tiny_model(), tiny_model(vocab_size=80), [[5, 6]])
    with pytest.raises(OptionError, match="longer than"):
        compare_models(tiny_model(), tiny_model(max_len=8), [list(range(5, 15))])
