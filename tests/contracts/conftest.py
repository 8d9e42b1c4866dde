"""Contracts make many runs of the same shapes; test_drafters.py has one run that checks them."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def _unchecked_shapes(unchecked_shapes_in_module: None) -> None:
    """For all of this folder, whose speed does not allow the checks."""
