"""Devices and their memory, as users write them: "2x24GB", "80GiB", "24GB,16GB"."""

from __future__ import annotations

import re
from dataclasses import dataclass

from outpace.errors import OptionError

_UNITS = {"MB": 10**6, "GB": 10**9, "TB": 10**12, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_DEVICE = re.compile(r"(?:(\d{1,4})\s*[xX×*]\s*)?(\d{1,6}(?:\.\d{1,6})?)\s*([MGTmgt][iI]?[bB])")
_MAX_DEVICES = 4096


@dataclass(frozen=True, slots=True)
class Device:
    """name: as it was given. num_bytes: its memory."""

    name: str
    num_bytes: int

    def usable_bytes(self, reserve_percent: float) -> int:
        """What is left of its memory once the reserve is set aside, in bytes."""
        return int(self.num_bytes * (100 - reserve_percent) / 100)


def parse_devices(text: str) -> list[Device]:
    """Devices in their order. GB is 10^9 bytes, GiB 2^30. Raises OptionError for anything else."""
    devices: list[Device] = []
    for part in text.split(","):
        match = _DEVICE.fullmatch(part.strip())
        count = int(match[1] or 1) if match else 0
        num_bytes = int(float(match[2]) * _UNITS[match[3].upper()]) if match else 0
        if match is None or num_bytes < 1 or not 1 <= count <= _MAX_DEVICES - len(devices):
            raise OptionError(
                f"devices must be written like 24GB, 80GiB, 2x24GB or 24GB,16GB (GB is 10^9 bytes, "
                f"GiB 2^30; at most {_MAX_DEVICES} devices), got {text!r:.80}"
            )
        devices += [Device(f"{match[2]}{match[3]}", num_bytes)] * count
    return devices


def this_machine() -> Device:
    """The device that a model would be loaded to here, with the memory that is free on it now."""
    from outpace.engine.memory import available_bytes
    from outpace.models.load import resolve_device

    device = resolve_device("auto")
    return Device(f"this machine's free memory ({device})", available_bytes(device))
