"""The k most probable tokens of each row of logits, exactly, without sorting a vocabulary."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float, Int

BLOCK = 64
"""Logits that share one maximum. 49k of them leave 768 maxima, which is what gets searched."""


def top_tokens(logits: Float[np.ndarray, "rows vocab"], k: int) -> Int[np.ndarray, "rows k"]:
    """Ids of the `k` highest logits of each row, highest first, ties to the smaller id.

    Of a vocabulary smaller than k, all ids: the result is [rows, min(k, vocab)]. No logit may be
    NaN. One pass over the logits finds the maxima of strided blocks. At least k blocks reach the
    k-th highest maximum, so nothing below it can be among the k highest logits, and only the
    blocks that reach it are looked into.
    """
    import numpy as np

    num_rows, vocab = logits.shape
    k = min(k, vocab)
    width = vocab // BLOCK
    if width < k:
        return np.argsort(-logits, axis=1, kind="stable")[:, :k]
    # Column c of a row holds the logits c, c + width, c + 2 * width, ...: the maximum is then
    # taken over whole stretches of memory at a time. A few logits at the end are left over.
    blocks = logits[:, : BLOCK * width].reshape(num_rows, BLOCK, width)
    maxima = blocks.max(axis=1)
    floor = np.partition(maxima, width - k, axis=1)[:, width - k]
    # Flat indices: numpy's search for places in two dimensions costs several times as much.
    block_rows, columns = np.divmod(np.flatnonzero(maxima >= floor[:, None]), width)
    looked_into = blocks[block_rows, :, columns]
    which, places = np.divmod(np.flatnonzero(looked_into >= floor[block_rows, None]), BLOCK)
    rest_rows, rest = np.nonzero(logits[:, BLOCK * width :] >= floor[:, None])
    rows = np.concatenate([block_rows[which], rest_rows])
    ids = np.concatenate([places * width + columns[which], rest + BLOCK * width])
    order = np.lexsort((ids, -logits[rows, ids], rows))
    # Where each row starts among the sorted candidates, of which it has at least k.
    starts = np.searchsorted(rows[order], np.arange(num_rows))
    best: Int[np.ndarray, "rows k"] = ids[order[starts[:, None] + np.arange(k)]]
    return best


def top_log_probs(
    logits: Float[np.ndarray, "rows V"], count: int
) -> tuple[Int[np.ndarray, "rows k"], Float[np.ndarray, "rows k"]]:
    """`top_tokens` of each row, and what the logarithm of softmax(row) is there."""
    import numpy as np

    best = top_tokens(logits, count)
    peaks = logits.max(axis=1, keepdims=True)
    norms = peaks + np.log(np.exp(logits - peaks).sum(axis=1, keepdims=True))
    return best, np.take_along_axis(logits, best, axis=1) - norms
