"""What a drafter needs of an EAGLE head, whoever computes it."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as List
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from outpace.cache import CopyableRows
from outpace.heads.config import EagleConfig
from outpace.models.attention import Segment

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float32, Int64


@dataclass(frozen=True, slots=True)
class Race:
    """A seeded request's noise, by which its target chooses too; see `coupled.choose`.

    keys: of the noise of each draft token, 64 bits. winner: the draft vocabulary's index of the
    token that arrives first, from the head's logits and the number of the draft token: for heads
    that do not run the race themselves.
    """

    keys: List[int]
    winner: Callable[[Float32[np.ndarray, " Vd"], int], int]


@dataclass(frozen=True, slots=True)
class Chooser:
    """How the tokens of a chain are chosen from the head's logits.

    With coins in [0, 1), one for each token, it is drawn by inverting the cumulative sum of
    softmax(logits / temperature), its q. With a race the winner is taken, at the same temperature.
    With neither the argmax, lowest id among equals. temperature: above 0 where it matters.
    """

    temperature: float = 0.0
    coins: List[float] = ()
    race: Race | None = None


BEST = Chooser()


@dataclass(frozen=True, slots=True)
class HeadDraft:
    """A chain for each sequence.

    token_ids: target ids. q: for each token the distribution that it was drawn from, over the
    *draft* vocabulary, [draft_vocab_size] float32 that sums to 1; None for a sequence whose tokens
    were not drawn. ranked: if asked for, for each token the likeliest ones at its place, itself
    first, then the lowest id first among equals: their target ids, and their probabilities in the
    softmax of the head's logits.
    """

    token_ids: list[list[int]]
    q: list[Float32[np.ndarray, "steps Vd"] | None]
    ranked: list[list[tuple[list[int], list[float]]]] = field(default_factory=list)


class EagleRunner(Protocol):
    """An EAGLE head that runs over its own cache rows, all arrays float32 in host memory.

    Columns live in cache rows like a model's tokens: slot i of a row is column i, its rotary
    position is i (of tree nodes: by depth). A row may begin anywhere in a text. The cache's row ids
    are the tokens of the columns: that after the one whose feature column i starts from.
    """

    config: EagleConfig

    @property
    def draft_token_ids(self) -> Int64[np.ndarray, " Vd"]:
        """The target id of each token of the draft vocabulary, ascending."""

    def kv_bytes(self, *, num_rows: int, capacity: int) -> int: ...

    def new_cache(self, *, num_rows: int, capacity: int) -> CopyableRows:
        """Rows of columns; `capacity` a multiple of `attention.KEY_BLOCK`."""

    def fuse(self, features: Float32[np.ndarray, "n F"]) -> Float32[np.ndarray, "n H"]:
        """Target features (captured layers side by side) as what columns start from.

        Of "eagle3" the output of `fc`, with its norms; of "eagle" the last layer through the
        target's final norm.
        """

    def forward(
        self,
        cache: CopyableRows,
        token_ids: List[int],
        x: Float32[np.ndarray, "n H"],
        segments: List[Segment],
        logit_rows: List[int],
    ) -> tuple[Float32[np.ndarray, "r Vd"], Float32[np.ndarray, "n H"]]:
        """One pass over new columns, which may be trees. Writes keys and values; the ids of the
        rows are the caller's to keep.

        token_ids: target ids. x: what each column starts from: fused features, or the output of the
        column before it. Returns the logits of `logit_rows` over the draft vocabulary, and every
        column's output (after the final norm if `norm_output`), from which columns that follow it
        start.
        """

    def draft(
        self,
        cache: CopyableRows,
        rows: List[int],
        starts: List[int],
        pending: List[List[int]],
        features: Float32[np.ndarray, "n F"],
        counts: List[int],
        choosers: List[Chooser],
        *,
        width: int = 0,
    ) -> HeadDraft:
        """Chains for several sequences, on the native path in one call.

        Feeds `pending[i]` (at least one token; `features` holds the target's rows for them, to be
        fused, one sequence after the other) from slot `starts[i]` of row `rows[i]`, then the
        drafted tokens but the last, each with the output of the column before it; `counts[i]`
        tokens (at least one) are drafted, as `choosers[i]` says. width: how many tokens are ranked
        for each place, or all where the draft vocabulary has fewer; 0: none. With a width every
        chooser is `BEST`.
        """
