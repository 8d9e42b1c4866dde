"""From `auto`'s plan to drafts: chains as they were planned, and trees cut to what pays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as List
from dataclasses import dataclass, replace
from itertools import takewhile

from outpace.control.goodput import LOOKUP, NONE, TRAINED, Plan, Ways, best_nodes
from outpace.drafters.base import Drafter
from outpace.drafters.parts.merged import MergedTree, Merging
from outpace.types import NO_DRAFT, Draft, Sequence

MERGED = "merged"
"""Of a draft that was made of the tokens of both, which the plan calls TRAINED."""


def source_names(lookup: Drafter, trained: Drafter | None) -> dict[str, str]:
    """What the sources of drafts are called in records."""
    names = {LOOKUP: lookup.method_name(), NONE: NONE}
    if trained is not None:
        names[TRAINED] = trained.method_name()
        names[MERGED] = f"{names[LOOKUP]}+{names[TRAINED]}"
    return names


@dataclass(frozen=True, slots=True)
class Made:
    """What one sequence was given in a step.

    offered: what the lookup would have drafted. tree: what the draft was cut from, if the trained
    drafter ranked tokens for it.
    """

    source: str
    draft: Draft
    offered: Draft
    tree: MergedTree | None = None

    @property
    def by_trained(self) -> bool:
        """Whether the trained drafter has a share in it."""
        return self.source in (TRAINED, MERGED)

    def num_right(self, said: List[int]) -> int:
        """How many of the lookup's tokens, from the first on, were said."""
        pairs = zip(self.offered.token_ids, said, strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


NOTHING_MADE = Made(NONE, NO_DRAFT, NO_DRAFT)


def asked_lengths(decided: Plan, seqs: List[Sequence]) -> dict[int, int]:
    """By `seq_id` how many tokens the trained drafter is asked for, of those it is asked about."""
    return {
        seq.seq_id: length
        for seq, (source, length) in zip(seqs, decided.choices, strict=True)
        if source == TRAINED and length
    }


def carry_out(
    decided: Plan,
    seqs: List[Sequence],
    offers: List[Draft],
    ways: List[Ways],
    trained: Drafter | None,
    merging: Merging | None,
) -> list[Made]:
    """What each sequence is given. A tree comes whole and without a draft: see `fit_trees`.

    offers: the lookup's drafts. trained: asked only where the plan says so.
    """
    made = [
        Made(source, offer.shortened(length), offer)
        if source == LOOKUP
        else Made(NONE, NO_DRAFT, offer)
        for offer, (source, length) in zip(offers, decided.choices, strict=True)
    ]
    lengths = {i: n for i, (source, n) in enumerate(decided.choices) if source == TRAINED and n}
    trees = [i for i in lengths if merging is not None and merging.takes(seqs[i])]
    chains = [i for i in lengths if i not in trees]
    if trained is not None and chains:
        drafts = trained.propose([seqs[i] for i in chains], [lengths[i] for i in chains])
        for i, draft in zip(chains, drafts, strict=True):
            made[i] = Made(TRAINED if len(draft) else NONE, draft, offers[i])
    if merging is not None and trees:
        asked = [(seqs[i], offers[i], ways[i].lookup, lengths[i]) for i in trees]
        for i, tree in zip(trees, merging.grow(asked), strict=True):
            made[i] = Made(_source_of(tree, offers[i]), NO_DRAFT, offers[i], tree)
    return made


def _source_of(tree: MergedTree, offer: Draft) -> str:
    if not tree.num_levels:  # the head stayed silent
        return LOOKUP
    return MERGED if len(offer) else TRAINED


def fit_trees(
    made: List[Made],
    decided: Plan,
    budgets: List[int],
    ways: List[Ways],
    curve_to: Callable[[int], List[float]],
    rate: float,
    names: Mapping[str, str],
) -> tuple[list[Made], Plan]:
    """Cut the trees to the nodes that are worth their rows; and what is expected now that the
    candidates are known.

    budgets: most nodes of each draft. curve_to: seconds of the step with 0, 1, ..., n draft tokens
    of all sequences. rate: output tokens a second is worth. names: of the sources, for origins.
    """
    trees = {i: each.tree for i, each in enumerate(made) if each.tree is not None}
    limits = [min(budgets[i], len(tree.worths)) for i, tree in trees.items()]
    num_planned = sum(length for _, length in decided.choices)
    num_others = sum(len(each.draft) for each in made)
    curve = curve_to(max(num_planned, num_others + sum(limits)))
    worths = [tree.worths for tree in trees.values()]
    kept = best_nodes(worths, limits, curve[num_others:], rate)
    fitted, num_tokens = list(made), decided.num_tokens
    for (i, tree), nodes in zip(trees.items(), kept, strict=True):
        fitted[i] = replace(made[i], draft=tree.draft(nodes, names[made[i].source]))
        num_tokens -= sum(ways[i].trained[: decided.choices[i][1]])
        num_tokens += sum(tree.worths[node] for node in nodes)
    num_drafted = num_others + sum(map(len, kept))
    seconds = decided.seconds + curve[num_drafted] - curve[num_planned]
    return fitted, Plan(decided.choices, num_tokens, seconds)
