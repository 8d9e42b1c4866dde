"""What rules do over the tiny models of `outpace.measure.audit`: laws of trees, and how much is
accepted on average, in fractions."""

from __future__ import annotations

from fractions import Fraction

from outpace.measure.audit.exact_law import Law, Model, Rule, completed, decisions, emission_law
from outpace.measure.audit.exact_rules import tree_emission
from outpace.measure.audit.exact_tree import Decide, Drafts, branches


def tree_law(model: Model, decide: Decide, drawn: Drafts) -> Law:
    """The joint law of the first k + 1 tokens: one step over a tree, then the target alone."""
    return completed(emission_law(model, tree_emission(decide), drawn), model)


def expected_accepted(model: Model, rule: Rule) -> Fraction:
    """E[number of accepted draft tokens] of one step over a chain."""
    total = Fraction(0)
    for mass, draft in model.drafts():
        for volume, decision in decisions(rule, model.p_rows(draft), draft):
            total += mass * volume * decision.num_accepted
    return total


def expected_path_len(model: Model, decide: Decide, drawn: Drafts) -> Fraction:
    """E[number of accepted draft tokens] of one step over a tree."""
    total = Fraction(0)
    for mass, draft in drawn:
        for share, decision in branches(decide, model.p_rows(draft), draft):
            total += mass * share * decision.num_accepted
    return total
