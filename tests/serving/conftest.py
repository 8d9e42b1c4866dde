"""A server for the tests of this folder; servers.py makes others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from servers import RunningServer, serving


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """One server for all tests of a module, with default settings."""
    with serving() as running:
        yield running
