"""Drafts of an EAGLE head: chains, drawn or chosen, and dynamic trees."""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from outpace.control.rivals import Ranked
from outpace.drafters.parts.eagle_rows import EagleRows, Feed, joined
from outpace.drafters.parts.eagle_tree import CandidateTree
from outpace.heads.base import BEST, Chooser, HeadDraft, Race
from outpace.heads.top_tokens import top_log_probs
from outpace.models.attention import Segment
from outpace.types import NO_DRAFT, Draft, Sequence
from outpace.verification.coupled import choose, noise_key

if TYPE_CHECKING:
    from jaxtyping import Float32

NUM_RACING = 32
"""Tokens among which the noise of a seeded request chooses a draft token."""

MIN_TEMPERATURE = 0.01
"""Below it a draw is the argmax but for rare exceptions, and is not worth float32's trouble."""


@dataclass(slots=True)
class _Growth:
    """A sequence's tree while it is made.

    outputs: of each node fed the output of its column, [H], where its children's start from; of -1
    that of the newest token.
    """

    feed: Feed
    tree: CandidateTree
    outputs: dict[int, Float32[np.ndarray, " H"]]
    frontier: list[int] = field(default_factory=list)
    fed: list[int] = field(default_factory=list)

    def next_level(self) -> bool:
        """Whether another level is to be grown: from `frontier`, of which and of what stands above
        it the columns are to be fed."""
        self.frontier = self.tree.frontier()
        self.fed = self.tree.closure(self.frontier)
        return bool(self.frontier)

    @property
    def segment(self) -> Segment:
        start = self.feed.start + len(self.feed.token_ids)
        return Segment(self.feed.row, start, len(self.fed), self.tree.parents_within(self.fed))


class EagleDrafts:
    """Drafts for sequences whose columns are ready to be fed (`EagleRows.is_ready`).

    All passes are over float32 arrays in host memory. Drafted columns are written behind the end of
    a row, where the next pass overwrites them.
    """

    def __init__(
        self, rows: EagleRows, rng: np.random.Generator, origin: str, num_tokens: int
    ) -> None:
        """num_tokens: of the target without what pads its vocabulary: the size of its p."""
        self._rows = rows
        self._head = rows.head
        self._rng = rng
        self._origin = origin
        self._target_ids = rows.head.draft_token_ids
        self._num_tokens = num_tokens
        self._weights = np.zeros(self._num_tokens, np.float32)

    def chains(self, seqs: List[Sequence], counts: List[int]) -> list[Draft]:
        """`counts[i]` tokens after each sequence; none for 0.

        The argmax for a greedy request. Without a seed tokens are drawn from the head's softmax at
        the request's temperature, their q; with one they are chosen by the noise by which the
        target will choose at the same position, which makes the two agree more often.
        """
        drafts = [NO_DRAFT] * len(seqs)
        places, made = self._drafted(seqs, counts)
        for i, token_ids, q in zip(places, made.token_ids, made.q, strict=True):
            drafts[i] = Draft(tuple(token_ids), self._over_target(q), self._origin)
        return drafts

    def ranked(self, seqs: List[Sequence], counts: List[int], width: int) -> list[list[Ranked]]:
        """For each sequence `counts[i]` levels, also where it samples: the `width` likeliest tokens
        of a position after the likeliest ones of those before it. So their first tokens are the
        head's greedy chain."""
        found: list[list[Ranked]] = [[] for _ in seqs]
        places, made = self._drafted(seqs, counts, width)
        for i, levels in zip(places, made.ranked, strict=True):
            found[i] = [Ranked(*level) for level in levels]
        return found

    def _drafted(
        self, seqs: List[Sequence], counts: List[int], width: int = 0
    ) -> tuple[list[int], HeadDraft]:
        """Which of the sequences have a count above 0, and the head's drafts for these; width: see
        `EagleRunner.draft`. Tokens are chosen as the requests ask for it, unless they are ranked.
        """
        places = {seq.seq_id: i for i, seq in enumerate(seqs) if counts[i] > 0}
        if not places:
            return [], HeadDraft([], [])
        feeds = self._rows.feeds([seqs[i] for i in places.values()])
        sizes = [counts[places[feed.seq.seq_id]] for feed in feeds]
        made = self._head.draft(
            self._rows.cache,
            [feed.row for feed in feeds],
            [feed.start for feed in feeds],
            [feed.token_ids for feed in feeds],
            joined(feeds),
            sizes,
            [BEST] * len(feeds) if width else list(map(self._chooser, feeds, sizes)),
            width=width,
        )
        self._rows.claim(feeds)
        return [places[feed.seq.seq_id] for feed in feeds], made

    def _chooser(self, feed: Feed, count: int) -> Chooser:
        seq, params = feed.seq, feed.seq.params
        if params.is_greedy:
            return BEST
        if params.seed is not None:
            keys = [
                noise_key(params.seed, seq.choice, seq.num_output + number)
                for number in range(count)
            ]
            return Chooser(params.temperature, race=Race(keys, partial(self._winner, seq)))
        if params.temperature < MIN_TEMPERATURE:
            return BEST
        return Chooser(params.temperature, self._rng.random(count).tolist())

    def _over_target(
        self, q: Float32[np.ndarray, "steps Vd"] | None
    ) -> tuple[Float32[np.ndarray, " V"], ...] | None:
        """Distributions over the draft vocabulary by target id: 0 where the draft has no token."""
        if q is None:
            return None
        spread = np.zeros((len(q), self._num_tokens), np.float32)
        # Row by row: one assignment to all rows takes numpy three times as long.
        for row, law in zip(spread, q, strict=True):
            row[self._target_ids] = law
        return tuple(spread)

    def _winner(self, seq: Sequence, logits: Float32[np.ndarray, " Vd"], number: int) -> int:
        """The index of the token that arrives first in the race of `coupled.choose`, of the
        likeliest ones."""
        assert seq.params.seed is not None
        count = min(NUM_RACING, len(logits))
        best = np.argpartition(logits, -count)[-count:]
        token_ids, weights = self._target_ids[best], self._weights
        # Float64: a temperature near 0 would overflow.
        above = logits[best].astype(np.float64)
        weights[token_ids] = np.exp((above - above.max()) / seq.params.temperature)
        winner = choose(weights, seq.params.seed, seq.choice, seq.num_output + number)
        weights[token_ids] = 0
        return int(best[token_ids == winner][0])

    def _feed_all(
        self, feeds: List[Feed]
    ) -> tuple[Float32[np.ndarray, "n Vd"], Float32[np.ndarray, "n H"]]:
        """Feed the columns that are due; logits and outputs of the last one of each sequence."""
        last = (np.cumsum([len(feed.token_ids) for feed in feeds]) - 1).tolist()
        logits, outputs = self._head.forward(
            self._rows.cache,
            [token for feed in feeds for token in feed.token_ids],
            self._head.fuse(joined(feeds)),
            [Segment(feed.row, feed.start, len(feed.token_ids)) for feed in feeds],
            last,
        )
        self._rows.claim(feeds)
        return logits, outputs[last]

    def trees(
        self, seqs: List[Sequence], max_nodes: List[int], max_depths: List[int], top_k: int
    ) -> list[Draft]:
        """A dynamic tree after each sequence, its nodes chosen and not drawn; none for 0.

        Nodes know their ancestors within one pass only, so each level feeds those of the tree that
        it hangs from anew.
        """
        drafts = [NO_DRAFT] * len(seqs)
        places = {seq.seq_id: i for i, seq in enumerate(seqs) if max_nodes[i] and max_depths[i]}
        if not places:
            return drafts
        feeds = self._rows.feeds([seqs[i] for i in places.values()])
        logits, outputs = self._feed_all(feeds)
        growths = []
        for feed, output in zip(feeds, outputs, strict=True):
            i = places[feed.seq.seq_id]
            tree = CandidateTree(top_k=top_k, max_nodes=max_nodes[i], max_depth=max_depths[i])
            growths.append(_Growth(feed, tree, {-1: output}, [-1]))
        self._add_children(growths, logits, top_k)
        while growing := [growth for growth in growths if growth.next_level()]:
            self._add_children(growing, self._feed_frontiers(growing), top_k)
        for growth in growths:
            drafts[places[growth.feed.seq.seq_id]] = self._cut(growth.tree)
        return drafts

    def _feed_frontiers(self, growths: List[_Growth]) -> Float32[np.ndarray, "n Vd"]:
        """Feed each frontier with what stands above it; logits after the frontiers' nodes."""
        token_ids: list[int] = []
        logit_rows: list[int] = []
        x: list[Float32[np.ndarray, " H"]] = []
        for growth in growths:
            tree, place = growth.tree, {node: i for i, node in enumerate(growth.fed)}
            logit_rows += [len(token_ids) + place[node] for node in growth.frontier]
            token_ids += [tree.token_ids[node] for node in growth.fed]
            x += [growth.outputs[tree.parents[node]] for node in growth.fed]
        logits, outputs = self._head.forward(
            self._rows.cache,
            token_ids,
            np.stack(x),
            [growth.segment for growth in growths],
            logit_rows,
        )
        end = 0
        for growth in growths:
            begin, end = end, end + len(growth.fed)
            growth.outputs |= zip(growth.fed, outputs[begin:end], strict=True)
        return logits

    def _add_children(
        self, growths: List[_Growth], logits: Float32[np.ndarray, "n Vd"], top_k: int
    ) -> None:
        """Give every node of the frontiers, in their order, its likeliest children."""
        best, chances = top_log_probs(logits, top_k)
        log_probs, token_ids = chances.tolist(), self._target_ids[best].tolist()
        rows = iter(range(len(logits)))
        for growth in growths:
            for node in growth.frontier:
                row = next(rows)
                growth.tree.add(node, token_ids[row], log_probs[row])

    def _cut(self, tree: CandidateTree) -> Draft:
        nodes = tree.best()
        token_ids = tuple(tree.token_ids[node] for node in nodes)
        return Draft(token_ids, origin=self._origin, parents=tree.parents_within(nodes))
