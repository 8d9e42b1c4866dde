"""The rotation of a head: read back from its frequencies, and plain where its target's is not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from eagle_heads import head_config

from outpace.errors import ModelError
from outpace.heads.binding import Binding
from outpace.heads.eagle_config import eagle_config_json
from outpace.heads.plain_rope import plain_rope, plain_theta
from outpace.models.config import Rope
from outpace.models.rope import default_frequencies

BINDING = Binding("tiny", "target", "tokenizer")


@pytest.mark.parametrize("theta", [1e4, 5e5, 1e6])
@pytest.mark.parametrize("head_dim", [20, 64, 128])
def test_the_base_of_a_rotation_is_found_in_it(theta: float, head_dim: int) -> None:
    rope = Rope(default_frequencies(theta, head_dim))
    assert plain_theta(rope, head_dim) == theta
    assert plain_rope(rope, head_dim) is rope


STRETCHED = {
    "llama3": Rope(tuple(f / (8 if f < 0.01 else 1) for f in default_frequencies(5e5, 64))),
    "linear": Rope(tuple(f / 4 for f in default_frequencies(5e5, 64))),
    "yarn": Rope(default_frequencies(5e5, 64), attention_factor=1.2),
}


@pytest.mark.parametrize("kind", STRETCHED)
def test_a_stretched_rotation_is_not_written(kind: str) -> None:
    rope = STRETCHED[kind]
    config = replace(head_config(head_dim=64), rope=rope)
    with pytest.raises(ModelError, match="stretched or partial"):
        eagle_config_json(config, BINDING, verifier="", verifier_class="")
    assert plain_rope(rope, 64) == Rope(default_frequencies(5e5, 64))
    partial = Rope(default_frequencies(5e5, 32))
    assert plain_theta(partial, 64) is None
    assert plain_rope(partial, 64) == Rope(default_frequencies(5e5, 64))
