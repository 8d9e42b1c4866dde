"""Weights by tensor arithmetic: the shapes that loading expects, each in its format."""

from __future__ import annotations

from collections.abc import Mapping

from outpace.measure.plan.formats import Choice, Format, Shape
from outpace.measure.plan.sharding import share
from outpace.measure.plan.terms import WEIGHTS, Term

_EMBEDDING, _HEAD = "embedding", "output head"
_MATRICES, _VECTORS = "matrices", "norms and biases"


def weight_terms(
    label: str, shapes: Mapping[str, Shape], choice: Choice, num_kv_heads: int, num_devices: int
) -> list[Term]:
    """Terms of the tensors `shapes`, joined where purpose and format are the same.

    label: whose they are, for the names of the terms. num_devices: that share them, see `sharding`.
    """
    grouped: dict[tuple[str, Format], list[str]] = {}
    for name, shape in shapes.items():
        grouped.setdefault((_purpose(name, shape), choice(name, shape)), []).append(name)
    terms = []
    for (purpose, kind), names in grouped.items():
        shares = [share(name, shapes[name], num_kv_heads, num_devices) for name in names]
        terms.append(
            Term(
                WEIGHTS,
                f"{label}: {purpose}",
                kind.formula(shapes[name] for name in names),
                sum(kind.num_bytes(shapes[name]) for name in names),
                sum(map(kind.num_bytes, shares)),
            )
        )
    return terms


def _purpose(name: str, shape: Shape) -> str:
    if len(shape) == 1:
        return _VECTORS
    if "embed_" in name:
        return _EMBEDDING
    return _HEAD if "lm_head" in name else _MATRICES
