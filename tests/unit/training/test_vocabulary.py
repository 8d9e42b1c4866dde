"""The draft vocabulary: scores, ties and coverage, on counts small enough to rank by hand."""

from __future__ import annotations

import numpy as np
import pytest

from outpace.errors import OptionError
from outpace.training.vocabulary import choose_draft_vocabulary, count_tokens, coverage


def test_counts_of_several_texts() -> None:
    assert count_tokens([[1, 3, 3], [], [0, 3]], 5).tolist() == [1, 1, 0, 3, 0]


def test_answers_count_more_than_prompts_and_the_result_ascends() -> None:
    answers = np.array([0, 0, 40, 0, 60, 0])
    prompts = np.array([0, 90, 0, 10, 0, 0])
    # Shares: 0.6 for 4, 0.4 for 2, 0.3 x 0.9 for 1, 0.3 x 0.1 for 3.
    for size, chosen in ((1, [4]), (2, [2, 4]), (3, [1, 2, 4]), (4, [1, 2, 3, 4])):
        assert choose_draft_vocabulary(answers, prompts, size).tolist() == chosen


def test_the_smaller_id_fills_up_what_was_never_seen() -> None:
    answers = np.zeros(8, np.int64)
    answers[6] = 1
    assert choose_draft_vocabulary(answers, answers, 3).tolist() == [0, 1, 6]


def test_what_was_seen_goes_before_what_has_a_low_id() -> None:
    """The prior must not outweigh a token that was seen even once in a hundred thousand."""
    answers = np.zeros(1000, np.int64)
    answers[500], answers[999] = 99_999, 1
    assert 999 in choose_draft_vocabulary(answers, answers, 20)


def test_coverage_is_the_share_of_tokens_inside() -> None:
    counts = np.array([5, 0, 3, 2])
    assert coverage(counts, np.array([0, 3])) == 0.7
    assert coverage(np.zeros(4, np.int64), np.array([0])) == 0.0


@pytest.mark.parametrize("size", [0, 7])
def test_a_size_that_cannot_be_is_refused(size: int) -> None:
    with pytest.raises(OptionError, match=f"from 1 to 6 tokens.*got {size}"):
        choose_draft_vocabulary(np.zeros(6, np.int64), np.zeros(6, np.int64), size)
