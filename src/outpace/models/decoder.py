"""A decoder-only transformer: Llama's, with the variations that `ModelConfig` names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Float32, Int
from torch import Tensor

from outpace.cache import KVCache
from outpace.models.attention import AttentionPlan, Segment
from outpace.models.config import ModelConfig
from outpace.models.layer import LAYERS, Pass
from outpace.models.linear import make_linear, min_rows
from outpace.models.norm import make_norm
from outpace.models.rotation import Rotation


@dataclass(frozen=True, slots=True)
class Batch:
    """The tokens of one pass, all sequences one after the other, ordered by cache row.

    token_ids: N of them. logit_rows: indices into them, of the tokens whose logits are wanted.
    """

    token_ids: Sequence[int]
    logit_rows: Sequence[int]
    segments: Sequence[Segment]

    @property
    def positions(self) -> list[int]:
        """Those of `Segment.positions`, for each token: two nodes of a tree may share one."""
        return [position for segment in self.segments for position in segment.positions()]


class Decoder:
    """A model on one device.

    `load(name)` returns the tensor of a name in `weights.expected_shapes`; weights are read once,
    converted to `dtype` and repacked. `forward` mutates only the cache passed to it, which must
    come from `new_cache`: rotation tables reach as far as the largest cache made so far.
    """

    def __init__(
        self,
        config: ModelConfig,
        load: Callable[[str], Tensor],
        *,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        num_logits: int | None = None,
        on_layer: Callable[[int, int], None] | None = None,
    ) -> None:
        """num_logits: how many leading vocabulary rows are real tokens (None: all); rows past
        them are padding and get no logit. on_layer(done, total) reports loading progress."""
        self.config = config
        self.dtype = dtype
        self.device = torch.device(device)
        self._min_rows = min_rows(dtype, self.device)
        self.num_logits = config.vocab_size if num_logits is None else num_logits

        def weight(name: str) -> Tensor:
            return load(name).to(device=self.device, dtype=dtype)

        self._embedding = weight("model.embed_tokens.weight")
        # Rounded to the model's dtype before it multiplies, as Gemma was trained.
        self._embedding_scale = torch.tensor(config.embedding_scale, dtype=dtype, device=device)
        self._position_embedding = (
            weight("model.embed_positions.weight") if config.learned_positions else None
        )
        ropes = list(dict.fromkeys(kind.rope for kind in config.layers if kind.rope is not None))
        self._rotations = [Rotation(rope, config.head_dim, dtype, self.device) for rope in ropes]
        self._layers = []
        for index, kind in enumerate(config.layers):

            def layer_weight(name: str, prefix: str = f"model.layers.{index}.") -> Tensor:
                return weight(prefix + name)

            rotation = None if kind.rope is None else ropes.index(kind.rope)
            self._layers.append(LAYERS[config.block](config, layer_weight, index, rotation))
            if on_layer is not None:
                on_layer(index + 1, config.num_hidden_layers)
        self._norm = make_norm(config, weight, "model.norm")
        tied = config.tie_word_embeddings
        self._head = make_linear(self._embedding if tied else weight("lm_head.weight"))
        self._load = load

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def num_layers(self) -> int:
        return self.config.num_hidden_layers

    @property
    def max_len(self) -> int:
        return self.config.max_position_embeddings

    @property
    def max_rows(self) -> int | None:
        return None

    @property
    def capturable(self) -> range:
        return range(self.num_layers + 1)

    @property
    def exit_layers(self) -> range:
        return range(1, self.num_layers + 1)

    @property
    def final_norm_weight(self) -> Float32[np.ndarray, " hidden"]:
        """Weight of the norm before the output head, any offset added; in host memory."""
        return self._load("model.norm.weight").float().cpu().numpy() + self.config.norm_offset

    def embedding_rows(self, token_ids: Sequence[int]) -> Float32[np.ndarray, "n hidden"]:
        """Embeddings of tokens as they are stored, before any scale; in host memory."""
        return self._embedding[list(token_ids)].float().cpu().numpy()

    def head_rows(self, token_ids: Sequence[int]) -> Float32[np.ndarray, "n hidden"]:
        """The rows of the output head that give these tokens' logits; in host memory.

        Read anew where they are not the embedding's: products keep them in a layout of their own.
        """
        if self.config.tie_word_embeddings:
            return self.embedding_rows(token_ids)
        return self._load("lm_head.weight")[list(token_ids)].to(self.dtype).float().cpu().numpy()

    @torch.inference_mode()
    def head_logits(self, x: Float32[np.ndarray, "n hidden"]) -> Float32[np.ndarray, "n vocab"]:
        """Normed hidden states through the output head, padding rows included; in host memory."""
        states = torch.from_numpy(x).to(device=self.device, dtype=self.dtype)
        return self._head(states).float().cpu().numpy()

    def kv_bytes(self, *, num_rows: int, capacity: int) -> int:
        """Bytes of a cache: 2 x layers x kv_heads x head_dim x slots x bytes."""
        config = self.config
        per_slot = 2 * self.num_layers * config.num_key_value_heads * config.head_dim
        return per_slot * self.dtype.itemsize * capacity * num_rows

    def new_cache(self, *, num_rows: int, capacity: int) -> KVCache:
        """A cache of this model's shape, in its dtype."""
        config = self.config
        for rotation in self._rotations:
            rotation.reach(min(capacity, config.max_position_embeddings))
        return KVCache(
            num_layers=config.num_hidden_layers,
            num_rows=num_rows,
            capacity=capacity,
            num_kv_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            dtype=self.dtype,
            device=self.device,
        )

    @torch.inference_mode()
    def forward(
        self,
        batch: Batch,
        cache: KVCache,
        capture: Sequence[int] = (),
        num_layers: int | None = None,
    ) -> tuple[Float[Tensor, "r vocab"], dict[int, Tensor]]:
        """One pass: writes keys and values of every token, returns logits of the rows asked for.

        capture: layers whose output (residual stream, before any norm, [N, hidden]) is returned
        as well; 0 is the embedding, i the output of the i-th layer.
        num_layers: run only the first that many; see `EarlyExit`.
        Logits are float32 (float64 for a float64 model), [R, num_logits].
        """
        positions = self._tensor(batch.positions)
        slots = [slot for s in batch.segments for slot in cache.slots(s.row, s.start, s.num_tokens)]
        step = Pass(
            plan=AttentionPlan(batch.segments, self.config, cache),
            cache=cache,
            slots=self._tensor(slots),
            rotations=[rotation(positions) for rotation in self._rotations],
        )
        x = self._embed(self._tensor(batch.token_ids), positions)
        num_tokens = x.shape[0]
        if num_tokens < self._min_rows:
            # Doubled once here, a lone token need not be doubled by every product.
            x = x.repeat(self._min_rows, 1)
        hidden = {0: x[:num_tokens]} if 0 in capture else {}
        for depth, layer in enumerate(self._layers[:num_layers], 1):
            x = layer(x, step)
            if depth in capture:
                hidden[depth] = x[:num_tokens]
        return self._logits(x.index_select(0, self._tensor(batch.logit_rows))), hidden

    def _tensor(self, values: Sequence[int]) -> Int[Tensor, " n"]:
        return torch.tensor(values, dtype=torch.int64, device=self.device)

    def _embed(
        self, token_ids: Int[Tensor, " n"], positions: Int[Tensor, " n"]
    ) -> Float[Tensor, "n hidden"]:
        x = F.embedding(token_ids, self._embedding)
        if self.config.embedding_scale != 1.0:
            x = x * self._embedding_scale
        if self._position_embedding is not None:
            x = x + F.embedding(positions, self._position_embedding)
        return x

    def _logits(self, x: Float[Tensor, "r hidden"]) -> Float[Tensor, "r vocab"]:
        logits = self._head(self._norm(x))[:, : self.num_logits]
        logits = logits.to(torch.float64 if self.dtype == torch.float64 else torch.float32)
        cap = self.config.final_softcap
        return logits if cap is None else torch.tanh(logits / cap) * cap
