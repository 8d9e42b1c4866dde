"""What the engine needs of a model, whoever computes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from outpace.cache import CacheRows

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor

    from outpace.models.decoder import Batch


@runtime_checkable
class CausalModel(Protocol):
    """A causal language model whose cache can be rolled back, on one device.

    The native step (`models/native`) is one, our own `Decoder` in torch another, and so is the
    adapter for models of `transformers`.
    """

    @property
    def dtype_name(self) -> str:
        """What the weights are held in: "float32", "bfloat16", ..., or a packed format."""

    @property
    def device(self) -> torch.device: ...

    @property
    def num_logits(self) -> int:
        """How many leading vocabulary rows are real tokens; the rest is padding without logits."""

    @property
    def num_layers(self) -> int: ...

    @property
    def max_len(self) -> int:
        """Most tokens of a sequence: the positions the model was made for."""

    @property
    def max_rows(self) -> int | None:
        """Most rows a cache of this model may have; None: any number."""

    @property
    def capturable(self) -> range:
        """Layers whose output `forward` can return: 0 is the embedding, i the i-th layer."""

    def kv_bytes(self, *, num_rows: int, capacity: int) -> int:
        """Bytes of a cache of that size, once it is full."""

    def new_cache(self, *, num_rows: int, capacity: int) -> CacheRows: ...

    def forward(
        self, batch: Batch, cache: Any, capture: Sequence[int] = ()
    ) -> tuple[Tensor | np.ndarray, Mapping[int, Tensor]]:
        """One pass over the batch. Mutates only `cache`, which must come from `new_cache`.

        Returns the logits of `batch.logit_rows`, [R, num_logits] in float32 (float64 for a
        float64 model), as a tensor or, in host memory, an array; and for each layer in `capture`
        its output (residual stream, before any norm) for every token of the batch, [N, hidden].
        """


@runtime_checkable
class EarlyExit(CausalModel, Protocol):
    """What a model may offer besides: passes through its first layers alone."""

    @property
    def exit_layers(self) -> range:
        """The numbers of layers that a pass may run: 1 to all."""

    def forward(
        self,
        batch: Batch,
        cache: Any,
        capture: Sequence[int] = (),
        num_layers: int | None = None,
    ) -> tuple[Tensor | np.ndarray, Mapping[int, Tensor]]:
        """As `CausalModel.forward`, through the first `num_layers` layers (None: all).

        Writes keys and values of these alone. The logits are those of the early exit: final norm
        and head of what the last of them left.
        """


@runtime_checkable
class GreedyDrafting(Protocol):
    """What a model may offer besides: a whole greedy draft in one call."""

    def draft(
        self,
        cache: Any,
        rows: Sequence[int],
        starts: Sequence[int],
        pending: Sequence[Sequence[int]],
        counts: Sequence[int],
        num_layers: int | None = None,
    ) -> list[list[int]]:
        """The model's own greedy continuation of several sequences.

        Feeds `pending[i]` (at least one token) from slot `starts[i]` of row `rows[i]`, then what it
        chooses itself; returns `counts[i]` tokens (at least one), the last of which is not fed. The
        ids of the rows are the caller's to keep. num_layers: see `EarlyExit.forward`; only a model
        that is both takes it.
        """
