"""The package's peers as methods that take turns with ours, one request at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from outpace import SamplingParams
from outpace.errors import OutpaceError
from outpace.measure.bench.peers.base import open_peers
from outpace.measure.timing import Timing
from outpace.models.load import LoadedModel


class PeerMethod:
    """A peer, greedy and for one request at a time."""

    def __init__(self, peer: Any) -> None:
        self.name: str = peer.name
        self._peer = peer

    def generate(self, prompt: Sequence[int], params: SamplingParams) -> Timing:
        assert params.is_greedy, "its random numbers are not ours: only greedy is comparable"
        timing: Timing = self._peer.generate(prompt, params)
        return timing


def peer_methods(
    peer: str,
    loaded: LoadedModel,
    *,
    model: str,
    num_tokens: int,
    note: Callable[[str], None],
    closing: ExitStack,
    threads: int | None,
    files: Mapping[str, Path],
    work_dir: Path,
) -> list[PeerMethod]:
    """Plain decoding by a peer; see `open_peers`. Requests have up to `num_tokens` tokens. Of what
    cannot be had or run, `note` is told."""
    # Whatever stops another engine, or its absence, must not stop a benchmark.
    try:
        peers = open_peers(
            peer,
            loaded,
            model=model,
            max_model_len=num_tokens,
            max_batch=1,
            tuning_prompts=(),
            threads=threads,
            note=note,
            closing=closing,
            files=files,
            work_dir=work_dir,
        )
    except OutpaceError as error:
        note(f"{peer} was not measured: {error}")
        return []
    return [PeerMethod(each) for each in peers]
