"""What a drafting method needs besides its target: weights, caches, distributions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from outpace.errors import ModelError, OptionError
from outpace.heads.binding import TARGET, read_binding
from outpace.heads.bundled import bundled_for
from outpace.heads.files import CONFIG
from outpace.heads.kinds import DRAFT_MODEL, head_kind
from outpace.measure.plan.caches import CacheShape
from outpace.measure.plan.formats import Choice, Shape, choose
from outpace.measure.plan.options import PlanOptions
from outpace.measure.plan.sharding import check_split
from outpace.measure.plan.source import (
    ConfigFile,
    ModelSource,
    Stored,
    open_config,
    source_of,
    stated_dtype,
)
from outpace.measure.plan.terms import FLOAT_BYTES, WEIGHTS, Term, replicated
from outpace.measure.plan.weights import weight_terms
from outpace.models.config import ModelConfig
from outpace.models.tensors import expected_shapes

if TYPE_CHECKING:
    from torch.nn import Module

    from outpace.models.hub.aliases import Progress

HEADS = ("eagle3", "eagle", "medusa")
_WITH_A_DRAFT = (DRAFT_MODEL, *HEADS, "early_exit")
_LABEL = "draft"
_ID_BYTES, _FLAG_BYTES = 8, 1


@dataclass(frozen=True, slots=True)
class Draft:
    """What a method keeps.

    name: of its model or head, as given; empty where it has none.
    weights: its own. caches: its own keys and values.
    num_logits: tokens that its distributions range over; 0: it has none.
    features: floats that it may keep of every token of a sequence, up to max_len tokens.
    config: of a draft model, whose passes have activations of their own.
    num_devices: that share it.
    """

    method: str
    name: str = ""
    weights: tuple[Term, ...] = ()
    caches: tuple[CacheShape, ...] = ()
    num_logits: int = 0
    features: int = 0
    max_len: int = 0
    config: ModelConfig | None = None
    num_devices: int = 1
    notes: tuple[str, ...] = ()


def read_draft(
    target: ModelSource,
    method: str | None,
    name: str | None,
    options: PlanOptions,
    progress: Progress | None = None,
) -> Draft:
    """What the method needs, from the configuration of its draft.

    method: None is that of the draft, or "auto" without one. name: a model as `read_source` takes
    it, or the directory or `config.json` of a trained head; None takes the head that comes with
    this package, for the methods that have one.
    Raises OptionError for a method that is none or does not go with the draft, ModelError for a
    draft that cannot be read or does not fit the target.
    """
    if name is not None:
        return _of_draft(target, method, name, options, progress)
    if method in (None, "auto"):
        found = _bundled(target, "eagle3")
        if found is None:
            return Draft("auto", notes=(_DRAFT_FREE,))
        return replace(_head(target, found, options), method="auto")
    known = _known_method(str(method))
    if known == DRAFT_MODEL:
        raise OptionError("method 'draft_model' needs a draft: give --draft")
    if known == "early_exit":
        return Draft(known, num_logits=target.config.vocab_size, notes=(_SHARES,))
    if known not in HEADS:
        return Draft(known, notes=() if known == "none" else (_DRAFT_FREE,))
    bundled = _bundled(target, known)
    if bundled is None:
        raise ModelError(
            f"no {known!r} draft comes with this package for {target.name}; give --draft with the "
            "directory or the config.json of one"
        )
    return _head(target, bundled, options)


_SHARES = "early_exit drafts with the target's own layers, output head and cache."
_DRAFT_FREE = (
    "This method has neither weights nor a cache; what it remembers of the text, a few megabytes a "
    "sequence at most, stays in host memory and is not counted."
)


def _known_method(method: str) -> str:
    from outpace.drafters import available_methods

    name = method.replace("-", "_")
    if name not in available_methods():
        raise OptionError(
            f"method must be one of {', '.join(available_methods())}, got {method!r:.80}"
        )
    return name


def _of_draft(
    target: ModelSource,
    method: str | None,
    name: str,
    options: PlanOptions,
    progress: Progress | None,
) -> Draft:
    asked = None if method is None else _known_method(method)
    if asked not in (None, "auto", *_WITH_A_DRAFT):
        raise OptionError(f"method {asked!r} takes no draft; leave out --draft or --method")
    found = open_config(name, progress)
    kind = head_kind(found.values, found.label) if isinstance(found, ConfigFile) else None
    if asked not in (None, "auto", kind or DRAFT_MODEL):
        raise OptionError(
            f"{name} is a draft for method {kind or DRAFT_MODEL!r}, but the method is {asked!r}"
        )
    if kind is not None:
        assert isinstance(found, ConfigFile)
        draft = _head(target, found, options)
    else:
        source = found if isinstance(found, ModelSource) else source_of(name, found)
        draft = _model(target, source, options)
    return replace(draft, method="auto") if asked == "auto" else draft


def _model(target: ModelSource, source: ModelSource, options: PlanOptions) -> Draft:
    config, n = source.config, options.draft_tensor_parallel
    check_split(config, n, source.name)
    dtype = options.dtype_of_draft
    notes = []
    if config.vocab_size != target.config.vocab_size:
        notes.append(
            f"Vocabularies differ: {config.vocab_size:,} rows of the draft, "
            f"{target.config.vocab_size:,} of the target; whether the tokenizers agree is seen "
            "when both are loaded."
        )
    return Draft(
        DRAFT_MODEL,
        source.name,
        tuple(
            weight_terms(
                _LABEL,
                expected_shapes(config),
                choose(source.stored, dtype, options.group_size),
                config.num_key_value_heads,
                n,
            )
        ),
        (
            CacheShape(
                _LABEL,
                config.num_hidden_layers,
                config.num_key_value_heads,
                config.head_dim,
                options.kv_item_bytes(dtype, source.stored.dtype),
                config.max_position_embeddings,
                n,
            ),
        ),
        num_logits=config.vocab_size,
        config=config,
        num_devices=n,
        notes=tuple(notes),
    )


def _bundled(target: ModelSource, algorithm: str) -> ConfigFile | None:
    if target.fingerprint is None:
        return None
    directory = bundled_for(target.fingerprint, algorithm)
    found = None if directory is None else open_config(str(directory))
    assert found is None or isinstance(found, ConfigFile)
    return found


def _head(target: ModelSource, file: ConfigFile, options: PlanOptions) -> Draft:
    kind = head_kind(file.values, file.label)
    if kind == "medusa":
        return _medusa(target, file, options)
    if kind == "early_exit":
        return _exit(target, file, options)
    return _eagle(target, file, options)


def _eagle(target: ModelSource, file: ConfigFile, options: PlanOptions) -> Draft:
    from outpace.heads.eagle import EagleModule
    from outpace.heads.eagle_config import read_eagle_config

    config = read_eagle_config(file.values, file.label, target.config.num_hidden_layers)
    _check_target(target, file.label, config.vocab_size, config.target_hidden_size)
    n = options.draft_tensor_parallel
    check_split(config, n, file.label)
    shapes = _shapes(lambda: EagleModule(config))
    if file.values.get("embed_requires_grad"):
        shapes["embed_tokens.weight"] = (config.vocab_size, config.hidden_size)
    return Draft(
        config.algorithm,
        _head_name(file),
        (
            *weight_terms(_LABEL, shapes, _choice(file, options), config.num_key_value_heads, n),
            *_vocabulary_tables(config.draft_vocab_size, config.vocab_size),
        ),
        (
            CacheShape(
                _LABEL,
                1,
                config.num_key_value_heads,
                config.head_dim,
                FLOAT_BYTES,
                config.max_position_embeddings,
                n,
            ),
        ),
        num_logits=config.draft_vocab_size,
        features=config.feature_size,
        max_len=config.max_position_embeddings,
        num_devices=n,
        notes=(_borrowed(file),),
    )


def _medusa(target: ModelSource, file: ConfigFile, options: PlanOptions) -> Draft:
    from outpace.heads.medusa import MedusaModule, read_medusa_config

    config = read_medusa_config(file.values, file.label)
    _check_target(target, file.label, config.vocab_size, config.hidden_size)
    shapes = _shapes(lambda: MedusaModule(config))
    if not _borrows_head(file):
        for head in range(1 if config.shared_lm_head else config.num_heads):
            shapes[f"lm_heads.{head}.weight"] = (config.draft_vocab_size, config.hidden_size)
    return Draft(
        "medusa",
        _head_name(file),
        (
            *weight_terms(_LABEL, shapes, _choice(file, options), 1, 1),
            *_vocabulary_tables(config.draft_vocab_size, config.vocab_size),
        ),
        num_logits=config.draft_vocab_size,
        features=config.hidden_size,
        max_len=1,
        notes=("Medusa heads have no cache: they read the target's last feature.",),
    )


def _exit(target: ModelSource, file: ConfigFile, options: PlanOptions) -> Draft:
    from outpace.heads.exit import ExitModule, read_exit_config

    config = read_exit_config(file.values, file.label)
    _check_target(target, file.label, config.vocab_size, config.hidden_size)
    return Draft(
        "early_exit",
        _head_name(file),
        (
            *weight_terms(
                _LABEL, _shapes(lambda: ExitModule(config)), _choice(file, options), 1, 1
            ),
            *_vocabulary_tables(config.draft_vocab_size, config.vocab_size),
        ),
        num_logits=config.draft_vocab_size,
        notes=(_SHARES,),
    )


def _choice(file: ConfigFile, options: PlanOptions) -> Choice:
    stored = Stored(file.label, dtype=stated_dtype(file.values))
    return choose(stored, options.dtype_of_draft, options.group_size)


def _shapes(build: Callable[[], Module]) -> dict[str, Shape]:
    """Shapes of a head's tensors, without memory for them. build: makes the head."""
    import torch

    with torch.device("meta"):
        module = build()
    return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}


def _vocabulary_tables(num_draft: int, num_target: int) -> list[Term]:
    """The target id of every draft token, and which target tokens can be drafted."""
    if num_draft == num_target:
        return []
    return [
        replicated(
            WEIGHTS,
            f"{_LABEL}: vocabulary tables",
            f"{num_draft:,} × {_ID_BYTES} B + {num_target:,} × {_FLAG_BYTES} B",
            num_draft * _ID_BYTES + num_target * _FLAG_BYTES,
        )
    ]


def _borrows_head(file: ConfigFile) -> bool:
    binding = read_binding(file.values, file.label)
    return binding is not None and binding.lm_head == TARGET


def _borrowed(file: ConfigFile) -> str:
    head = "rows of the target's, copied" if _borrows_head(file) else "its own"
    return (
        f"The head reads the target's embedding; its output head is {head}. Its cache and the "
        "features that wait are counted at four bytes a number, as the engine plans them."
    )


def _check_target(target: ModelSource, name: str, vocab_size: int, hidden_size: int) -> None:
    for what, ours, theirs in (
        ("vocabulary rows", vocab_size, target.config.vocab_size),
        ("hidden channels", hidden_size, target.config.hidden_size),
    ):
        if ours != theirs:
            raise ModelError(
                f"{name} is made for a target with {ours} {what}, and {target.name} has {theirs}"
            )


def _head_name(file: ConfigFile) -> str:
    path = Path(file.label)
    return path.parent.name if path.name == CONFIG else path.name


def default_num_tokens(method: str) -> int:
    """Draft tokens of a step where nothing is said, as the method's own options have it."""
    from outpace.drafters import options_of

    if method == "none":
        return 0
    defaults = {item.name: item.default for item in fields(options_of(method))}
    count = defaults["num_speculative_tokens"]
    assert isinstance(count, int)
    return count
