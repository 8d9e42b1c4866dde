"""Outpace: lossless speculative decoding. Heavy imports wait until a name is used."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["LLM", "Drafter", "SamplingParams", "__version__", "speculative_step"]

if TYPE_CHECKING:
    from outpace.drafters.base import Drafter
    from outpace.engine.llm import LLM
    from outpace.params import SamplingParams
    from outpace.speculative import speculative_step

_HOMES = {
    "LLM": "outpace.engine.llm",
    "Drafter": "outpace.drafters.base",
    "SamplingParams": "outpace.params",
    "speculative_step": "outpace.speculative",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'outpace' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
