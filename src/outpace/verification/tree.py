"""Verification of a tree of draft tokens: by recursive rejection, or by traversal.

Both rules emit tokens whose joint law is exactly the target's. At a node (the newest committed
token, or a draft token) let m be the target's distribution after it, c_1, c_2, .. its children in
drawn order, and d_j the distribution that c_j was drawn from *given the siblings before it*. So
draws with and without replacement, and one-hot children, are the same code.

Recursive rejection (SpecInfer 2305.09781, for draws with replacement; Jeon et al. 2402.14160,
without), from the newest committed token:

    for j = 1, 2, ..:  if u(c_j) < min(1, m(c_j) / d_j(c_j)):  accept c_j, go on from there
                       else m = max(m - d_j, 0), normalised
    no child accepted: stop here and emit y ~ m

    For one-hot children: accept c_j with probability m(c_j), else m without c_j, normalised.

Traversal verification (2505.12398), visit(root, 1), where P is the weight of the path so far:

    visit(node, P):
        for j = 1, 2, ..:  visit(c_j, min(1, P m(c_j) / d_j(c_j)));  if it accepted, stop
                           r = max(P m - d_j, 0);  Z = sum r;  m = r / Z
                           P = Z / (Z + 1 - P), 0/0 = 1
        if u(node) < P:  accept the path to node and emit y ~ m       (at the root, P stays 1)

It starts at the leaves, so a later token can pay for an earlier one that was too probable. On a
chain recursive rejection is token verification, and traversal is block verification, coin for coin.
With one-hot children alone the two accept equally many tokens in expectation; of other trees
traversal accepts more on average, and on a few less.

What a node's d_j has to be true of: its token's draw, given everything that was drawn before it.
Which nodes exist may depend on what was drawn before them and on nothing drawn later, themselves
included. So a draft may be cut to the nodes drawn first (`Draft.shortened`) or to a depth, but no
node may be taken out, or moved among its siblings, because of what it is.

Everything is pure and exact on `Fraction` rows, as in `chain`, whose guards hold here too. Rows are
those of `Scores`: p[0] after the newest committed token, p[node + 1] after a node; each is asked
for only when it is reached. A row of zeros stands for a position where no token may come: nothing
below it is looked at, and a decision that ends there has zero weights.
"""

from __future__ import annotations

from dataclasses import dataclass

from outpace.sampling import Number, draw
from outpace.types import Draft, Verdict
from outpace.verification.chain import (
    Coins,
    DraftRow,
    Row,
    Rows,
    mass,
    path_weight,
    probability,
    residual,
    weight_after_rejection,
)


@dataclass(frozen=True, slots=True)
class PathDecision:
    """What the coins decided over a tree, before the last token is drawn.

    nodes: the accepted nodes, from the first after the newest committed token.
    weights: the law of the token after them [V], not normalised; may be a row of the caller's p,
        so it must not be written to.
    """

    nodes: tuple[int, ...]
    weights: Row

    @property
    def num_accepted(self) -> int:
        return len(self.nodes)


def recursive_verify(p: Rows, draft: Draft, coins: Coins, final_coin: Number) -> Verdict:
    """Verify a tree of n nodes by recursive rejection (see the module's equations).

    p: target probabilities [n+1, V], row 0 after the newest committed token, row i+1 after node i.
    coins: independent uniforms in [0, 1), one for each node that may be accepted.
    final_coin: one more, for the recovered or bonus token.
    """
    return _verdict(draft, recursive_decision(p, draft, coins), final_coin)


def traversal_verify(p: Rows, draft: Draft, coins: Coins, final_coin: Number) -> Verdict:
    """Verify a tree by traversal; arguments as for `recursive_verify`."""
    return _verdict(draft, traversal_decision(p, draft, coins), final_coin)


def _verdict(draft: Draft, decision: PathDecision, final_coin: Number) -> Verdict:
    accepted = [draft.token_ids[node] for node in decision.nodes]
    own = draw(decision.weights, final_coin)
    return Verdict((*accepted, own), decision.num_accepted, nodes=decision.nodes)


def recursive_decision(p: Rows, draft: Draft, coins: Coins) -> PathDecision:
    """Which path recursive rejection accepts, and the law of the next token."""
    _check(p, draft, coins)
    children = draft.children()
    nodes: list[int] = []
    while True:
        reached = nodes[-1] if nodes else -1
        left = _Remaining(p[reached + 1])
        for child in children[reached + 1]:
            token, q_row = draft.token_ids[child], draft.q_at(child)
            if coins[child] < left.path_weight(1, token, q_row):
                nodes.append(child)
                break
            left.reject(1, token, q_row)
        else:
            return PathDecision(tuple(nodes), left.weights)


def traversal_decision(p: Rows, draft: Draft, coins: Coins) -> PathDecision:
    """Which path traversal verification accepts, and the law of the next token.

    Recurses as deep as the tree is.
    """
    _check(p, draft, coins)
    decision = _Traversal(p, draft, coins, draft.children()).visit(-1, 1)
    assert decision is not None, "the newest committed token is always accepted"
    return decision


@dataclass(frozen=True, slots=True)
class _Traversal:
    p: Rows
    draft: Draft
    coins: Coins
    children: list[list[int]]

    def visit(self, node: int, weight: Number) -> PathDecision | None:
        """The decision where the path ends at `node` or goes on from it, else None."""
        left = _Remaining(self.p[node + 1])
        for child in self.children[node + 1] if left.has_mass else ():
            token, q_row = self.draft.token_ids[child], self.draft.q_at(child)
            below = left.path_weight(weight, token, q_row)
            # Nothing on a path of weight 0 can be accepted: its rows need not be made.
            if below > 0 and (decision := self.visit(child, below)) is not None:
                return decision
            weight = left.reject(weight, token, q_row)
        if node < 0 or self.coins[node] < weight:
            return PathDecision(tuple(self.draft.path(node)), left.weights)
        return None


class _Remaining:
    """The target's distribution m at a node, less what its rejected children were drawn from.

    weights: proportional to m [V]. The row it is made from sums to 1 and is not written to.
    """

    __slots__ = ("_total", "weights")

    def __init__(self, p_row: Row) -> None:
        self.weights = p_row
        self._total: Number | None = 1

    @property
    def has_mass(self) -> bool:
        return bool(self.weights.max() > 0)

    def path_weight(self, weight: Number, token: int, q_row: DraftRow | None) -> Number:
        """min(1, P m(c) / d(c)): the weight of the path that goes on to a child."""
        return path_weight(weight * self._scale, self.weights, token, q_row)

    def reject(self, weight: Number, token: int, q_row: DraftRow | None) -> Number:
        """Take a child out of m; returns the new P. weight: P so far."""
        scale = self._scale
        if q_row is None:
            rest, total = self._without(token)
            after = weight_after_rejection(
                weight, weight * max(1 - scale * probability(self.weights, token), 0)
            )
        else:
            rest = residual(self.weights, token, q_row, weight * scale)
            total = None if weight == 1 else mass(rest)
            after = 1 if total is None else weight_after_rejection(weight, total)
        # Also false for NaN, so a malformed q can never lead to an id outside the vocabulary.
        if rest.max() > 0:
            self.weights, self._total = rest, total
        return after

    def _without(self, token: int) -> tuple[Row, Number | None]:
        """The weights without one token, and their sum."""
        assert self._total is not None, "scaled first"
        removed = probability(self.weights, token)
        left = self._total - removed
        # Subtracting keeps the sum's precision unless most of it is taken away.
        return residual(self.weights, token, None), left if left > removed else None

    @property
    def _scale(self) -> Number:
        """m = scale * weights; exactly 1 before the first rejection."""
        if self._total is None:
            self._total = mass(self.weights)
        return 1 if self._total == 1 else 1 / self._total


def _check(p: Rows, draft: Draft, coins: Coins) -> None:
    n, num_verified = len(draft), draft.num_verified
    assert len(p) == n + 1, f"{n} nodes need {n + 1} rows, got {len(p)}"
    assert len(coins) == num_verified, f"{num_verified} nodes need as many coins, got {len(coins)}"
