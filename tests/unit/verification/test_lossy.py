"""Typical acceptance: its threshold, the path it takes, and that it is not lossless."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch

from outpace import SamplingParams
from outpace.errors import OptionError
from outpace.types import Draft, Scores, Sequence, Verdict
from outpace.verification.judge import verify
from outpace.verification.lossy import TypicalAcceptance, typical_path, typical_threshold

P4 = np.array([1 / 2, 1 / 4, 1 / 8, 1 / 8])
RULE = TypicalAcceptance()

pytestmark = pytest.mark.usefixtures("unchecked_shapes")


def test_the_threshold_of_the_published_setting() -> None:
    assert typical_threshold(P4, RULE) == pytest.approx(0.089191, abs=1e-6)
    assert typical_threshold(np.array([0.9, 0.05, 0.03, 0.02]), RULE) == 0.09
    one_hot = np.array([0, 1, 0, 0], np.float32)
    assert typical_threshold(one_hot, RULE) == 0.09
    assert typical_threshold(one_hot, TypicalAcceptance(0.5, 0.25)) == 0.25
    uniform = np.full(1000, 1e-3)
    assert typical_threshold(uniform, RULE) == pytest.approx(3e-4)
    assert typical_threshold(np.zeros(4), RULE) > 0


def test_zeros_do_not_enter_the_entropy() -> None:
    padded = np.concatenate([P4, np.zeros(1000)]).astype(np.float32)
    with np.errstate(all="raise"):
        assert typical_threshold(padded, RULE) == pytest.approx(typical_threshold(P4, RULE))


@pytest.mark.parametrize(
    "options",
    [
        {"posterior_threshold": -0.1},
        {"posterior_threshold": 1.1},
        {"posterior_threshold": math.nan},
        {"posterior_threshold": True},
        {"posterior_alpha": -1},
        {"posterior_alpha": math.inf},
        {"posterior_alpha": 10**400},
        {"posterior_alpha": "0.3"},
    ],
)
def test_bad_options_are_refused(options: dict) -> None:
    (name,) = options
    with pytest.raises(OptionError, match=name):
        TypicalAcceptance(**options)


#      0
#     / \
#    1   2        tokens: node 0 is token 0, node 1 token 1, ..
#   /   / \
#  3   4   5
TREE = Draft((0, 1, 2, 3, 4, 5), parents=(-1, 0, 0, 1, 2, 2))


def rows(*probabilities: dict[int, float]) -> np.ndarray:
    """A row after the newest committed token and after each node; what is left goes to token 7."""
    table = np.zeros((7, 8))
    for row, some in zip(table, probabilities, strict=False):
        for token, share in some.items():
            row[token] = share
        row[7] = 1 - row.sum()
    table[len(probabilities) :, 7] = 1
    return table


@pytest.mark.parametrize(
    ("probabilities", "path"),
    [
        ([{0: 0.09}], ()),  # strictly above the threshold
        ([{0: 0.1}], (0,)),
        ([{0: 0.5}, {1: 0.4, 2: 0.3}], (0, 1)),
        ([{0: 0.5}, {1: 0.3, 2: 0.4}], (0, 2)),
        ([{0: 0.5}, {1: 0.3, 2: 0.3}], (0, 1)),
        # The longest, though its beginning is less probable than the other one.
        ([{0: 0.5}, {1: 0.6, 2: 0.3}, {}, {5: 0.2}], (0, 2, 5)),
        ([{0: 0.5}, {1: 0.3, 2: 0.3}, {3: 0.5}, {4: 0.4, 5: 0.6}], (0, 2, 5)),
        ([{0: 0.5}, {1: 0.3, 2: 0.3}, {3: 0.6}, {4: 0.6, 5: 0.2}], (0, 1, 3)),
        # Nothing below a node that is not accepted, however probable.
        ([{0: 0.05}, {1: 0.9}, {3: 0.9}], ()),
    ],
)
def test_the_path(probabilities: list[dict[int, float]], path: tuple[int, ...]) -> None:
    assert typical_path(rows(*probabilities), TREE, RULE) == path


def test_probes_are_never_accepted() -> None:
    p = rows({0: 0.5}, {1: 0.3, 2: 0.3}, {3: 0.5}, {4: 0.4, 5: 0.6})
    draft = Draft(TREE.token_ids, parents=TREE.parents, num_probes=1)
    assert typical_path(p, draft, RULE) == (0, 1, 3)


# As `verify` applies it.


def judged(
    params: SamplingParams,
    draft: Draft,
    lossy: TypicalAcceptance | None,
    seed: int = 0,
    p: np.ndarray = P4,
) -> Verdict:
    """A target that says `p` everywhere."""
    values = torch.from_numpy(np.log(np.stack([p] * (len(draft) + 1))))
    span = [slice(0, len(draft) + 1)]
    seq = Sequence(0, [0, 1], 2, params)
    rng = np.random.default_rng(seed)
    return verify(Scores(values, span, span), [seq], [draft], rng, lossy)[0]


def test_it_is_not_lossless() -> None:
    """A drafter that always says token 3 decides the output alone: a distance of 7/8."""
    draft = Draft((3,))
    laws = {}
    for lossy in (None, RULE):
        first = Counter(
            judged(SamplingParams(), draft, lossy, seed).token_ids[0] for seed in range(800)
        )
        law = np.array([first[token] / 800 for token in range(4)])
        laws[lossy] = np.abs(law - P4).sum() / 2
    assert laws[RULE] == 7 / 8
    assert laws[None] < 0.08


def test_the_token_after_the_path_is_drawn_from_the_target() -> None:
    after = Counter(
        judged(SamplingParams(), Draft((3,)), RULE, seed).token_ids[1] for seed in range(1500)
    )
    assert [after[token] / 1500 for token in range(4)] == pytest.approx(list(P4), abs=0.05)
    seeded = {
        judged(SamplingParams(seed=5), Draft((3,)), RULE, seed).token_ids for seed in range(5)
    }
    assert len(seeded) == 1
    plain = judged(SamplingParams(seed=5), Draft((3,)), None, 0)
    assert judged(SamplingParams(seed=5), Draft(), RULE).token_ids[:1] == plain.token_ids[:1]


def test_greedy_requests_are_matched_exactly() -> None:
    greedy = SamplingParams(temperature=0.0)
    for draft in (Draft((3,)), Draft((1, 0, 2), parents=(-1, -1, 1))):
        assert judged(greedy, draft, RULE) == judged(greedy, draft, None)
    assert judged(greedy, Draft((3,)), RULE) == Verdict((0,), 0)


def test_forbidden_tokens_are_not_accepted() -> None:
    params = SamplingParams(allowed_token_ids=[0, 1, 2])
    for seed in range(20):
        assert 3 not in judged(params, Draft((3,)), TypicalAcceptance(0.0, 0.0), seed).token_ids[:1]
    top = SamplingParams(top_k=1)
    assert judged(top, Draft((3, 0), parents=(-1, -1)), RULE).token_ids == (0, 0)


def test_a_dead_end_keeps_what_was_accepted() -> None:
    def processor(prompt: list[int], output: list[int], logits: torch.Tensor) -> torch.Tensor:
        if output:
            logits[:] = -torch.inf
        return logits

    params = SamplingParams(logits_processors=[processor])
    assert judged(params, Draft((3, 1)), RULE) == Verdict((3,), 1, nodes=(0,))
    seeded = SamplingParams(logits_processors=[processor], seed=1)
    assert judged(seeded, Draft((3, 1)), RULE) == Verdict((3,), 1, nodes=(0,))
