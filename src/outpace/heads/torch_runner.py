"""An EAGLE head in torch, for targets that do not run on the native step."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as List
from typing import TYPE_CHECKING

import numpy as np
import torch

from outpace.cache import CopyableRows, KVCache
from outpace.heads.base import Chooser, HeadDraft
from outpace.heads.config import EagleConfig
from outpace.heads.eagle import EagleModule
from outpace.heads.top_tokens import top_log_probs
from outpace.models.attention import AttentionPlan, Segment
from outpace.models.config import LayerKind, ModelConfig
from outpace.models.decoder import Decoder
from outpace.models.rotation import Rotation, rotate

if TYPE_CHECKING:
    from jaxtyping import Float, Float32, Int64
    from torch import Tensor

    from outpace.heads.target_parts import TargetParts


class TorchEagle:
    """An `EagleRunner` on its target's device and in its dtype, over `EagleModule`.

    weights: by the names of `EagleModule`, complete, and `embed_tokens.weight` if the head has an
    embedding of its own; the target's is not copied, its rows are fetched as tokens come. Beside a
    target that is no torch decoder it runs in float32 on the CPU.
    """

    def __init__(
        self,
        config: EagleConfig,
        weights: Mapping[str, Tensor],
        parts: TargetParts,
        draft_token_ids: Int64[np.ndarray, " Vd"],
    ) -> None:
        self.config = config
        self.draft_token_ids = draft_token_ids
        decoder = parts.target.decoder
        self._device, self._dtype = torch.device("cpu"), torch.float32
        if isinstance(decoder, Decoder):
            self._device, self._dtype = decoder.device, decoder.dtype
        self._parts = parts
        own = {name: tensor.to(self._device, self._dtype) for name, tensor in weights.items()}
        self._embedding = own.pop("embed_tokens.weight", None)
        self._network = _network(config, own)
        self._final_norm = self._tensor(parts.final_norm)
        self._rotation = Rotation(config.rope, config.head_dim, self._dtype, self._device)
        self._shape = _shape(config)

    def kv_bytes(self, *, num_rows: int, capacity: int) -> int:
        """Bytes of a cache of that size."""
        config = self.config
        per_slot = 2 * config.num_key_value_heads * config.head_dim * self._dtype.itemsize
        return per_slot * num_rows * capacity

    def new_cache(self, *, num_rows: int, capacity: int) -> KVCache:
        """A cache of columns; the rotary table is made to reach as far as it does."""
        config = self.config
        self._rotation.reach(capacity)
        return KVCache(
            num_layers=1,
            num_rows=num_rows,
            capacity=capacity,
            num_kv_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            dtype=self._dtype,
            device=self._device,
        )

    @torch.inference_mode()
    def fuse(self, features: Float32[np.ndarray, "n F"]) -> Float32[np.ndarray, "n H"]:
        """See `EagleRunner.fuse`."""
        x = self._tensor(features)
        if self.config.algorithm == "eagle":
            x = torch.nn.functional.rms_norm(
                x, self._final_norm.shape, self._final_norm, self._parts.norm_eps
            )
        return _array(self._network.fuse(x))

    @torch.inference_mode()
    def forward(
        self,
        cache: CopyableRows,
        token_ids: List[int],
        x: Float32[np.ndarray, "n H"],
        segments: List[Segment],
        logit_rows: List[int],
    ) -> tuple[Float32[np.ndarray, "r Vd"], Float32[np.ndarray, "n H"]]:
        """See `EagleRunner.forward`."""
        outputs = self._columns(cache, token_ids, self._tensor(x), segments)
        logits = self._network.logits(outputs[list(logit_rows)])
        return _array(logits), _array(self._network.next_input(outputs))

    @torch.inference_mode()
    def draft(
        self,
        cache: CopyableRows,
        rows: List[int],
        starts: List[int],
        pending: List[List[int]],
        features: Float32[np.ndarray, "n F"],
        counts: List[int],
        choosers: List[Chooser],
        *,
        width: int = 0,
    ) -> HeadDraft:
        """See `EagleRunner.draft`. Sequences advance together until each has its count."""
        drafted: list[list[int]] = [[] for _ in rows]
        claims: list[list[Float32[np.ndarray, " Vd"]]] = [[] for _ in rows]
        ranked: list[list[tuple[list[int], list[float]]]] = [[] for _ in rows if width]
        feeds, next_slots = [list(tokens) for tokens in pending], list(starts)
        going, inputs = list(range(len(rows))), self._tensor(self.fuse(features))
        while going:
            segments = [Segment(rows[i], next_slots[i], len(feeds[i])) for i in going]
            token_ids = [token for i in going for token in feeds[i]]
            outputs = self._columns(cache, token_ids, inputs, segments)
            outputs = outputs[(np.cumsum([s.num_tokens for s in segments]) - 1).tolist()]
            for i, logits in zip(going, _array(self._network.logits(outputs)), strict=True):
                index, q = choose(logits, choosers[i], len(drafted[i]))
                if q is not None:
                    claims[i].append(q)
                if width:
                    (best,), (log_probs,) = top_log_probs(logits[None], width)
                    token_ids = self.draft_token_ids[best].tolist()
                    ranked[i].append((token_ids, np.exp(log_probs).tolist()))
                drafted[i].append(int(self.draft_token_ids[index]))
                next_slots[i] += len(feeds[i])
                feeds[i] = drafted[i][-1:]
            unfinished = [n for n, i in enumerate(going) if len(drafted[i]) < counts[i]]
            inputs = self._network.next_input(outputs[unfinished])
            going = [going[n] for n in unfinished]
        laws = [np.stack(claim) if claim else None for claim in claims]
        return HeadDraft(drafted, laws, ranked)

    def _columns(
        self,
        cache: CopyableRows,
        token_ids: List[int],
        x: Float[Tensor, "n H"],
        segments: List[Segment],
    ) -> Float[Tensor, "n H"]:
        """The layer's outputs of new columns, whose keys and values are written."""
        assert isinstance(cache, KVCache)
        slots = [slot for s in segments for slot in cache.slots(s.row, s.start, s.num_tokens)]
        positions = [position for segment in segments for position in segment.positions()]
        turns = self._rotation(torch.tensor(positions, device=self._device))
        plan = AttentionPlan(segments, self._shape, cache)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            cache.write(0, torch.tensor(slots, device=self._device), rotate(k, *turns), v)
            return plan(0, rotate(q, *turns))

        output: Tensor = self._network(x, self._embedded(token_ids), attend)
        return output

    def _embedded(self, token_ids: List[int]) -> Float[Tensor, "n H"]:
        if self._embedding is not None:
            return self._embedding[list(token_ids)]
        return self._tensor(self._parts.embedding_rows(token_ids))

    def _tensor(self, array: Float32[np.ndarray, "*shape"]) -> Float[Tensor, "*shape"]:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device, self._dtype)


def choose(
    logits: Float32[np.ndarray, " Vd"], chooser: Chooser, number: int
) -> tuple[int, Float32[np.ndarray, " Vd"] | None]:
    """Draft token `number` of a chain, as its index, and the distribution it was drawn from."""
    if chooser.race is not None:
        return chooser.race.winner(logits, number), None
    if not chooser.coins:
        return int(np.argmax(logits)), None
    q = np.exp((logits - logits.max()) / np.float32(chooser.temperature))
    q /= q.sum()
    cumulative = np.cumsum(q, dtype=np.float64)
    # A coin below 1 stays below the sum, and finds no token that has no probability.
    wanted = chooser.coins[number] * cumulative[-1]
    index = int(np.searchsorted(cumulative, wanted, side="right"))
    return min(index, len(q) - 1), q


def _network(config: EagleConfig, weights: dict[str, Tensor]) -> EagleModule:
    with torch.device("meta"):
        network = EagleModule(config)
    network.load_state_dict(weights, strict=True, assign=True)
    return network.requires_grad_(False)


def _shape(config: EagleConfig) -> ModelConfig:
    """The head as a model of one layer, for what plans its attention."""
    return ModelConfig(
        architecture=config.algorithm,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.max_position_embeddings,
        layers=(LayerKind(config.rope),),
        norm_eps=config.rms_norm_eps,
        tie_word_embeddings=False,
        attention_scale=config.head_dim**-0.5,
    )


def _array(tensor: Float[Tensor, "*shape"]) -> Float32[np.ndarray, "*shape"]:
    array: Float32[np.ndarray, "*shape"] = tensor.float().cpu().numpy()
    return array
