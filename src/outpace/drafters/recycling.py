"""Token Recycling: what the target thought likely after a token is drafted when the token returns.

Luo et al., 2408.08696. Every pass also computes logits after draft tokens that are rejected. The
best candidates of each row go into a table, token -> candidates, from which the next trees are
read. It needs no model and no training, and of the text only that its tokens return.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence as List
from dataclasses import dataclass, field
from itertools import pairwise

from outpace.drafters.base import (
    Drafter,
    DrafterOptions,
    DraftingContext,
    check_flag,
    check_shape,
    check_whole_number,
    path_limit,
)
from outpace.drafters.parts.static_tree import best_first
from outpace.errors import OptionError
from outpace.heads.top_tokens import top_tokens
from outpace.types import NO_DRAFT, Draft, Scores, Sequence, Verdict

ACCEPTANCE_BY_RANK = (0.45, 0.12, 0.06, 0.034, 0.028, 0.019, 0.015, 0.009)
"""How often the next token was the candidate of each rank, where its predecessor had a row: over
40 training prompts, answered greedily by SmolLM2-135M-Instruct in up to 128 tokens each."""

MAX_SHARED_ROWS = 16_384
"""Most rows of a table that outlives its requests: with eight candidates about 7 MB."""

MAX_SALTS = 16
"""Most tables that outlive their requests."""

MAX_NODES = 512
"""Most nodes of the static tree: no step takes more."""

SLOTS_PER_TOKEN = 4
"""How much larger the static tree is than the draft, so that where tokens have no row yet the
nodes they would have had go to the next best places."""


@dataclass(frozen=True, kw_only=True)
class RecyclingOptions(DrafterOptions):
    """Options of Token Recycling.

    num_candidates: at most as many as ACCEPTANCE_BY_RANK has ranks.
    """

    num_speculative_tokens: int = field(
        default=6, metadata={"help": "most draft tokens per step (K), of a tree all its nodes"}
    )
    shape: str = field(default="tree", metadata={"help": "what to draft: chain or tree"})
    num_candidates: int = field(
        default=len(ACCEPTANCE_BY_RANK),
        metadata={"help": "tokens remembered as likely after each token, at most 8"},
    )
    shared_table: bool = field(
        default=False,
        metadata={"help": "keep one table for all requests of a cache salt, past their end"},
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole_number("num_candidates", self.num_candidates, low=1)
        if self.num_candidates > len(ACCEPTANCE_BY_RANK):
            raise OptionError(
                f"num_candidates must be at most {len(ACCEPTANCE_BY_RANK)}, got "
                f"{self.num_candidates}; less likely tokens are hardly ever accepted"
            )
        check_shape(self.shape)
        check_flag("shared_table", self.shared_table)


class AdjacencyTable:
    """For each token seen the tokens most likely to follow it, likeliest first.

    Sparse, since a request meets a few hundred of the vocabulary's tokens.

    max_rows: of more rows the one that was not renewed for longest is dropped; None: no bound.
    """

    def __init__(self, num_candidates: int, max_rows: int | None = None) -> None:
        self._num_candidates = num_candidates
        self._max_rows = max_rows
        self._rows: dict[int, List[int]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def candidates(self, token: int) -> List[int]:
        """The row of a token, empty if it has none."""
        return self._rows.get(token, ())

    def learn_text(self, tokens: List[int]) -> None:
        """Put the follower of each token in front of its row, the latest one foremost."""
        for token, follower in pairwise(tokens):
            others = [other for other in self.candidates(token) if other != follower]
            self._put(token, [follower, *others[: self._num_candidates - 1]])

    def learn_rows(self, tokens: List[int], rows: List[List[int]]) -> None:
        """Replace the row of each token; of a token that comes twice the last row stands."""
        for token, row in zip(tokens, rows, strict=True):
            self._put(token, row)

    def _put(self, token: int, row: List[int]) -> None:
        if self._max_rows is not None:
            # Dictionaries keep the order of insertion: the stalest row is the first.
            self._rows.pop(token, None)
            if len(self._rows) == self._max_rows:
                del self._rows[next(iter(self._rows))]
        self._rows[token] = row


@dataclass(slots=True)
class _Memory:
    """What is held for a sequence: its table, and the draft whose rows are still to come."""

    table: AdjacencyTable
    draft: Draft = NO_DRAFT


class RecyclingDrafter(Drafter):
    """Fills a static tree from the table; where a token has no row, its children are left out.

    A request starts with what followed what in its prompt. On targets that take no trees, drafts
    are chains.
    """

    Options = RecyclingOptions

    def __init__(self, options: RecyclingOptions, context: DraftingContext) -> None:
        super().__init__(options, context)
        self._num_candidates = options.num_candidates
        self._shared = options.shared_table
        is_tree = options.shape == "tree" and context.runner.takes_trees
        ranks = ACCEPTANCE_BY_RANK[: options.num_candidates if is_tree else 1]
        num_nodes = min(options.num_speculative_tokens, MAX_NODES)
        self._slots = best_first(ranks, SLOTS_PER_TOKEN * num_nodes)
        self._memories: dict[int, _Memory] = {}
        self._tables_by_salt: OrderedDict[str, AdjacencyTable] = OrderedDict()

    def propose(self, seqs: List[Sequence], budgets: List[int]) -> list[Draft]:
        return [self._propose(seq, budget) for seq, budget in zip(seqs, budgets, strict=True)]

    def _propose(self, seq: Sequence, budget: int) -> Draft:
        memory = self._memory(seq)
        table, max_depth = memory.table, path_limit(seq, budget)
        token_ids: list[int] = []
        parents: list[int] = []
        # By slot that was filled, its node and the row of its token.
        filled = {-1: (-1, table.candidates(seq.tokens[-1]))}
        for place, slot in enumerate(self._slots):
            if len(token_ids) == budget:
                break
            parent, row = filled.get(slot.parent, (-1, ()))
            if slot.rank < len(row) and slot.depth <= max_depth:
                filled[place] = (len(token_ids), table.candidates(row[slot.rank]))
                token_ids.append(row[slot.rank])
                parents.append(parent)
        memory.draft = Draft(tuple(token_ids), origin="recycling", parents=tuple(parents))
        return memory.draft

    def observe(self, seqs: List[Sequence], scores: Scores, verdicts: List[Verdict]) -> None:
        logits = scores.on_host()
        for seq, rows, verdict in zip(seqs, scores.rows, verdicts, strict=True):
            if rows.stop == rows.start:
                continue
            memory = self._memories.get(seq.seq_id)
            if memory is None:
                continue  # nobody asks for drafts of this one
            draft, memory.draft = memory.draft, NO_DRAFT
            root = seq.tokens[-1 - len(verdict.token_ids)]
            # A draft that was changed on its way is not the one whose scores came back.
            if rows.stop - rows.start == 1 + len(draft):
                best = top_tokens(logits[rows], self._num_candidates)
                memory.table.learn_rows([root, *draft.token_ids], best.tolist())

    def release(self, seq: Sequence) -> None:
        self._memories.pop(seq.seq_id, None)

    def check_integrity(self) -> None:
        assert not self._memories, f"tables left for sequences {sorted(self._memories)}"
        assert len(self._tables_by_salt) <= MAX_SALTS

    def _memory(self, seq: Sequence) -> _Memory:
        memory = self._memories.get(seq.seq_id)
        if memory is None:
            memory = self._memories[seq.seq_id] = _Memory(self._table(seq.cache_salt))
            memory.table.learn_text(seq.tokens[: seq.num_prompt])
        return memory

    def _table(self, salt: str) -> AdjacencyTable:
        if not self._shared:
            return AdjacencyTable(self._num_candidates)
        tables = self._tables_by_salt
        if salt not in tables:
            tables[salt] = AdjacencyTable(self._num_candidates, MAX_SHARED_ROWS)
            if len(tables) > MAX_SALTS:
                tables.popitem(last=False)
        tables.move_to_end(salt)
        return tables[salt]
