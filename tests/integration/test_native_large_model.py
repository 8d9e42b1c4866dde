"""A Llama-shaped model of about a billion parameters on the native step."""

from __future__ import annotations

import pytest
import torch
from native_models import StoredWeights, in_blocks, usable_paths
from tiny import layer_kind, random_weights, tiny_config

from outpace.models.decoder import Decoder
from outpace.models.native.decoder import native_decoder
from outpace.models.tensors import num_parameters

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.usefixtures("unchecked_shapes"),
    pytest.mark.skipif(not usable_paths(), reason="the native library is not built"),
]

TOLERANCE = 1e-4
"""Of the largest logit."""


def test_it_agrees_with_the_decoder_in_torch() -> None:
    config = tiny_config(
        hidden_size=2048,
        intermediate_size=8192,
        num_heads=32,
        num_kv_heads=8,
        head_dim=64,
        vocab_size=32_000,
        layers=(layer_kind(rotary_dim=64),) * 16,
        max_len=1024,
    )
    assert 0.9e9 < num_parameters(config) < 1.3e9
    weights = StoredWeights(random_weights(config))
    token_ids = torch.arange(24).mul(1237).remainder(config.vocab_size).tolist()
    reference = Decoder(config, weights.load, dtype=torch.float32)
    expected = in_blocks(reference, token_ids, [len(token_ids)])
    del reference
    decoder = native_decoder(config, weights, dtype="float32")
    found = in_blocks(decoder, token_ids, [8])
    assert (found - expected).abs().max() < TOLERANCE * expected.abs().max()
    assert torch.equal(found, in_blocks(decoder, token_ids, [1]))
