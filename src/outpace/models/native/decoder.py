"""A decoder whose passes are computed by the native step: one call per pass, on CPUs.

Same tokens, same bits: a token's logits do not depend on the rows beside it, on how a text was
split into passes, on the number of threads, or on the tree around it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float32
from torch import Tensor

from outpace.models.attention import Segment
from outpace.models.config import ModelConfig
from outpace.models.decoder import Batch
from outpace.models.native.cache import NativeRows
from outpace.models.native.formats import NativeOptions, dtype_name
from outpace.models.native.network import distinct_ropes, native_config, rope_table
from outpace.models.native.packed_file import packed_in_memory
from outpace.models.native.states import HostStates
from outpace.models.native.weights import (
    Matrix,
    PackedData,
    WeightSource,
    main_format,
    plan_matrices,
)
from outpace.native.interface import Activations
from outpace.native.model import NativeCache, NativeModel, NativeSegment
from outpace.native.pool import ThreadPool


class NativeDecoder:
    """A `CausalModel` computed by the native step.

    `forward` and `draft` may be called from several threads, which then take turns. What they
    return is the caller's.
    """

    device = torch.device("cpu")
    max_rows = None

    def __init__(
        self,
        config: ModelConfig,
        source: WeightSource,
        matrices: Sequence[Matrix],
        packed: PackedData,
        *,
        num_logits: int | None = None,
        options: NativeOptions | None = None,
        threads: int | None = None,
        path: str | None = None,
    ) -> None:
        """matrices, packed: what `plan_matrices` says of the model, and their packed bytes.
        num_logits: as in `Decoder`. threads: None takes one for each physical core. path: the
        instruction set; None takes the best one, or what OUTPACE_NATIVE_PATH says.

        Raises OptionError for options that do not go with these weights.
        """
        options = options or NativeOptions()
        self.config = config
        self.num_logits = config.vocab_size if num_logits is None else num_logits
        weight_format = main_format(matrices)
        self.dtype_name = dtype_name(weight_format)
        network = native_config(
            config,
            source,
            {matrix.name: (matrix, packed[matrix.name]) for matrix in matrices},
            num_logits=self.num_logits,
            activations=options.rounding(weight_format),
            kv_type=options.kv_type(weight_format),
            # As Gemma was trained.
            scale_dtype=torch.bfloat16 if self.dtype_name == "bfloat16" else torch.float32,
        )
        self.kv_cache_dtype = "bfloat16" if network.kv_type else "float32"
        self._model = NativeModel(network, ThreadPool.shared(threads), path)
        self._growing = threading.Lock()
        self._num_positions = 0

    @property
    def num_layers(self) -> int:
        return self.config.num_hidden_layers

    @property
    def max_len(self) -> int:
        return self.config.max_position_embeddings

    @property
    def capturable(self) -> range:
        return range(self.num_layers + 1)

    @property
    def exit_layers(self) -> range:
        return range(1, self.num_layers + 1)

    @property
    def num_threads(self) -> int:
        return self._model.pool.num_threads

    @property
    def pool(self) -> ThreadPool:
        """The threads it computes with; others may use them between its passes."""
        return self._model.pool

    @property
    def native_model(self) -> NativeModel:
        """For heads that share its embedding and its threads."""
        return self._model

    @property
    def final_norm_weight(self) -> Float32[np.ndarray, " hidden"]:
        """Weight of the norm before the output head, any offset added."""
        weight = self._model.config.final_norm.weight
        assert weight is not None
        return weight

    def embedding_rows(self, token_ids: Sequence[int]) -> Float32[np.ndarray, "n hidden"]:
        """Embeddings of tokens as they are stored, before any scale."""
        return self._model.config.embedding.rows(token_ids)

    def head_rows(self, token_ids: Sequence[int]) -> Float32[np.ndarray, "n hidden"]:
        """The rows of the output head that give these tokens' logits."""
        return self._model.config.head.rows(token_ids)

    def head_logits(self, x: Float32[np.ndarray, "n hidden"]) -> Float32[np.ndarray, "n vocab"]:
        """Normed hidden states through the output head, padding rows included."""
        config = self._model.config
        return config.head.forward(x, self.pool, config.activations, self._model.path)

    @property
    def activations(self) -> str:
        """What activations are rounded to before they meet the weights."""
        if self.dtype_name in ("float32", "bfloat16"):
            return self.dtype_name
        rounding = self._model.config.activations
        return "bfloat16" if rounding == Activations.BF16 else rounding.name.lower()

    @property
    def description(self) -> str:
        """Instruction set and formats, in words."""
        path, weights = self._model.path, f"{self.dtype_name} weights"
        return f"{path}, {weights}, {self.activations} activations"

    def kv_bytes(self, *, num_rows: int, capacity: int) -> int:
        """Bytes of a cache of that size, once it is full."""
        return NativeCache.num_bytes(self._model, num_rows, capacity)

    def new_cache(self, *, num_rows: int, capacity: int) -> NativeRows:
        """A cache of this model's shape; rotary tables are made to reach as far as it does."""
        num_positions = min(capacity, self.max_len)
        with self._growing:
            if num_positions > self._num_positions:
                for index, rope in enumerate(distinct_ropes(self.config)):
                    self._model.set_rope(index, *rope_table(rope, num_positions))
                self._num_positions = num_positions
        return NativeRows(self._model, num_rows=num_rows, capacity=capacity)

    def forward(
        self,
        batch: Batch,
        cache: NativeRows,
        capture: Sequence[int] = (),
        num_layers: int | None = None,
    ) -> tuple[Float[np.ndarray, "r vocab"], Mapping[int, Float[Tensor, "n hidden"]]]:
        """One pass over the batch; see `EarlyExit.forward`. Everything is float32."""
        token_ids = np.array(batch.token_ids, np.int32)
        logits = np.empty((len(batch.logit_rows), self.num_logits), np.float32)
        layers = sorted(set(capture))
        hidden = np.empty((len(layers), len(token_ids), self.config.hidden_size), np.float32)
        self._model.forward(
            cache.memory,
            token_ids,
            [native_segment(segment) for segment in batch.segments],
            np.array(batch.logit_rows, np.int32),
            logits=logits,
            capture=np.array(layers, np.int32) if layers else None,
            hidden=list(hidden),
            num_layers=num_layers or 0,
        )
        return logits, HostStates(layers, hidden) if layers else {}

    def draft(
        self,
        cache: NativeRows,
        rows: Sequence[int],
        starts: Sequence[int],
        pending: Sequence[Sequence[int]],
        counts: Sequence[int],
        num_layers: int | None = None,
    ) -> list[list[int]]:
        """The model's greedy continuation of several sequences, in one call.

        Feeds `pending[i]` from slot `starts[i]` of row `rows[i]`, then what it chooses itself;
        returns `counts[i]` tokens (at least 1), of which the last is not fed. Does not touch the
        rows' ids. num_layers: run only the first that many; see `EarlyExit`.
        """
        drafted = self._model.draft(
            cache.memory,
            np.array(rows, np.int32),
            np.array(starts, np.int32),
            np.array([len(tokens) for tokens in pending], np.int32),
            np.array([token for tokens in pending for token in tokens], np.int32),
            np.array(counts, np.int32),
            num_layers or 0,
        )
        return [ids[:count] for ids, count in zip(drafted.tolist(), counts, strict=True)]


def native_segment(segment: Segment) -> NativeSegment:
    parents = segment.parents
    return NativeSegment(
        segment.row,
        segment.start,
        segment.num_tokens,
        None if parents is None else np.array(parents, np.int32),
    )


def native_decoder(
    config: ModelConfig, source: WeightSource, *, dtype: str = "auto", **options: Any
) -> NativeDecoder:
    """A native decoder with its weights in memory. options: of `NativeDecoder`."""
    matrices = plan_matrices(config, source, dtype)
    packed = packed_in_memory(source, matrices)
    return NativeDecoder(config, source, matrices, packed, **options)
