"""One line of a plan: a number of bytes, and how it comes about."""

from __future__ import annotations

from dataclasses import dataclass

WEIGHTS, CACHES, WORKSPACE = "weights", "caches", "workspace"
FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Term:
    """Memory of one purpose.

    group: WEIGHTS, CACHES or WORKSPACE. name: what it is. formula: the arithmetic, with its
    numbers, that gives `num_bytes`.
    num_bytes: of the whole, in bytes. device_bytes: what the device with the largest share of it
    holds; more than an even share where parts are held by several devices.
    """

    group: str
    name: str
    formula: str
    num_bytes: int
    device_bytes: int


def replicated(group: str, name: str, formula: str, num_bytes: int) -> Term:
    """A term that every device holds whole."""
    return Term(group, name, formula, num_bytes, num_bytes)
