"""What a trained head borrows from its target: rows of the embedding and of the output head."""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from outpace.errors import ModelError
from outpace.models.decoder import Decoder
from outpace.models.native.decoder import NativeDecoder

if TYPE_CHECKING:
    from jaxtyping import Float32

    from outpace.models.config import ModelConfig
    from outpace.models.load import LoadedModel


@dataclass(frozen=True, eq=False)
class TargetParts:
    """A loaded target, as heads see it: float32 rows in host memory, whatever it is stored in.

    Raises ModelError for a target that an adapter runs: it does not show its weights.
    """

    target: LoadedModel

    def __post_init__(self) -> None:
        self._decoder  # noqa: B018 - refuse here, not at first use

    @property
    def _decoder(self) -> Decoder | NativeDecoder:
        decoder = self.target.decoder
        if not isinstance(decoder, Decoder | NativeDecoder):
            raise ModelError(
                f"trained heads need the weights of their target, and {self.target.name} runs on "
                f"the {self.target.runs_on}, which does not show them; use model_impl='torch'"
            )
        return decoder

    @property
    def config(self) -> ModelConfig:
        return self.target.config

    @property
    def name(self) -> str:
        return self.target.name

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding, those that only pad it included."""
        return self.config.vocab_size

    @property
    def num_tokens(self) -> int:
        """Tokens that exist: the size of the target's p."""
        return self._decoder.num_logits

    @property
    def hidden_size(self) -> int:
        return self.config.hidden_size

    @property
    def num_layers(self) -> int:
        return self.config.num_hidden_layers

    @property
    def fingerprint(self) -> str:
        return self.target.fingerprint

    @cached_property
    def tokenizer_fingerprint(self) -> str:
        return self.target.tokenizer.fingerprint()

    def embedding_rows(self, token_ids: List[int]) -> Float32[np.ndarray, "n Ht"]:
        """The embeddings of tokens, without the scale that some families multiply them by."""
        return self._decoder.embedding_rows(token_ids)

    def head_rows(self, token_ids: List[int]) -> Float32[np.ndarray, "n Ht"]:
        """The rows of the output head that give these tokens' logits."""
        return self._decoder.head_rows(token_ids)

    def head_logits(self, x: Float32[np.ndarray, "n Ht"]) -> Float32[np.ndarray, "n V"]:
        """Normed hidden states through the target's own output head, before any softcap."""
        return self._decoder.head_logits(x)

    @property
    def final_norm(self) -> Float32[np.ndarray, " Ht"]:
        """The weight of the RMS norm before the output head."""
        return self._decoder.final_norm_weight

    @property
    def norm_eps(self) -> float:
        return self.config.norm_eps
