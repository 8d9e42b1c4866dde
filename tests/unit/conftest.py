"""Fixtures of the unit tests."""

from __future__ import annotations

from collections.abc import Iterator

import jaxtyping
import pytest


@pytest.fixture
def unchecked_shapes() -> Iterator[None]:
    """Simulations make many calls of the same shape; checking each one would take minutes."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
