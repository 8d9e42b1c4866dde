"""Finding the native library, saying why it is missing, and choosing the instruction-set path."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from outpace.errors import ModelError, OptionError
from outpace.native.interface import ABI_VERSION, declare

PATH_VARIABLE = "OUTPACE_NATIVE_PATH"
PATHS = ("amx", "avx512bf16", "avx512", "avx2", "portable")  # best first
OFF = "off"

LIBRARY_FILE = Path(__file__).with_name("_outpace_native.so")
REASON_FILE = Path(__file__).with_name("_outpace_native.txt")  # written by hatch_build.py


@dataclass(frozen=True, slots=True)
class NativeStatus:
    """What this process can run. `path` is None exactly if `reason` says why there is none."""

    path: str | None
    reason: str | None
    usable: tuple[str, ...] = ()
    built: tuple[str, ...] = ()


def status() -> NativeStatus:
    """The path that new models take, best first or as OUTPACE_NATIVE_PATH says.

    Raises OptionError if the variable names a path that cannot be had.
    """
    wanted = os.environ.get(PATH_VARIABLE, "").strip().lower()
    _check_name(wanted)
    if wanted == OFF:
        return NativeStatus(None, f"{PATH_VARIABLE}=off")
    loaded, reason = _open()
    if loaded is None:
        if wanted:
            raise OptionError(f"{PATH_VARIABLE}={wanted}, but {reason}")
        return NativeStatus(None, reason)
    built, usable = _names(loaded.op_paths_built()), _names(loaded.op_paths_usable())
    if wanted and wanted not in usable:
        why = "this processor does not run it" if wanted in built else "it was not built"
        raise OptionError(
            f"{PATH_VARIABLE}={wanted}: {why}; usable here: {', '.join(usable)}, or off"
        )
    return NativeStatus(wanted or usable[0], None, usable, built)


def library() -> ctypes.CDLL:
    """The loaded library; its functions release the GIL. Raises ModelError if there is none."""
    loaded, reason = _open()
    if loaded is None:
        raise ModelError(f"the native step is not available: {reason}")
    return loaded


def chosen_path() -> str:
    """The path of `status`. Raises ModelError if the native step is off or not available."""
    found = status()
    if found.path is None:
        raise ModelError(f"the native step is not available: {found.reason}")
    return found.path


@cache
def _open() -> tuple[ctypes.CDLL | None, str | None]:
    """The library, or None and the reason as a clause."""
    if not LIBRARY_FILE.exists():
        return None, _why_missing()
    try:
        loaded = ctypes.CDLL(str(LIBRARY_FILE))
        loaded.op_abi_version.restype = ctypes.c_int32
        version = loaded.op_abi_version()
        if version != ABI_VERSION:
            return None, (
                f"{LIBRARY_FILE.name} has interface version {version}, expected {ABI_VERSION}: "
                "install Outpace again"
            )
        declare(loaded)
    except (OSError, AttributeError) as error:
        return None, f"{LIBRARY_FILE.name} cannot be loaded: {error}"
    return loaded, None


def _why_missing() -> str:
    try:
        return REASON_FILE.read_text(encoding="utf-8").strip()
    except OSError:
        return (
            "the native library was not built when Outpace was installed: "
            "install a C++ compiler, then Outpace again"
        )


def _check_name(wanted: str) -> None:
    if wanted and wanted != OFF and wanted not in PATHS:
        raise OptionError(
            f"{PATH_VARIABLE}={wanted} is not an instruction-set path: expected one of "
            f"{', '.join(PATHS)}, or off"
        )


def _names(listed: bytes) -> tuple[str, ...]:
    return tuple(name for name in listed.decode().split(",") if name)
