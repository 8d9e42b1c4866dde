"""A draft model that knows nothing: random weights, the target's own tokenizer.

It is what the published study drafted with, in kind: a tiny model with the same tokens whose q has
nothing to do with the target's p. Its weights are drawn from a normal distribution with standard
deviation 0.02, as models are initialised before training, and are never trained: q is then nearly
uniform over the vocabulary.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from outpace.errors import ModelError
from outpace.heads.files import write_draft
from outpace.models.base import CausalModel
from outpace.models.decoder import Decoder
from outpace.models.hub.aliases import cache_dir
from outpace.models.native.decoder import NativeDecoder
from outpace.models.tensors import num_parameters
from outpace.training.draft_model import config_json
from outpace.training.draft_network import LlamaNetwork
from outpace.training.draft_size import draft_config, size_of_width

if TYPE_CHECKING:
    from outpace.models.config import ModelConfig
    from outpace.models.load import LoadedModel

WIDTH, NUM_LAYERS = 64, 2
STANDARD_DEVIATION = 0.02


def random_draft(target: LoadedModel, seed: int) -> Path:
    """The directory of the random draft for a target, in the cache; written at first use.

    Equal tokenizers, context lengths and seeds give equal files. Raises ModelError for a target
    that an adapter runs: the draft takes its context length from a configuration read here.
    """
    config, tokenizer = _config(target), target.tokenizer
    values = config_json(config)
    values["bos_token_id"] = tokenizer.bos_id
    values["eos_token_id"] = sorted(tokenizer.end_token_ids)
    identity = json.dumps([values, tokenizer.fingerprint(), STANDARD_DEVIATION, seed])
    key = hashlib.sha256(identity.encode()).hexdigest()[:16]
    directory = cache_dir() / "experiment" / f"random-draft-{key}"
    if directory.is_dir():
        return directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".partial-") as folder:
        written = Path(folder) / "draft"
        written.mkdir()
        tokenizer.save(written)
        write_draft(written, values, _weights(config, seed))
        try:
            written.rename(directory)
        except OSError:
            if not directory.is_dir():  # else another process was quicker, with the same files
                raise
    return directory


def describe_random_draft(target: LoadedModel, seed: int) -> str:
    """What it is, in words for reports."""
    count = num_parameters(_config(target))
    return (
        f"a random draft model, never trained: Llama with {NUM_LAYERS} layers of width {WIDTH}, "
        f"{count / 1e6:.1f} M weights from N(0, {STANDARD_DEVIATION}²), seed {seed}, with the "
        "target's tokenizer"
    )


def _config(target: LoadedModel) -> ModelConfig:
    decoder: CausalModel = target.decoder
    if not isinstance(decoder, Decoder | NativeDecoder):
        raise ModelError(
            f"no random draft can be made for {target.name}, which runs on the {target.runs_on}; "
            "name a draft model with the same tokenizer (--draft)"
        )
    size = size_of_width(target.config, WIDTH, num_layers=NUM_LAYERS)
    return draft_config(target.config, size, decoder.num_logits)


def _weights(config: ModelConfig, seed: int) -> dict[str, torch.Tensor]:
    module = LlamaNetwork(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, STANDARD_DEVIATION, generator=generator)
            else:
                parameter.fill_(1)
    return {name: tensor.to(torch.bfloat16) for name, tensor in module.state_dict().items()}
