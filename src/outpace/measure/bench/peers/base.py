"""What a peer is, and how one is opened.

A peer is another engine with one way to decode. It runs in a process of its own (`process.py`): in
one process, the threads of one engine would change how those of another wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from outpace.errors import OptionError, OutpaceError

if TYPE_CHECKING:
    from outpace.measure.kept import BatchTiming
    from outpace.models.load import LoadedModel
    from outpace.params import SamplingParams

_HERE = "outpace.measure.bench.peers"
PEERS = {
    "transformers": f"{_HERE}.transformers",
    "llama.cpp": f"{_HERE}.llama_cpp",
    "openvino": f"{_HERE}.openvino",
    "vllm": f"{_HERE}.vllm",
}
"""Name on the command line -> module with LIBRARY, INSTALL and `open_methods`."""

LOOKUP_LENGTHS = (2, 4, 8)
"""Draft lengths tried for an engine's prompt lookup; the fastest is the one that is measured."""
NUM_TUNING = 2
"""Prompts by which it is found, out of those that are given."""
TUNING_TOKENS = 32
DEFAULT_DRAFT_TOKENS = 4


class PeerError(OutpaceError):
    """A peer that cannot decode, or whose process ended. Others can go on: say it and leave the
    peer out."""


class Peer(Protocol):
    """One way to decode of another engine, ready to run.

    name: how tables call it. greedy_only: it takes temperature 0 alone. max_batch: most prompts of
    one call.
    """

    name: str
    greedy_only: bool
    max_batch: int

    def generate_batch(
        self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]
    ) -> BatchTiming:
        """Decode the prompts together; the clock is read where they are decoded. What only our own
        engine counts (`counted`, `decided`, an answer's `stats`) is left empty.

        Raises PeerError when the peer fails or its process has ended, OptionError for parameters
        that no peer is given.
        """

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSubject:
    """What peers are to run.

    path: file or folder of the weights. dtype, device: what ours holds them in, and where.
    max_model_len: most tokens of a request, prompt included. max_batch: most requests at a time.
    tuning_prompts: prompts by which a peer's own choices are made; without any, ways to decode that
    need a choice are left out. draft: a smaller model, for
    assisted generation. head: a folder with an EAGLE-3 head for the weights. files: GGUF files to
    use for types of weights ("Q4_1"); work_dir: where files made of the weights are kept.
    note: is told what is different from a run of ours, or could not be run.
    """

    path: Path
    dtype: str
    device: str
    end_token_ids: tuple[int, ...]
    max_model_len: int
    max_batch: int
    tuning_prompts: tuple[tuple[int, ...], ...]
    threads: int
    work_dir: Path
    note: Callable[[str], None]
    draft: Path | None = None
    num_draft_tokens: int = DEFAULT_DRAFT_TOKENS
    head: Path | None = None
    files: Mapping[str, Path] = field(default_factory=dict)


def open_peers(
    name: str,
    loaded: LoadedModel,
    *,
    model: str,
    max_model_len: int,
    max_batch: int,
    tuning_prompts: Sequence[Sequence[int]],
    threads: int | None,
    note: Callable[[str], None],
    closing: ExitStack,
    draft: str | None = None,
    num_draft_tokens: int = DEFAULT_DRAFT_TOKENS,
    files: Mapping[str, Path] | None = None,
    work_dir: Path | None = None,
) -> list[Peer]:
    """Plain decoding by the engine of PEERS called `name`, and its own ways to speculate, on the
    weights that `model` stands for. They are closed by `closing`.

    threads: of the engine; None: as many as ours takes by default. work_dir: for files made of the
    weights; None: in the user's cache. For the other arguments see `PeerSubject`. What cannot be
    run is told to `note` and missing from the list, which may be empty.
    Raises OptionError for an engine that is unknown or not installed.
    """
    module = import_module(PEERS[_known(name)])
    check_installed(name)
    subject = PeerSubject(
        path=_resolved(model),
        dtype=loaded.dtype,
        device=str(loaded.decoder.device),
        end_token_ids=tuple(sorted(loaded.tokenizer.end_token_ids)),
        max_model_len=max_model_len,
        max_batch=max_batch,
        tuning_prompts=tuple(map(tuple, tuning_prompts[:NUM_TUNING])),
        threads=threads or _default_threads(loaded),
        work_dir=work_dir or default_work_dir(),
        note=note,
        draft=None if draft is None else _resolved(draft),
        num_draft_tokens=num_draft_tokens,
        head=_bundled_head(loaded),
        files=files or {},
    )
    peers: list[Peer] = module.open_methods(subject, closing)
    return peers


def check_installed(name: str) -> None:
    """Raises OptionError that says what to install, for a peer that is unknown or missing."""
    module = import_module(PEERS[_known(name)])
    if find_spec(module.LIBRARY) is None:
        raise OptionError(
            f"the peer {name} needs the package {module.LIBRARY}, which this environment lacks; "
            f"{module.INSTALL}"
        )


def default_work_dir() -> Path:
    """Where files that are made of a model for its peers are kept."""
    from platformdirs import user_cache_path

    return user_cache_path("outpace") / "benchmarks"


def fastest(
    candidates: Sequence[Peer], prompts: Sequence[Sequence[int]], note: Callable[[str], None]
) -> list[Peer]:
    """The one that decodes the prompts in the least time after their first tokens, in a list; an
    empty one where there are no prompts, or none of them works, which `note` is told."""
    from outpace.params import SamplingParams

    if not prompts:
        return []

    params = [SamplingParams(temperature=0.0, max_tokens=TUNING_TOKENS, ignore_eos=True)]
    seconds = {peer.name: 0.0 for peer in candidates}
    failed: set[str] = set()
    # The first prompt is run twice: whatever an engine does once must not decide.
    for turn, prompt in enumerate([prompts[0], *prompts]):
        for peer in candidates:
            if peer.name in failed:
                continue
            try:
                timing = peer.generate_batch([prompt], params)
            except PeerError as error:
                failed.add(peer.name)
                note(f"{peer.name} was not measured: {error}")
            else:
                seconds[peer.name] += timing.window_s if turn else 0.0
    working = [peer for peer in candidates if peer.name not in failed]
    return sorted(working, key=lambda peer: seconds[peer.name])[:1]


def plain_and_lookup(subject: PeerSubject, peer: Callable[[str, int], Peer]) -> list[Peer]:
    """Plain decoding, and prompt lookup with the length that is fastest on the tuning prompts, if
    there are any. peer: the way to decode of that name, with at most so many tokens looked up."""
    lookups = [peer(f"prompt lookup K={k}", k) for k in LOOKUP_LENGTHS]
    return [peer("plain", 0), *fastest(lookups, subject.tuning_prompts, subject.note)]


def _known(name: str) -> str:
    if name not in PEERS:
        raise OptionError(f"peer must be {', '.join(PEERS)}, got {name!r}")
    return name


def _resolved(name: str) -> Path:
    from outpace.models.hub import names

    return names.resolve(name)


def _default_threads(loaded: LoadedModel) -> int:
    if loaded.model_impl == "native":
        from outpace.native.pool import default_num_threads

        return default_num_threads()
    import torch

    return torch.get_num_threads()


def _bundled_head(loaded: LoadedModel) -> Path | None:
    from outpace.heads.bundled import bundled_for

    return bundled_for(loaded.fingerprint, "eagle3")
