"""From logits to the distribution a request asked for, and draws from it.

One function makes probabilities. The target's p, a draft model's q, the residual and the bonus
token all come from `probabilities`, so no two of them can disagree about a parameter.

The order of the steps is vLLM's: allowed_token_ids, bad_words, min_tokens, logit_bias, the three
penalties, the caller's own processors (`history`); then temperature, min_p, top_k, top_p, and last
typical_p (`filters`), which vLLM lacks and which stands where transformers has it. The order
matters: each filter counts the mass of what those before it left, renormalised.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from outpace.sampling.draw import Number, draw
from outpace.sampling.filters import distribution
from outpace.sampling.history import History
from outpace.sampling.logprobs import raw_logprobs

__all__ = ["History", "Number", "draw", "probabilities", "raw_logprobs"]


def probabilities(
    logits: Float[np.ndarray, " V"], history: History, drafted: Sequence[int] = ()
) -> Float[np.ndarray, " V"]:
    """The distribution of the token after a sequence and the draft tokens `drafted`, [V].

    logits: raw, float32 or float64, in host memory; not changed. The result has their dtype.
    drafted: the draft tokens between the newest committed token and this position: of a chain
        those before it, of a tree the node and its ancestors. They count as output in every
        parameter that looks at the output.
    A greedy row is an exact one-hot of the most probable token. Ties go to the smaller token id.
    Raises OptionError if the parameters leave no token, or if a logits processor fails, and
    ModelError for logits that are NaN or infinite.
    """
    return distribution(history.processed(logits, drafted), history.params)
