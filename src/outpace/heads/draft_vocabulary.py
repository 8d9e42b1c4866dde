"""A draft's reduced vocabulary, as checkpoints store it: `d2t` and `t2d`.

d2t [Vd] int64 holds offsets: draft token i is target token i + d2t[i]. t2d [V] bool marks the
same tokens. Both are absent where a draft has the whole vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from outpace.errors import ModelError

if TYPE_CHECKING:
    from jaxtyping import Int64
    from torch import Tensor


def vocabulary_names(vocab_size: int, draft_vocab_size: int) -> set[str]:
    """The tensors that say which tokens a draft has."""
    return set() if draft_vocab_size == vocab_size else {"d2t", "t2d"}


def read_vocabulary(
    tensors: Mapping[str, Tensor], vocab_size: int, draft_vocab_size: int, directory: Path
) -> Int64[np.ndarray, " Vd"]:
    """The target id of each draft token, ascending. Raises ModelError where d2t and t2d are no
    vocabulary, or not the same one."""
    if draft_vocab_size == vocab_size:
        return np.arange(vocab_size, dtype=np.int64)
    for name, size in (("d2t", draft_vocab_size), ("t2d", vocab_size)):
        tensor = tensors[name]
        if tuple(tensor.shape) != (size,) or tensor.is_floating_point():
            raise ModelError(
                f"{directory}: {name} is {tensor.dtype} {list(tensor.shape)}; expected {size} "
                f"{'offsets (whole numbers)' if name == 'd2t' else 'flags'}"
            )
    d2t, t2d = tensors["d2t"].numpy(), tensors["t2d"].numpy()
    token_ids: Int64[np.ndarray, " Vd"] = np.arange(draft_vocab_size, dtype=np.int64) + d2t
    if token_ids[0] < 0 or token_ids[-1] >= vocab_size or (np.diff(token_ids) <= 0).any():
        raise ModelError(
            f"{directory}: d2t must give ascending token ids from 0 to {vocab_size - 1}"
        )
    marked = np.flatnonzero(t2d.astype(bool))
    if not np.array_equal(marked, token_ids):
        raise ModelError(
            f"{directory}: d2t and t2d disagree about which tokens the draft has "
            f"({len(token_ids)} and {len(marked)})"
        )
    return token_ids


def vocabulary_tensors(token_ids: Int64[np.ndarray, " Vd"], vocab_size: int) -> dict[str, Tensor]:
    """d2t and t2d of a vocabulary; nothing for the whole one."""
    import torch

    if len(token_ids) == vocab_size:
        return {}
    t2d = np.zeros(vocab_size, dtype=bool)
    t2d[token_ids] = True
    d2t = token_ids - np.arange(len(token_ids), dtype=np.int64)
    return {"d2t": torch.from_numpy(d2t), "t2d": torch.from_numpy(t2d)}
