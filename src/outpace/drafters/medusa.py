"""Heads on the target's last feature draft: each guesses one token further ahead, all at once.

Medusa (Cai et al. 2401.10774). The heads do not see each other's tokens, which costs acceptance and
saves passes: a whole draft is a few small products. Verification is lossless here; the paper's
typical acceptance is not, and has to be asked for.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outpace.drafters.base import (
    Drafter,
    DrafterOptions,
    DraftingContext,
    check_shape,
    check_whole_number,
    path_limit,
)
from outpace.types import Draft, Scores, Sequence, Verdict

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float32

    from outpace.heads.medusa_runner import MedusaRunner


@dataclass(frozen=True, kw_only=True)
class MedusaOptions(DrafterOptions):
    """Options of drafting by Medusa heads.

    model: directory of trained heads. From Python also a `MedusaRunner` that is open already.
    """

    model: Any = field(default=None, metadata={"help": "directory of trained heads (needed)"})
    num_speculative_tokens: int = field(
        default=3,
        metadata={
            "help": "most draft tokens per step (K), of a tree all its nodes; no path is longer "
            "than there are heads"
        },
    )
    shape: str = field(default="chain", metadata={"help": "what to draft: chain or tree"})
    tree_top_k: int = field(
        default=10, metadata={"help": "candidates of each position that a tree is made of"}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shape(self.shape)
        check_whole_number("tree_top_k", self.tree_top_k, low=1)


@dataclass(slots=True)
class _Newest:
    """The last feature known of a sequence: of the token at `position`."""

    position: int
    feature: Float32[np.ndarray, " H"]


class MedusaDrafter(Drafter):
    """Keeps one feature a sequence: that of the last token which is both committed and fed, from
    which the target chose the newest token and the heads guess those after it.

    Chains of unseeded sampling are drawn from the heads' distributions, their q: the heads being
    independent given the feature, a position's q does not depend on the draft before it. Nodes of
    trees are judged one-hot.
    """

    Options = MedusaOptions

    def __init__(self, options: MedusaOptions, context: DraftingContext) -> None:
        # Heavy imports wait until heads are really opened: the command line imports this file to
        # read its options.
        from outpace.drafters.parts.reduced_draws import ReducedDraws

        super().__init__(options, context)
        self._heads = _open_heads(options, context)
        self.capture = (self._heads.feature_layer,)
        self.longest = self._heads.config.num_heads
        self._is_tree = options.shape == "tree" and context.runner.takes_trees
        self._top_k = options.tree_top_k
        # Ids ascend, and rows past `num_logits` are padding that no token has.
        num_logits, token_ids = context.runner.model.num_logits, self._heads.draft_token_ids
        self._token_ids = token_ids[token_ids < num_logits]
        self._draws = ReducedDraws(self._token_ids, num_logits, context.rng)
        self._newest: dict[int, _Newest] = {}

    def propose(self, seqs: List[Sequence], budgets: List[int]) -> list[Draft]:
        import numpy as np

        drafts = [Draft()] * len(seqs)
        depths = [self._depth(seq, budget) for seq, budget in zip(seqs, budgets, strict=True)]
        wanted = [i for i, depth in enumerate(depths) if depth > 0]
        if not wanted:
            return drafts
        features = np.stack([self._newest[seqs[i].seq_id].feature for i in wanted])
        logits = self._heads.logits(features, max(depths[i] for i in wanted))
        logits = logits[:, :, : len(self._token_ids)]
        for row, i in enumerate(wanted):
            own = logits[: depths[i], row]
            if self._is_tree:
                drafts[i] = self._tree(own, budgets[i])
            else:
                token_ids, q = self._draws.chain(own, seqs[i])
                drafts[i] = Draft(token_ids, q, "medusa")
        return drafts

    def _depth(self, seq: Sequence, budget: int) -> int:
        """How many tokens may be drafted on one path; 0 where the newest feature is not known."""
        newest = self._newest.get(seq.seq_id)
        if newest is None or newest.position != len(seq.tokens) - 2:
            return 0
        return min(path_limit(seq, budget), self._heads.config.num_heads)

    def _tree(self, logits: Float32[np.ndarray, "k Vd"], num_nodes: int) -> Draft:
        import numpy as np

        from outpace.drafters.parts.product_tree import likeliest_paths
        from outpace.heads.top_tokens import top_log_probs

        best, log_probs = top_log_probs(logits, min(self._top_k, num_nodes))
        # Rounding may lift one above 0, and paths must not gain by growing.
        nodes = likeliest_paths(np.minimum(log_probs, 0).tolist(), num_nodes)
        candidates = self._token_ids[best].tolist()
        token_ids = tuple(candidates[node.depth - 1][node.rank] for node in nodes)
        return Draft(token_ids, None, "medusa", tuple(node.parent for node in nodes))

    def observe(self, seqs: List[Sequence], scores: Scores, verdicts: List[Verdict]) -> None:
        from outpace.drafters.parts.features import CapturedFeatures, committed_rows

        rows, positions = [], []
        for i, verdict in enumerate(verdicts):
            found = committed_rows(scores.fed[i], scores.rows[i], verdict)
            text = range(found.start, found.stop) if isinstance(found, slice) else found
            rows.append(text[-1])
            positions.append(scores.starts[i] + len(text) - 1)
        features = CapturedFeatures(scores.hidden, self.capture)[rows]
        for seq, position, feature in zip(seqs, positions, features, strict=True):
            self._newest[seq.seq_id] = _Newest(position, feature)

    def release(self, seq: Sequence) -> None:
        self._newest.pop(seq.seq_id, None)

    def check_integrity(self) -> None:
        assert not self._newest, f"features kept of sequences {sorted(self._newest)}"


def _open_heads(options: MedusaOptions, context: DraftingContext) -> MedusaRunner:
    """Raises ModelError where the heads do not go with the target, or there are none."""
    from outpace.heads.medusa_runner import open_medusa

    if options.model is None or isinstance(options.model, str | Path):
        return open_medusa(options.model, context.target)
    heads: MedusaRunner = options.model
    return heads
