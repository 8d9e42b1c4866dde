"""Files with a model's weights in the types that peers read, found or made."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

from outpace.errors import OptionError
from outpace.measure.bench.peers.base import PeerSubject
from outpace.measure.bench.peers.process import PeerProcess

GGUF_TYPES = {
    "bfloat16": ("F16", "BF16"),
    "float16": ("F16",),
    "float32": ("F32",),
    "q4_1": ("Q4_1",),
    "q4_0": ("Q4_0",),
    "q8_0": ("Q8_0",),
}
"""Our formats -> types of a GGUF file's matrices that hold the weights in as many bits."""


def main_format(path: Path) -> str | None:
    """What most weights of a GGUF file's layers are stored in, in lower case; None for others."""
    from outpace.models.gguf.file import GGUFFile

    if not path.is_file():
        return None
    sizes: Counter[str] = Counter()
    for name, info in GGUFFile(path).tensors.items():
        if name.startswith("blk."):
            sizes[info.type_name.lower()] += math.prod(info.shape)
    return sizes.most_common(1)[0][0] if sizes else None


def gguf_file(subject: PeerSubject, type_name: str, closing: ExitStack) -> Path:
    """A GGUF file with the subject's weights as `type_name`: the one that is given for it, the
    model's own, or one that llama.cpp makes of that and that is kept.

    Raises OptionError where there is none and none can be made, PeerError where making it fails.
    """
    given = subject.files.get(type_name)
    if given is not None:
        return given
    own = main_format(subject.path)
    if own == type_name.lower():
        return subject.path
    if own is None:
        raise OptionError(
            f"{subject.path} is not a GGUF file; convert it with llama.cpp's convert_hf_to_gguf.py "
            "and measure the file that this writes"
        )
    target = made_path(subject.path, type_name, subject.work_dir)
    if not target.exists():
        _make(subject, type_name, target, closing)
    return target


def made_path(source: Path, type_name: str, folder: Path) -> Path:
    """Where the weights of a GGUF file are kept as another type."""
    from outpace.models.open import open_checkpoint

    key = open_checkpoint(source).fingerprint()[:12]
    return folder / f"{source.stem}.{key}.{type_name}.gguf"


def _make(subject: PeerSubject, type_name: str, target: Path, closing: ExitStack) -> None:
    if find_spec("llama_cpp") is None:
        raise OptionError(
            f"there is no {type_name} file of {subject.path.name}, and making one needs llama.cpp "
            "(the package llama-cpp-python)"
        )
    home = "outpace.measure.bench.peers.llama_library:Converter"
    converter = PeerProcess(
        "llama.cpp's quantisation", home, {}, threads=subject.threads, closing=closing
    )
    try:
        converter.call("convert", source=str(subject.path), target=str(target), type_name=type_name)
    finally:
        converter.close()
    subject.note(
        f"llama.cpp made a {type_name} file of {subject.path.name}; what was quantised before "
        "loses a little more"
    )
