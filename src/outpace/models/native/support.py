"""Which models the native step runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outpace.models.native.formats import PACKED_DTYPES, WHOLE
from outpace.native.library import status

if TYPE_CHECKING:
    import torch

DTYPES = ("auto", *WHOLE, *PACKED_DTYPES)


def why_not(dtype: str, device: torch.device) -> str | None:
    """Why the native step cannot run a decoder in this dtype on this device, as a clause; None if
    it can. It computes whatever `ModelConfig` can say.

    Raises OptionError if the environment asks for an instruction set that this machine lacks.
    """
    if device.type != "cpu":
        return f"it runs on CPUs only, not on {device.type!r}"
    if dtype not in DTYPES:
        return f"it does not compute in {dtype}"
    return status().reason
