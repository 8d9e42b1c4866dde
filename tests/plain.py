"""Engines that decode plainly, to compare with and for tests that no drafting concerns."""

from __future__ import annotations

from typing import Any

from outpace import LLM


def plain_llm(model: Any, **options: Any) -> LLM:
    """An `LLM` without a drafter. `LLM(model)` alone drafts by itself, and is no oracle."""
    return LLM(model, speculative_config={"method": "none"}, **options)
