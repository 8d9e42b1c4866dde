"""EAGLE heads on the native step: a pass, or a whole draft of several sequences, is one call."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from collections.abc import Sequence as List
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float32, Int64, UInt8

from outpace.errors import ModelError
from outpace.heads.base import Chooser, HeadDraft
from outpace.heads.shared_head import rms_norm
from outpace.models.native.cache import NativeRows
from outpace.models.native.decoder import NativeDecoder, native_segment
from outpace.models.native.network import rope_table
from outpace.models.native.weights import RUN, Matrix, vector
from outpace.native.config import EagleParts, NativeConfig, NativeLayer
from outpace.native.eagle import Chain, NativeEagleModel
from outpace.native.interface import Activations, Choice, EagleKind, KVType, WeightFormat
from outpace.native.model import NativeCache
from outpace.native.quantise import BLOCK, q4_1_blocks, q8_0_blocks
from outpace.native.weights import Norm, PackedLinear, aligned_empty

if TYPE_CHECKING:
    from torch import Tensor

    from outpace.cache import CopyableRows
    from outpace.heads.config import EagleConfig
    from outpace.heads.target_parts import TargetParts
    from outpace.models.attention import Segment

_LAYER = "layers.0."
_FLOATS = np.finfo(np.float32)
_QUANTISERS = {WeightFormat.Q4_1: q4_1_blocks, WeightFormat.Q8_0: q8_0_blocks}


class NativeEagle:
    """An `EagleRunner` beside a target on the native step: it shares the target's embedding and
    threads, and its keys and values are a one-layer model's.

    A column's results have the same bits whatever else is in the pass. `forward` and `draft` may
    be called from several threads, which then take turns. What they return is the caller's.
    """

    def __init__(
        self,
        config: EagleConfig,
        weights: Mapping[str, Tensor],
        parts: TargetParts,
        draft_token_ids: Int64[np.ndarray, " Vd"],
        *,
        weight_format: WeightFormat = WeightFormat.Q4_1,
        activations: Activations = Activations.INT16,
        kv_type: KVType = KVType.BF16,
    ) -> None:
        """
        weights: by the names of `EagleModule` (those of the speculators layout): `fc.weight`,
            `layers.0.{input_layernorm,hidden_norm,post_attention_layernorm}.weight`,
            `layers.0.self_attn.{q,k,v,o}_proj.weight`, `layers.0.mlp.{gate,up,down}_proj.weight`,
            `norm.weight`, `lm_head.weight` (a row for each draft token), and as the flags say
            `input_norm.weight` or `fc_norm.i.weight`, and `embed_tokens.weight` if the head has an
            embedding of its own. "eagle" heads have neither `norm`, `input_layernorm` nor
            `hidden_norm`. They are not referenced afterwards.
        weight_format, activations: what matrices are stored as, and what meets them; packed
            formats only where a matrix has a multiple of 32 inputs, else bfloat16.

        Raises ModelError for a target of another width, or one that the native step does not run.
        """
        decoder = parts.target.decoder
        if not isinstance(decoder, NativeDecoder):
            raise ModelError(
                f"a native EAGLE head runs beside a native target, and {parts.name} runs on the "
                f"{parts.target.runs_on}"
            )
        target = decoder.native_model
        _check_width(config, target.config.embedding, parts.name)
        self.config = config
        self._pool, self._path, self._activations = target.pool, target.path, activations
        self._draft_token_ids = np.array(draft_token_ids, np.int64)
        source = _Weights(weights, weight_format)
        self._fusion = _Fusion.read(config, source, parts)
        has_own = "embed_tokens.weight" in weights
        embedding = source.linear("embed_tokens") if has_own else target.config.embedding
        ids = self._draft_token_ids.astype(np.int32)
        network = _network(config, source, embedding, self._fusion.fc, ids, activations, kv_type)
        self._model = NativeEagleModel(network, self._pool, self._path)
        self._growing = threading.Lock()
        self._num_positions = 0

    @property
    def draft_token_ids(self) -> Int64[np.ndarray, " Vd"]:
        return self._draft_token_ids

    def kv_bytes(self, *, num_rows: int, capacity: int) -> int:
        """Bytes of a cache of that size, once it is full."""
        return NativeCache.num_bytes(self._model, num_rows, capacity)

    def new_cache(self, *, num_rows: int, capacity: int) -> NativeRows:
        """A cache of columns; the rotary table is made to reach as far as it does."""
        with self._growing:
            if capacity > self._num_positions:
                self._model.set_rope(0, *rope_table(self.config.rope, capacity))
                self._num_positions = capacity
        return NativeRows(self._model, num_rows=num_rows, capacity=capacity)

    def fuse(self, features: Float32[np.ndarray, "n F"]) -> Float32[np.ndarray, "n H"]:
        """See `EagleRunner.fuse`."""
        normed = self._fusion.normed(features)
        if self._fusion.fc is None:
            return normed
        return self._fusion.fc.forward(normed, self._pool, self._activations, self._path)

    def forward(
        self,
        cache: CopyableRows,
        token_ids: List[int],
        x: Float32[np.ndarray, "n H"],
        segments: List[Segment],
        logit_rows: List[int],
    ) -> tuple[Float32[np.ndarray, "r Vd"], Float32[np.ndarray, "n H"]]:
        """See `EagleRunner.forward`."""
        assert isinstance(cache, NativeRows)
        logits = np.empty((len(logit_rows), self.config.draft_vocab_size), np.float32)
        outputs = np.empty((len(token_ids), self.config.hidden_size), np.float32)
        self._model.forward(
            cache.memory,
            np.array(token_ids, np.int32),
            [native_segment(segment) for segment in segments],
            np.array(logit_rows, np.int32),
            logits=logits,
            x=np.ascontiguousarray(x),
            outputs=outputs,
        )
        return logits, outputs

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
        """See `EagleRunner.draft`. Raises ModelError where logits that a token is drawn from, or
        that are ranked, are not finite."""
        assert isinstance(cache, NativeRows)
        drafted, drawn_from, ranked = self._model.draft_chains(
            cache.memory,
            [
                _chain(row, start, len(ids), count, chooser)
                for row, start, ids, count, chooser in zip(
                    rows, starts, pending, counts, choosers, strict=True
                )
            ],
            [token_id for ids in pending for token_id in ids],
            self._fusion.normed(features),
            has_features=self._fusion.fc is not None,
            width=min(width, self.config.draft_vocab_size),
        )
        q: list[Any] = []
        first = 0
        for count, chooser in zip(counts, choosers, strict=True):
            if chooser.coins:
                q.append(drawn_from[first : first + count])
                first += count
            else:
                q.append(None)
        return HeadDraft(drafted, q, ranked)


def _chain(row: int, start: int, num_pending: int, count: int, chooser: Chooser) -> Chain:
    # The library computes in float32; the target's distribution is held to the same range.
    temperature = float(np.clip(chooser.temperature, _FLOATS.tiny, _FLOATS.max))
    if chooser.race is not None:
        keys = chooser.race.keys
        return Chain(row, start, num_pending, count, Choice.RACED, temperature, keys)
    if chooser.coins:
        return Chain(row, start, num_pending, count, Choice.DRAWN, temperature, chooser.coins)
    return Chain(row, start, num_pending, count)


@dataclass(frozen=True, eq=False)
class _Weights:
    """The head's tensors as a `WeightSource`, in one format where it allows their shapes."""

    tensors: Mapping[str, Tensor]
    weight_format: WeightFormat

    def load(self, name: str) -> Tensor:
        return self.tensors[name].detach().to("cpu", torch.float32)

    def dtype(self, name: str) -> str:
        return "float32"

    def has_blocks(self, name: str) -> bool:
        return self.tensors[name].shape[1] % BLOCK == 0

    def blocks(self, name: str) -> UInt8[np.ndarray, "rows nbytes"]:
        return _QUANTISERS[self.weight_format](self.load(name).numpy())

    def linear(self, *stems: str, interleaved: bool = False) -> PackedLinear:
        names = tuple(f"{stem}.weight" for stem in stems)
        multiple = RUN if interleaved else 1
        rows = tuple(-(-self.tensors[name].shape[0] // multiple) * multiple for name in names)
        is_whole = self.weight_format in (WeightFormat.F32, WeightFormat.BF16)
        fits = is_whole or self.has_blocks(names[0])
        weight_format = self.weight_format if fits else WeightFormat.BF16
        in_ = self.tensors[names[0]].shape[1]
        matrix = Matrix(names[0], weight_format, names, rows, in_, interleaved)
        packed = aligned_empty(matrix.num_bytes)
        matrix.pack_into(self, packed)
        return matrix.linear(packed, [])

    def norm(self, stem: str) -> Norm:
        name = f"{stem}.weight"
        # Copied: the caller's weights are its own.
        return Norm(vector(self, name).copy()) if name in self.tensors else Norm()


@dataclass(frozen=True, eq=False)
class _Fusion:
    """From captured layers to what columns start from: RMS norms over runs of channels, then fc."""

    norms: list[Float32[np.ndarray, " size"]]
    eps: float
    fc: PackedLinear | None

    @classmethod
    def read(cls, config: EagleConfig, source: _Weights, parts: TargetParts) -> _Fusion:
        if config.algorithm == "eagle":
            return cls([parts.final_norm], parts.norm_eps, None)
        stems = ["input_norm"] if config.norm_before_fc else []
        if config.fc_norm:
            stems = [f"fc_norm.{i}" for i in range(len(config.feature_layers))]
        norms = [vector(source, f"{stem}.weight").copy() for stem in stems]
        return cls(norms, config.rms_norm_eps, source.linear("fc"))

    def normed(self, features: Float32[np.ndarray, "n F"]) -> Float32[np.ndarray, "n F"]:
        if not self.norms:
            return np.ascontiguousarray(features)
        normed, begin = np.empty(features.shape, np.float32), 0
        for weight in self.norms:
            run = slice(begin, begin + len(weight))
            normed[:, run] = rms_norm(features[:, run], weight, self.eps)
            begin = run.stop
        return normed


def _check_width(config: EagleConfig, embedding: PackedLinear, target: str) -> None:
    if config.hidden_size != embedding.in_ or config.vocab_size != embedding.out:
        raise ModelError(
            f"the head's tokens are embedded as {config.vocab_size} rows of {config.hidden_size} "
            f"channels, but {target} has {embedding.out} of {embedding.in_}; a head must have its "
            "target's width, because it borrows the target's embedding"
        )


def _network(
    config: EagleConfig,
    source: _Weights,
    embedding: PackedLinear,
    fc: PackedLinear | None,
    draft_ids: np.ndarray[Any, Any],
    activations: Activations,
    kv_type: KVType,
) -> NativeConfig:
    is_eagle3 = config.algorithm == "eagle3"
    attention, mlp = f"{_LAYER}self_attn.", f"{_LAYER}mlp."
    layer = NativeLayer(
        qkv=source.linear(*(f"{attention}{x}_proj" for x in "qkv")),
        o=source.linear(f"{attention}o_proj"),
        up=source.linear(f"{mlp}gate_proj", f"{mlp}up_proj", interleaved=True),
        down=source.linear(f"{mlp}down_proj"),
        input_norm=source.norm(f"{_LAYER}input_layernorm"),
        post_attention_norm=source.norm(f"{_LAYER}post_attention_layernorm"),
        rope=0,
    )
    eagle = EagleParts(
        kind=EagleKind.EAGLE3 if is_eagle3 else EagleKind.EAGLE1,
        draft_ids=draft_ids,
        fc=fc if is_eagle3 else source.linear("fc"),
        hidden_norm=source.norm(f"{_LAYER}hidden_norm"),
        norm_before_residual=config.norm_before_residual,
        norm_output=config.norm_output,
    )
    return NativeConfig(
        vocab_size=config.vocab_size,
        num_logits=config.draft_vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        embedding=embedding,
        head=source.linear("lm_head"),
        final_norm=source.norm("norm"),
        layers=[layer],
        attention_scale=config.head_dim**-0.5,
        norm_eps=config.rms_norm_eps,
        activations=activations,
        kv_type=kv_type,
        eagle=eagle,
    )
