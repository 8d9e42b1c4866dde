"""What an EAGLE head is: its shape, and how it joins features and tokens."""

from __future__ import annotations

from dataclasses import dataclass

from outpace.models.config import Rope


def usual_feature_layers(num_layers: int) -> tuple[int, int, int]:
    """What "eagle3" captures of a target where nothing is said, as in the speculators library: a
    low, a middle and a high layer."""
    return 2, num_layers // 2, num_layers - 3


@dataclass(frozen=True, kw_only=True)
class EagleConfig:
    """Shape and flags of an EAGLE-1 or EAGLE-3 head with one decoder layer.

    Column i of a head joins the target's feature of token i with the embedding of token i + 1, at
    rotary position i, and predicts token i + 2. Where the beginning of a text is skipped, tokens
    count from the first that is not.

    algorithm: "eagle3" (Li et al. 2503.01840): the normed embedding beside the normed feature,
        [2H], is what query, key and value read. "eagle" (2401.15077): `fc` joins embedding and
        feature, and what it gives runs through an ordinary layer.
    feature_layers: the target layers whose outputs are one token's feature, concatenated: 0 is the
        embedding, i the i-th layer's output ("input to layer i" elsewhere). "eagle" takes the last
        layer's, through the target's final norm.
    hidden_size: H, of the head; target_hidden_size: of one captured layer.
    vocab_size: of the target; draft_vocab_size: how many of its tokens the head can draft.
    norm_before_residual: the residual starts from the normed feature instead of the feature.
    norm_before_fc: one RMS norm over the concatenated feature before `fc`; fc_norm: one for each
        captured layer; not both.
    norm_output: later draft steps get the output after the final norm instead of before it.
    """

    algorithm: str
    feature_layers: tuple[int, ...]
    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: Rope
    max_position_embeddings: int
    vocab_size: int
    draft_vocab_size: int
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False

    @property
    def feature_size(self) -> int:
        """Floats of one token's feature: what `fc` reads (with "eagle" the embedding besides)."""
        return len(self.feature_layers) * self.target_hidden_size
