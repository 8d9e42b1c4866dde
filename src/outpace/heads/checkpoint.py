"""EAGLE heads on disk: strict reading, complete writing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from outpace.errors import ModelError
from outpace.heads.binding import STORED, TARGET, Binding, read_binding
from outpace.heads.config import EagleConfig
from outpace.heads.draft_vocabulary import read_vocabulary, vocabulary_names, vocabulary_tensors
from outpace.heads.eagle import EagleModule
from outpace.heads.eagle_config import eagle_config_json, read_eagle_config
from outpace.heads.files import check_names, check_shape, read_config, read_tensors, write_draft
from outpace.models.hf.families import FAMILIES
from outpace.models.hub.aliases import published_name

if TYPE_CHECKING:
    from jaxtyping import Int64
    from torch import Tensor

    from outpace.heads.target_parts import TargetParts

EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"
ROUNDING = 0.2
"""How far a row of a stored embedding may be from the target's, as a part of its length, to count
as the same: what storing the target in four bits does to it."""
COMPARED_ROWS = 4096


@dataclass(frozen=True, eq=False)
class EagleCheckpoint:
    """An EAGLE head as its files say.

    tensors: by the names of `EagleModule`, as stored. embedding: one of its own, as stored; None
    where it borrows the target's. draft_token_ids: the target id of each draft token, ascending.
    binding: to its target; None in a file that says nothing of it.
    """

    directory: Path
    config: EagleConfig
    tensors: Mapping[str, Tensor]
    embedding: Tensor | None
    draft_token_ids: Int64[np.ndarray, " Vd"]
    binding: Binding | None

    def weights(self, parts: TargetParts) -> dict[str, Tensor]:
        """Everything `EagleModule` holds, in float32: what is not stored comes from the target.
        And `EMBEDDING`, if the head has one of its own."""
        weights = {name: tensor.float() for name, tensor in self.tensors.items()}
        if HEAD not in weights:
            rows = parts.head_rows(self.draft_token_ids.tolist())
            weights[HEAD] = torch.from_numpy(rows)
        if self.embedding is not None:
            weights[EMBEDDING] = self.embedding.float()
        return weights

    @property
    def stores_head(self) -> bool:
        """Whether it has an output head of its own, which need not be the target's."""
        return HEAD in self.tensors

    def module(self, parts: TargetParts) -> EagleModule:
        """The head in torch, in float32. Raises as `check_trainable`."""
        self.check_trainable(parts)
        module = EagleModule(self.config)
        module.load_state_dict(self.weights(parts), strict=True)
        return module

    def check_trainable(self, parts: TargetParts) -> None:
        """Raise ModelError for a head that does not read the target's embedding."""
        if self.embedding is not None:
            raise ModelError(
                f"{self.directory} has an embedding of its own: {EMBEDDING} is not {parts.name}'s; "
                "it can draft, and cannot be trained further here"
            )


def read_eagle(directory: str | Path, parts: TargetParts, algorithm: str) -> EagleCheckpoint:
    """Read an EAGLE head and check that it goes with the target.

    Raises ModelError for files that are damaged, incomplete, of another kind, with tensors or flags
    that are not known, or of another target.
    """
    directory = Path(directory)
    values = read_config(directory)
    name = str(directory)
    config = read_eagle_config(values, name, parts.num_layers)
    if config.algorithm != algorithm:
        raise ModelError(
            f"{name} is a head for method {config.algorithm!r}, and the method is {algorithm!r}"
        )
    binding = read_binding(values, name)
    if binding is not None:
        binding.check(parts, name)
    _check_target(config, parts, name)
    tensors = _renamed(read_tensors(directory), name)
    if values.get("embed_requires_grad") and EMBEDDING not in tensors:
        raise ModelError(f"{name}: was trained with an embedding of its own, and lacks {EMBEDDING}")
    embedding = _own_embedding(tensors.pop(EMBEDDING, None), parts, name)
    vocabulary = vocabulary_names(config.vocab_size, config.draft_vocab_size)
    expected = _shapes(config)
    if binding is not None and binding.lm_head == TARGET:
        del expected[HEAD]
    check_names(set(tensors), set(expected) | vocabulary, directory)
    for key, shape in expected.items():
        check_shape(key, tensors[key], shape, directory)
        if not tensors[key].is_floating_point():
            raise ModelError(f"{name}: {key} is {tensors[key].dtype}, expected floating point")
    token_ids = read_vocabulary(tensors, config.vocab_size, config.draft_vocab_size, directory)
    network = {key: tensors[key] for key in expected}
    return EagleCheckpoint(directory, config, network, embedding, token_ids, binding)


def write_eagle(
    directory: str | Path,
    module: EagleModule,
    draft_token_ids: Int64[np.ndarray, " Vd"],
    parts: TargetParts,
    *,
    lm_head: str = STORED,
) -> None:
    """Write a head into an existing directory, weights in bfloat16.

    lm_head: "stored", which other libraries need; "target" leaves the output head out, because it
    is the rows of the target's own.
    """
    config = module.config
    tensors = {
        name: tensor.detach().to("cpu", torch.bfloat16)
        for name, tensor in module.state_dict().items()
        if lm_head == STORED or name != HEAD
    }
    tensors |= vocabulary_tensors(draft_token_ids, config.vocab_size)
    binding = Binding.to(parts, lm_head=lm_head)
    values = eagle_config_json(
        config,
        binding,
        verifier=published_name(parts.name),
        verifier_class=FAMILIES[parts.config.architecture].model_class,
    )
    write_draft(Path(directory), values, tensors)


def _renamed(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """EAGLE's own repository calls the layer `midlayer`."""
    renamed: dict[str, Tensor] = {}
    for key, tensor in tensors.items():
        ours = key.replace("midlayer.", "layers.0.", 1) if key.startswith("midlayer.") else key
        if ours in renamed:
            raise ModelError(f"{name}: holds {ours} twice, under EAGLE's name as well")
        renamed[ours] = tensor
    return renamed


def _shapes(config: EagleConfig) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        module = EagleModule(config)
    return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}


def _check_target(config: EagleConfig, parts: TargetParts, name: str) -> None:
    if config.algorithm == "eagle" and parts.config.norm != "rms":
        raise ModelError(
            f"{name} reads its target through an RMS norm, and the final norm of {parts.name} is a "
            "layer norm; use another method"
        )
    for what, ours, theirs in (
        ("vocabulary rows", config.vocab_size, parts.vocab_size),
        ("hidden channels", config.target_hidden_size, parts.hidden_size),
        ("channels of an embedding", config.hidden_size, parts.hidden_size),
    ):
        if ours != theirs:
            raise ModelError(
                f"{name} is made for a target with {ours} {what}, and {parts.name} has {theirs}"
            )


def _own_embedding(stored: Tensor | None, parts: TargetParts, name: str) -> Tensor | None:
    """A stored embedding, unless it is the target's up to rounding: then the target's is used, and
    memory saved."""
    if stored is None:
        return None
    shape = (parts.vocab_size, parts.hidden_size)
    if tuple(stored.shape) != shape or not stored.is_floating_point():
        raise ModelError(
            f"{name}: {EMBEDDING} is {stored.dtype} {list(stored.shape)}; expected floating point "
            f"and the shape of {parts.name}'s, {list(shape)}"
        )
    for begin in range(0, parts.vocab_size, COMPARED_ROWS):
        rows = stored[begin : begin + COMPARED_ROWS].float().numpy()
        targets = parts.embedding_rows(range(begin, begin + len(rows)))
        apart = np.linalg.norm(rows - targets, axis=1)
        if not (apart <= ROUNDING * np.linalg.norm(targets, axis=1)).all():
            return stored
    return None
