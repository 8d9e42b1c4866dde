"""Configurations on disk and plans of them, for the tests of `outpace plan`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from model_files import CONFIG

from outpace.measure.plan.devices import parse_devices
from outpace.measure.plan.drafts import read_draft
from outpace.measure.plan.options import PlanOptions
from outpace.measure.plan.planner import Planner
from outpace.measure.plan.source import read_source

QWEN: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "max_position_embeddings": 32768,
    "torch_dtype": "float16",
}
QWEN_1_5B = QWEN | {
    "vocab_size": 151936,
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}
QWEN_32B = QWEN | {
    "vocab_size": 152064,
    "hidden_size": 5120,
    "intermediate_size": 27648,
    "num_hidden_layers": 64,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
}


def written(directory: Path, values: dict[str, Any] | None = None, **changes: Any) -> str:
    """A new directory with nothing but a config.json: `values`, or the tiny model of CONFIG."""
    directory.mkdir(parents=True)
    content = (CONFIG if values is None else values) | changes
    (directory / "config.json").write_text(json.dumps(content), encoding="utf-8")
    return str(directory)


def planner(
    target: str,
    draft: str | None = None,
    method: str | None = None,
    devices: str | None = None,
    **options: Any,
) -> Planner:
    """A planner; without a draft and a method, of plain decoding. devices: as many of 80GB as
    share the target, where not given."""
    chosen = PlanOptions(**options)
    source = read_source(target)
    plain = "none" if draft is None and method is None else method
    found = read_draft(source, plain, draft, chosen)
    sizes = devices or f"{chosen.tensor_parallel}x80GB"
    return Planner(source, found, chosen, parse_devices(sizes))


def sizes(planner: Planner, *, on_device: bool = False) -> dict[str, int]:
    """Bytes of each term of a planner's own batch and context; of the same name, together."""
    found: dict[str, int] = {}
    for term in planner.plan().terms:
        size = term.device_bytes if on_device else term.num_bytes
        found[term.name] = found.get(term.name, 0) + size
    return found
