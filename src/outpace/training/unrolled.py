"""Columns of an EAGLE layer that is unrolled over its own drafts.

Training-time test (EAGLE-3, 2503.01840, section 3.2): the layer drafts during training as it will
when it serves, from every column of an answer at once. A *chain* starts at one column. Its step 0
is that column, on the target's feature; step s pairs the output of its step s - 1 with the next
token of the answer, at the next position. Step s sees the columns up to the one where its chain
started, and the steps 1..s of its own chain: what a cache holds after s draft steps.

Matrix products on CPUs are compiled for each shape they meet, which takes longer than many of the
products here. So rows are padded to a few sizes, with copies of the last chain that no loss counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Int
from torch import Tensor

from outpace.training.trainee import TrainingBatch

ROWS = 128
"""Fewer rows than this are padded to it."""
KEYS = 128
"""Blocks of queries see columns in multiples of this; a batch ends with as many spare ones."""


def padded_size(n: int) -> int:
    """`n` or a little more: one of a dozen sizes per doubling at most."""
    step = max(ROWS, 1 << max(n.bit_length() - 4, 0))
    return -(-n // step) * step


def padded_rows(rows: Int[Tensor, " n"]) -> Int[Tensor, " m"]:
    """Indices, and the last one again until there are `padded_size` of them."""
    return torch.cat([rows, rows[-1:].expand(padded_size(len(rows)) - len(rows))])


@dataclass(frozen=True)
class Columns:
    """The columns of a batch, one for each token (the last of a sequence belongs to none).

    Column c joins the feature of token c with token c + 1 and predicts token c + 2. Chains start
    where both of these belong to an answer: the first token of an answer is the target's own.

    token_ids: [N + spare] with spare columns behind the batch's N. starts: where sequences begin,
    and N. position: [N + spare] within the sequence. chains: [A] the column each chain starts at,
    ascending. num_steps: [A] how many steps a chain can take until its answer ends: chain a's step
    s predicts what step 0 of chain a + s predicts.
    """

    token_ids: Int[Tensor, " M"]
    starts: tuple[int, ...]
    position: Int[Tensor, " M"]
    chains: Int[Tensor, " A"]
    num_steps: Int[Tensor, " A"]

    @staticmethod
    def of(batch: TrainingBatch) -> Columns:
        answer = batch.is_answer
        num_tokens = len(answer)
        bounds = torch.tensor(batch.starts, device=answer.device)
        lengths = bounds.diff()
        column = torch.arange(num_tokens, device=bounds.device)
        position = column - bounds[:-1].repeat_interleave(lengths)
        inside = column + 2 < bounds[1:].repeat_interleave(lengths)
        chains = (inside[:-2] & answer[1:-1] & answer[2:]).nonzero()[:, 0]
        # Consecutive columns belong to one answer; a chain may run to the end of its run.
        first_of_run = torch.ones_like(chains, dtype=torch.bool)
        first_of_run[1:] = chains.diff() != 1
        run_starts = first_of_run.nonzero()[:, 0]
        run_ends = torch.cat([run_starts[1:], run_starts.new_tensor([len(chains)])])
        ends = run_ends[first_of_run.cumsum(0) - 1]
        num_steps = ends - torch.arange(len(chains), device=chains.device)
        spare = padded_size(num_tokens + KEYS) - num_tokens
        token_ids, position = (
            torch.cat([t, t.new_zeros(spare)]) for t in (batch.token_ids, position)
        )
        return Columns(token_ids, tuple(batch.starts), position, chains, num_steps)

    def __len__(self) -> int:
        """How many columns there are, spare ones included."""
        return len(self.token_ids)

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return max(end - start for start, end in zip(self.starts, self.starts[1:], strict=False))

    def rows_of_sequences(self, columns: Int[Tensor, " r"]) -> list[int]:
        """Of ascending columns: how many lie in each sequence."""
        bounds = torch.tensor(self.starts, device=columns.device)
        counts: list[int] = torch.searchsorted(columns, bounds).diff().tolist()
        return counts
