"""Heads and exits for tiny targets: random ones, and a target whose heads can be written down."""

from __future__ import annotations

from collections.abc import Sequence as List
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from tiny import feed, random_weights, tiny_config, tiny_tokenizer

from outpace.heads.exit import ExitConfig, ExitModule, write_exit
from outpace.heads.medusa import MedusaConfig, MedusaModule, write_medusa
from outpace.heads.target_parts import TargetParts
from outpace.models.decoder import Decoder
from outpace.models.load import LoadedModel
from outpace.training.optimisers import make_optimisers
from outpace.training.trainee import LossReport, Trainee, TrainingBatch

COUNTING_SIZE = 32


def some_vocabulary(vocab_size: int, size: int | None, seed: int = 0) -> Int64[np.ndarray, " Vd"]:
    """`size` of a target's token ids, ascending; all of them if None."""
    if size is None:
        return np.arange(vocab_size, dtype=np.int64)
    chosen = np.random.default_rng(seed).permutation(vocab_size)[:size]
    return np.sort(chosen).astype(np.int64)


def random_medusa(
    target: LoadedModel,
    directory: Path,
    *,
    num_heads: int = 3,
    draft_vocab_size: int | None = None,
    seed: int = 0,
    **shape: Any,
) -> Path:
    """Random Medusa heads in a new directory. shape: num_layers, bias."""
    parts = TargetParts(target)
    token_ids = some_vocabulary(parts.vocab_size, draft_vocab_size, seed)
    config = MedusaConfig(
        hidden_size=parts.hidden_size,
        vocab_size=parts.vocab_size,
        draft_vocab_size=len(token_ids),
        num_heads=num_heads,
        **shape,
    )
    module = MedusaModule(config)
    randomise(module, seed)
    directory.mkdir(parents=True)
    write_medusa(directory, module, token_ids, parts)
    return directory


def random_exit(
    target: LoadedModel,
    directory: Path,
    *,
    exit_layer: int = 1,
    draft_vocab_size: int | None = None,
    rank: int | None = None,
    seed: int = 0,
) -> Path:
    """A random exit in a new directory."""
    parts = TargetParts(target)
    token_ids = some_vocabulary(parts.vocab_size, draft_vocab_size, seed)
    config = ExitConfig(
        exit_layer=exit_layer,
        hidden_size=parts.hidden_size,
        vocab_size=parts.vocab_size,
        draft_vocab_size=len(token_ids),
        rms_norm_eps=parts.norm_eps,
        rank=rank,
    )
    module = ExitModule(config, torch.from_numpy(np.array(parts.final_norm, np.float32)))
    randomise(module, seed)
    directory.mkdir(parents=True)
    write_exit(directory, module, token_ids, parts)
    return directory


def randomise(module: torch.nn.Module, seed: int = 0) -> None:
    """Matrices that change what they are added to without drowning it; everything else a little."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            scale = 0.3 / parameter.shape[1] ** 0.5 if parameter.ndim == 2 else 0.1
            parameter += scale * noise


def counting_model(dtype: torch.dtype = torch.float64, *, sharpness: float = 2.0) -> LoadedModel:
    """After token t it says t + 1, and after the last one 0; its layers add nothing.

    The last feature of token t is the t-th unit vector, so that `counting_heads` are right. At
    temperature 1 it says anything else with probability 31 exp(-sharpness sqrt(32)): 3.8e-4, or
    5.7e-14 at a sharpness of 6."""
    size = COUNTING_SIZE
    config = tiny_config(num_layers=2, vocab_size=size, hidden_size=size, name="counting")
    weights = random_weights(config)
    for name, tensor in weights.items():
        if "o_proj" in name or "down_proj" in name:
            tensor.zero_()
    weights["model.embed_tokens.weight"] = torch.eye(size, dtype=torch.float64)
    weights["model.norm.weight"] = torch.ones(size, dtype=torch.float64)
    weights["lm_head.weight"] = sharpness * torch.eye(size, dtype=torch.float64).roll(1, 0)
    decoder = Decoder(config, weights.__getitem__, dtype=dtype)
    return LoadedModel(decoder, tiny_tokenizer(size), "counting", fingerprint="counting")


def counting_heads(directory: Path, num_heads: int = 3) -> Path:
    """Medusa heads of `counting_model` that are always right."""
    size, target = COUNTING_SIZE, counting_model()
    config = MedusaConfig(
        hidden_size=size, vocab_size=size, draft_vocab_size=size, num_heads=num_heads
    )
    module = MedusaModule(config)
    for head in range(num_heads):
        # x + silu(3 S x) points along the unit vector that S moves x to.
        module.blocks[head].layers[0].weight.data = 3 * torch.eye(size).roll(head + 1, 0)
    directory.mkdir(parents=True)
    write_medusa(directory, module, some_vocabulary(size, None), TargetParts(target))
    return directory


def batch_of(
    target: LoadedModel, texts: List[List[int]], num_prompt: int, capture: List[int]
) -> TrainingBatch:
    """Texts whose first `num_prompt` tokens are prompt, with the target's own features."""
    features: dict[int, list[torch.Tensor]] = {layer: [] for layer in capture}
    for text in texts:
        cache = target.new_cache(num_rows=1, num_tokens=len(text))
        cache.open()
        _, hidden = feed(target.decoder, cache, {0: text}, capture=capture)
        for layer in capture:
            features[layer].append(hidden[layer].to(torch.bfloat16))
    lengths = [len(text) for text in texts]
    is_answer = torch.cat([torch.arange(length) >= num_prompt for length in lengths])
    return TrainingBatch(
        torch.tensor([token for text in texts for token in text]),
        {layer: torch.cat(parts) for layer, parts in features.items()},
        is_answer,
        tuple(np.cumsum([0, *lengths]).tolist()),
    )


def train(
    trainee: Trainee, batches: List[TrainingBatch], steps: int, lr_scale: float
) -> LossReport:
    """Plain steps of the loop's optimisers, at a rate that falls to zero."""
    optimisers = make_optimisers(trainee.parameter_groups())
    for step in range(steps):
        report = trainee.loss(batches[step % len(batches)], training=True)
        for optimiser in optimisers:
            optimiser.zero_grad(set_to_none=True)
        report.loss.backward()
        for optimiser in optimisers:
            for group in optimiser.param_groups:
                group["lr"] = group["base_lr"] * lr_scale * (1 - step / steps)
            optimiser.step()
    return trainee.loss(batches[0], training=False)
