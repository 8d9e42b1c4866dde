"""The cache of a model that `transformers` runs, and the proof that it can be rolled back.

A cache layer may say that it can be cropped and not do it, or do it and leave a trace. So it is
tried, before the first request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor

from outpace.cache import CacheRows
from outpace.models.config import refuse

Feed = Callable[[list[int], int, Any], Tensor]
"""feed(token_ids, start, past): logits [N, V] after each of the N tokens, the first of which stands
at position `start`. They are added to the cache `past`; None computes without a cache."""

CANNOT_ROLL_BACK = "cannot be rolled back after a rejected draft"
_NUM_KEPT = _NUM_REJECTED = _NUM_OTHER = 3


class HFCache(CacheRows):
    """One row, whose content is a cache object of `transformers`.

    past: that object; passes add to it. Its layers can be longer than the row for a moment, after
        a pass that failed half-way: rollback cuts each by what it has too much.
    """

    def __init__(self, past: Any, *, capacity: int, num_bytes: int) -> None:
        super().__init__(num_rows=1, capacity=capacity)
        self.past = past
        self._num_bytes = num_bytes

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    def rollback(self, row: int, length: int) -> None:
        """Forget everything past the first `length` tokens of the row."""
        super().rollback(row, length)
        crop_to(self.past, length)

    def check_integrity(self, open_rows: Sequence[int]) -> None:
        """Also raise AssertionError where a layer holds another number of tokens than the row."""
        super().check_integrity(open_rows)
        held = held_lengths(self.past)
        assert set(held) <= {self.length(0)}, f"layers hold {held} tokens, not {self.length(0)}"


def held_lengths(past: Any) -> list[int]:
    """How many tokens each layer of a transformers cache holds, layers without any left out."""
    return [int(layer.get_seq_length()) for layer in _layers_in_use(past)]


def held_bytes(past: Any) -> int:
    """Bytes of the keys and values in a transformers cache."""
    tensors = [tensor for layer in _layers_in_use(past) for tensor in (layer.keys, layer.values)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def crop_to(past: Any, length: int) -> None:
    """Cut every layer of a transformers cache to its first `length` tokens."""
    for layer in _layers_in_use(past):
        excess = int(layer.get_seq_length()) - length
        # A number to remove is written negative; a positive one once meant the number to keep, and
        # zero has been the one that does nothing as well as the one that tidies up.
        if excess > 0:
            layer.crop(-excess)


def _layers_in_use(past: Any) -> list[Any]:
    """The layers that hold keys: not those of a layer that shares another's, or was never run."""
    return [layer for layer in past.layers if layer.keys is not None]


def check_rewind(feed: Feed, past: Any, num_tokens: int, *, tolerance: float, name: str) -> int:
    """Feed tokens, forget some, feed others, and compare with a run that never saw the forgotten.

    past: an empty cache. num_tokens: ids to feed are below it. tolerance: in standard deviations of
        the logits.
    Returns how many tokens the cache holds in the end.
    Raises ModelError, naming the model and what is wrong, unless both agree.
    """
    count = _NUM_KEPT + _NUM_REJECTED + _NUM_OTHER
    ids = [i * num_tokens // count for i in range(count)]
    kept, other = ids[:_NUM_KEPT], ids[-_NUM_OTHER:]
    before = ids[:-_NUM_OTHER]
    feed(before, 0, past)
    _check_lengths(past, len(before), f"after {len(before)} tokens were fed", name)
    try:
        crop_to(past, len(kept))
    except (RuntimeError, ValueError, TypeError, AttributeError, NotImplementedError) as error:
        refuse(name, f"its cache {CANNOT_ROLL_BACK} ({error})")
    _check_lengths(past, len(kept), f"after a rollback to {len(kept)}", name)
    after = feed(other, len(kept), past)
    fresh = feed([*kept, *other], 0, None)[len(kept) :]
    _check_close(after, fresh, tolerance, name)
    return len(kept) + len(other)


def _check_lengths(past: Any, length: int, when: str, name: str) -> None:
    held = held_lengths(past)
    if not held or set(held) != {length}:
        found = ", ".join(map(str, sorted(set(held)))) or "no"
        refuse(name, f"its cache {CANNOT_ROLL_BACK}: {when}, its layers hold {found} tokens")


def _check_close(
    after: Float[Tensor, "n vocab"], fresh: Float[Tensor, "n vocab"], tolerance: float, name: str
) -> None:
    scale = max(float(fresh.std()), 1e-30)
    difference = float((after - fresh).abs().max()) / scale
    if not difference <= tolerance:  # also where it is NaN
        refuse(
            name,
            f"its cache {CANNOT_ROLL_BACK}: the logits after a rollback differ by {difference:.2g} "
            f"standard deviations from those of a fresh run (allowed: {tolerance:g})",
        )
