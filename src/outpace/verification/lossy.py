"""Acceptance that is NOT lossless: off by default, and never used for greedy requests.

Typical acceptance (Medusa 2401.10774): with p the target's distribution where draft
token x stands, and H(p) its entropy in nats,

    accept x if p(x) > min(epsilon, delta exp(-H(p)))

The longest path of accepted tokens stays, and a token drawn from p follows it. The rule never looks
at how the draft was made, so whatever is proposed and not too improbable is taken: the output
follows the drafter's taste wherever the target is undecided.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float

from outpace.errors import OptionError
from outpace.types import Draft
from outpace.verification.chain import Rows, probability

MAX_ALPHA = 1e9
"""Largest delta: larger than exp(H) of any vocabulary, so that nothing more could be asked for."""


@dataclass(frozen=True, slots=True)
class TypicalAcceptance:
    """How improbable an accepted token may be. Raises OptionError for values that mean nothing.

    posterior_threshold: epsilon, in [0, 1]: a token above it is always accepted.
    posterior_alpha: delta, in [0, MAX_ALPHA]: how far below it a token may lie where p is
        spread out.
    """

    name: ClassVar[str] = "typical acceptance"

    posterior_threshold: float = 0.09
    posterior_alpha: float = 0.3

    def __post_init__(self) -> None:
        for name, highest in (("posterior_threshold", 1.0), ("posterior_alpha", MAX_ALPHA)):
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not 0 <= value <= highest:
                raise OptionError(
                    f"{name} must be a number from 0 to {highest:g}, got {value!r:.40}"
                )


def typical_threshold(p_row: Float[np.ndarray, " V"], rule: TypicalAcceptance) -> float:
    """min(epsilon, delta exp(-H(p))): what an accepted token's probability must exceed."""
    positive = p_row[p_row > 0].astype(np.float64)
    entropy = -float(np.sum(positive * np.log(positive)))
    return min(rule.posterior_threshold, rule.posterior_alpha * math.exp(-entropy))


def typical_path(p: Rows, draft: Draft, rule: TypicalAcceptance) -> tuple[int, ...]:
    """The longest path of acceptable nodes; of several the most probable one, then the first.

    p: rows as `tree` takes them; made only for nodes whose ancestors are all acceptable.
    """
    children = draft.children()
    # Compared as tuples: depth, log-likelihood, and the node negated, so that the first one wins.
    best = (0, 0.0, 1)
    reached = [best]
    while reached:
        here = reached.pop()
        best = max(best, here)
        depth, log_likelihood, node = here[0], here[1], -here[2]
        if not children[node + 1]:
            continue
        p_row = p[node + 1]
        threshold = typical_threshold(p_row, rule)
        for child in children[node + 1]:
            share = probability(p_row, draft.token_ids[child])
            if share > threshold:
                reached.append((depth + 1, log_likelihood + math.log(share), -child))
    return tuple(draft.path(-best[2]))
