"""Trees as they run: which rule judges which request, dead ends, and the draw of siblings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from effort import examples
from laws import chi_square_p

from outpace import SamplingParams
from outpace.errors import ModelError, OptionError
from outpace.sampling import History, probabilities
from outpace.types import Draft, Scores, Sequence, Verdict
from outpace.verification import judge
from outpace.verification.coupled import choose
from outpace.verification.judge import draw_siblings, verify

VOCAB = 6
LOGITS = np.random.default_rng(11).normal(0, 1.2, (VOCAB, VOCAB)).astype(np.float32)
"""The target: a row of logits after each token."""
DRAFT_LOGITS = LOGITS + np.random.default_rng(12).normal(0, 1, LOGITS.shape).astype(np.float32)
PROMPT = [4, 2]
SAMPLED = SamplingParams(temperature=1.0)
GREEDY = SamplingParams(temperature=0.0)
SEEDED = SamplingParams(temperature=1.0, seed=7)

pytestmark = pytest.mark.usefixtures("unchecked_shapes")


def sequence(params: SamplingParams, output: tuple[int, ...] = ()) -> Sequence:
    return Sequence(0, [*PROMPT, *output], len(PROMPT), params)


def judged(
    seq: Sequence, draft: Draft, rng: np.random.Generator | None = None, logits=LOGITS
) -> Verdict:
    """`verify` of one sequence, with another one beside it."""
    contexts = [seq.tokens[-1], *draft.token_ids]
    other = sequence(GREEDY)
    values = np.concatenate([logits[contexts], logits[[other.tokens[-1]]]])
    rows = [slice(0, len(contexts)), slice(len(contexts), len(contexts) + 1)]
    scores = Scores(torch.from_numpy(values), rows, rows)
    verdicts = verify(scores, [seq, other], [draft, Draft()], rng or np.random.default_rng(0))
    assert verdicts[1].token_ids == (int(logits[other.tokens[-1]].argmax()),)
    return verdicts[0]


def plain(params: SamplingParams, output: tuple[int, ...], count: int) -> tuple[int, ...]:
    """The next `count` tokens without drafts."""
    for _ in range(count):
        output = (*output, *judged(sequence(params, output), Draft()).token_ids)
    return output[-count:]


def random_tree(rng: np.random.Generator, hint: tuple[int, ...] = ()) -> Draft:
    """Up to eight nodes with random tokens, some of them those of `hint` at their depth."""
    draft = Draft((), (), parents=())
    for _ in range(rng.integers(1, 9)):
        parent = int(rng.integers(-1, len(draft)))
        depth = 0 if parent < 0 else draft.depths()[parent]
        lucky = depth < len(hint) and rng.random() < 0.5
        token = hint[depth] if lucky else int(rng.integers(-1, VOCAB + 1))
        draft = Draft((*draft.token_ids, token), (*draft.q, None), parents=(*draft.parents, parent))
    return replace(draft, num_probes=int(rng.integers(0, 2)), q=None)


@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_matching_gives_plain_decodings_tokens(params: SamplingParams) -> None:
    rng = np.random.default_rng(0)
    lengths: Counter[int] = Counter()
    for _ in range(examples(150)):
        output = tuple(int(token) for token in rng.integers(0, VOCAB, rng.integers(0, 4)))
        expected = plain(params, output, 5)
        draft = random_tree(rng, expected)
        contexts_known = replace(draft, token_ids=tuple(t % VOCAB for t in draft.token_ids))
        verdict = judged(sequence(params, output), contexts_known)
        assert verdict.token_ids == expected[: len(verdict.token_ids)]
        nodes = verdict.accepted_nodes
        assert tuple(contexts_known.token_ids[n] for n in nodes) == verdict.token_ids[:-1]
        assert [contexts_known.parent(n) for n in nodes] == [-1, *nodes[:-1]][: len(nodes)]
        assert all(node < contexts_known.num_verified for node in nodes)
        lengths[verdict.num_accepted] += 1
    assert len(lengths) >= 4


@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_no_acceptable_node_is_overlooked(params: SamplingParams) -> None:
    """Also where candidates share a beginning and were not merged."""
    first, second, third = plain(params, (), 3)
    other = min(set(range(VOCAB)) - {first, second, third})
    draft = Draft(
        (other, first, other, first, second, third), parents=(-1, -1, 1, -1, 3, 4), num_probes=1
    )
    verdict = judged(sequence(params), draft)
    assert verdict == Verdict((first, second, third), 2, nodes=(3, 4))


def test_seeded_noise_belongs_to_the_position_not_to_the_node() -> None:
    params = SamplingParams(temperature=3.0, seed=3)
    expected = plain(params, (), 3)
    wrong = (expected[0] + 1) % VOCAB
    draft = Draft((wrong, wrong, expected[0], expected[1]), parents=(-1, 0, -1, 2))
    assert judged(sequence(params), draft).token_ids == expected


@pytest.mark.parametrize("params", [GREEDY, SEEDED, SAMPLED], ids=["greedy", "seeded", "sampled"])
def test_a_chain_written_as_a_tree_is_judged_as_a_chain(params: SamplingParams) -> None:
    rng = np.random.default_rng(5)
    for seed in range(40):
        tokens = tuple(int(token) for token in rng.integers(0, VOCAB, 3))
        q = None if seed % 2 else tuple(_q(context) for context in (PROMPT[-1], *tokens[:-1]))
        chain = Draft(tokens, q)
        tree = replace(chain, parents=(-1, 0, 1))
        verdicts = [
            judged(sequence(params), draft, np.random.default_rng(seed)) for draft in (chain, tree)
        ]
        assert verdicts[0] == verdicts[1]


def _q(context: int) -> np.ndarray:
    return probabilities(DRAFT_LOGITS[context], History(sequence(SAMPLED)))


@pytest.mark.parametrize(
    ("draft", "rule"),
    [
        (Draft((1, 2), parents=(-1, -1)), "recursive_decision"),
        (Draft((1, 2), (None, _q(2)), parents=(-1, -1)), "traversal_decision"),
        (Draft((1, 2), (None, _q(2)), num_probes=1), "traversal_decision"),
        (Draft((1, 2)), "token_decision"),
        (Draft((1, 2), (None, _q(2))), "block_decision"),
    ],
)
def test_which_rule_judges_which_draft(
    draft: Draft, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def spy(name: str) -> Callable:
        decide = getattr(judge, name)
        return lambda *args: asked.append(name) or decide(*args)

    for name in ("recursive_decision", "traversal_decision", "token_decision", "block_decision"):
        monkeypatch.setattr(judge, name, spy(name))
    assert judged(sequence(SAMPLED), draft).token_ids
    assert asked == [rule]


def _mostly(token: int) -> np.ndarray:
    """A row with 0.8 of its mass on one token."""
    q_row = np.full(VOCAB, 0.2 / (VOCAB - 1), np.float32)
    q_row[token] = 0.8
    return q_row


# Dead ends: the parameters may leave no token at a node.


def dead_after(token: int) -> Callable:
    def processor(prompt: list[int], output: list[int], logits: torch.Tensor) -> torch.Tensor:
        if output and output[-1] == token:
            logits[:] = -torch.inf
        return logits

    return processor


@pytest.mark.parametrize("sampled", [False, True], ids=["deterministic", "sampled"])
@pytest.mark.parametrize("base", [GREEDY, SEEDED, SAMPLED], ids=["greedy", "seeded", "sampled"])
def test_a_dead_end_ends_the_verdict_only_where_it_is_reached(
    base: SamplingParams, sampled: bool
) -> None:
    params = replace(base, logits_processors=[dead_after(1)])
    q = tuple(map(_mostly, (1, 0, 3, 1, 1))) if sampled else None
    # 1 allows no further token, though nodes follow it; 0 and its child 1 do.
    draft = Draft((1, 0, 3, 1, 1), q, parents=(-1, -1, 0, 1, 3))
    ends = Counter()
    for seed in range(200):
        seq = sequence(params if base is not SEEDED else replace(params, seed=seed))
        verdict = judged(seq, draft, np.random.default_rng(seed))
        assert verdict.error is None
        tokens, num_accepted = verdict.token_ids, verdict.num_accepted
        if num_accepted == len(tokens):
            assert tokens in {(1,), (0, 1)}
        else:
            assert 1 not in tokens[:-1]
            assert num_accepted == len(tokens) - 1
        ends[tokens] += 1
    assert base is GREEDY or len(ends) > 3

    dead = judged(sequence(params, (1,)), draft)
    assert dead.token_ids == ()
    assert isinstance(dead.error, OptionError)


def test_logits_that_are_not_numbers_fail_only_a_request_that_reaches_them() -> None:
    broken = LOGITS.copy()
    broken[1] = np.nan
    draft = Draft((1, 3), (_mostly(1), _mostly(3)), parents=(-1, -1))
    verdicts = [
        judged(sequence(SAMPLED), draft, np.random.default_rng(seed), broken) for seed in range(40)
    ]
    assert all(verdict.error is None for verdict in verdicts)
    assert {verdict.token_ids[0] for verdict in verdicts} > {1, 3}
    assert isinstance(judged(sequence(SAMPLED, (1,)), draft, None, broken).error, ModelError)


# Drawing siblings.


def test_siblings_carry_the_q_they_were_drawn_from() -> None:
    rng = np.random.default_rng(0)
    q = _q(3)
    siblings = draw_siblings(DRAFT_LOGITS[3], sequence(SAMPLED), (), 4, rng)
    drawn: list[int] = []
    for token, claim in siblings:
        rest = q.astype(np.float64)
        rest[drawn] = 0
        np.testing.assert_allclose(claim, rest / rest.sum(), rtol=1e-5)
        assert not claim[drawn].any()
        assert claim.dtype == np.float32
        drawn.append(token)
    assert len(set(drawn)) == 4


def test_siblings_are_drawn_without_replacement() -> None:
    rng = np.random.default_rng(1)
    counts = np.zeros((VOCAB, VOCAB), int)
    for _ in range(examples(4000)):
        (a, _), (b, _) = draw_siblings(DRAFT_LOGITS[3], sequence(SAMPLED), (), 2, rng)
        counts[a, b] += 1
    q = _q(3).astype(np.float64)
    law = q[:, None] * q / (1 - q[:, None])
    np.fill_diagonal(law, 0)
    assert chi_square_p(counts, law) > 1e-4
    assert chi_square_p(counts + np.eye(VOCAB, dtype=int), np.outer(q, q)) < 1e-8


def test_seeded_siblings_are_the_first_arrivals_of_the_targets_race() -> None:
    for seed in range(60):
        params = SamplingParams(temperature=1.0, seed=seed)
        seq = sequence(params, (3, 1))
        siblings = draw_siblings(LOGITS[5], seq, (0, 5), 3, np.random.default_rng(0))
        p = probabilities(LOGITS[5], History(seq), (0, 5))
        for token, claim in siblings:
            assert claim is None
            assert token == choose(p, seed, 0, 4)
            p[token] = 0


def test_seeded_siblings_of_a_large_vocabulary() -> None:
    """The race is run in blocks; what arrives first must not depend on where blocks end."""
    rng = np.random.default_rng(2)
    logits = rng.normal(0, 3, 20_000).astype(np.float32)
    for seed in range(8):
        seq = sequence(SamplingParams(temperature=1.0, seed=seed))
        p = probabilities(logits, History(seq))
        for token, _ in draw_siblings(logits, seq, (), 5, rng):
            assert token == choose(p, seed, 0, 0)
            p[token] = 0


def test_greedy_siblings_are_the_most_probable_tokens() -> None:
    logits = np.array([0, 3, 1, 3, -np.inf, 2], np.float32)
    params = SamplingParams(temperature=0.0, logit_bias={5: -1.5})
    drawn = draw_siblings(logits, sequence(params), (), 4, np.random.default_rng(0))
    assert drawn == [(1, None), (3, None), (2, None), (5, None)]
    assert len(draw_siblings(logits, sequence(params), (), 9, np.random.default_rng(0))) == 5


@pytest.mark.parametrize("params", [GREEDY, SEEDED, SAMPLED], ids=["greedy", "seeded", "sampled"])
def test_there_are_no_more_siblings_than_tokens_with_mass(params: SamplingParams) -> None:
    rng = np.random.default_rng(0)
    few = replace(params, allowed_token_ids=[2, 4])
    drawn = draw_siblings(LOGITS[0], sequence(few), (), 5, rng)
    assert {token for token, _ in drawn} == {2, 4}
    assert len(drawn) == 2
    none = replace(params, logits_processors=[dead_after(1)])
    assert draw_siblings(LOGITS[0], sequence(none), (0, 1), 3, rng) == []


# The law as it runs, in float32.


def pair_counts(
    propose: Callable[[np.random.Generator], Draft], num_steps: int
) -> tuple[np.ndarray, np.ndarray]:
    """How often each pair of first two tokens came, and the target's law of it, [V, V]."""
    rng = np.random.default_rng(9)
    counts = np.zeros((VOCAB, VOCAB), int)
    for _ in range(num_steps):
        output: tuple[int, ...] = judged(sequence(SAMPLED), propose(rng), rng).token_ids
        if len(output) == 1:
            output += judged(sequence(SAMPLED, output), Draft(), rng).token_ids
        counts[output[0], output[1]] += 1
    p = np.stack([probabilities(row, History(sequence(SAMPLED))) for row in LOGITS])
    return counts, p[PROMPT[-1]][:, None].astype(np.float64) * p


def sampled_tree(rng: np.random.Generator, num_roots: int = 2, resorted: bool = False) -> Draft:
    """Siblings without replacement, two levels deep."""
    draft = Draft((), (), parents=())
    frontier = [(-1, PROMPT[-1], num_roots)]
    for parent, context, count in frontier:
        prefix = draft.tokens_to(parent)
        drawn = draw_siblings(DRAFT_LOGITS[context], sequence(SAMPLED), prefix, count, rng)
        if resorted:
            drawn.sort(key=lambda sibling: -sibling[1][sibling[0]])
        for token, q in drawn:
            draft = Draft(
                (*draft.token_ids, token), (*draft.q, q), parents=(*draft.parents, parent)
            )
            if parent < 0:
                frontier.append((len(draft) - 1, token, 2))
    return draft


def list_tree(rng: np.random.Generator) -> Draft:
    return Draft((1, 0, 5, 3, 2, 0), parents=(-1, -1, -1, 0, 0, 1))


@pytest.mark.parametrize("propose", [sampled_tree, list_tree])
def test_the_float_path_has_the_targets_law(propose: Callable) -> None:
    counts, law = pair_counts(propose, examples(6000))
    assert chi_square_p(counts, law) > 1e-4


def test_the_simulation_catches_siblings_sorted_after_the_draw() -> None:
    counts, law = pair_counts(lambda rng: sampled_tree(rng, resorted=True), 6000)
    assert chi_square_p(counts, law) < 1e-8
