"""How many examples a property is tried on."""

from __future__ import annotations

from hypothesis import settings

_QUICK = 60
"""What the quick profile of conftest.py tries where a test says nothing."""


def examples(number: int) -> int:
    """`number` in `make test`, and as many times more as the profile tries more elsewhere."""
    return number * settings.default.max_examples // _QUICK
