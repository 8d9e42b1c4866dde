"""From models and options to memory: terms, whether they fit, and the most that would."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outpace.errors import OptionError
from outpace.measure.plan.caches import CacheShape
from outpace.measure.plan.devices import Device
from outpace.measure.plan.drafts import Draft, default_num_tokens
from outpace.measure.plan.formats import PACKED, choose
from outpace.measure.plan.options import PlanOptions
from outpace.measure.plan.sharding import ceil_div, check_split, device_kv_heads
from outpace.measure.plan.source import ModelSource
from outpace.measure.plan.terms import CACHES, FLOAT_BYTES, WORKSPACE, Term, replicated
from outpace.measure.plan.weights import weight_terms
from outpace.models.config import ModelConfig
from outpace.models.tensors import expected_shapes

_MAX_BATCH = 2**31


@dataclass(frozen=True, slots=True)
class DeviceFit:
    """Whether a device holds its share. usable_bytes: of it, after the reserve."""

    device: Device
    usable_bytes: int
    needed_bytes: int

    @property
    def fits(self) -> bool:
        return self.needed_bytes <= self.usable_bytes


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer.

    terms: everything counted, for one copy of the model. devices: in the order given. num_copies:
    of the model, each with `batch` sequences, where there are more devices than one copy needs.
    largest_batch: most sequences of `context` tokens; largest_context: most tokens of `batch`
    sequences; 0 where not even one fits. context_limit: what the model was made for.
    """

    batch: int
    context: int
    context_limit: int
    num_speculative_tokens: int
    num_copies: int
    terms: tuple[Term, ...]
    devices: tuple[DeviceFit, ...]
    largest_batch: int
    largest_context: int
    notes: tuple[str, ...]

    @property
    def fits(self) -> bool:
        return all(device.fits for device in self.devices)

    @property
    def num_bytes(self) -> int:
        """Of one copy, replicated parts counted once."""
        return sum(term.num_bytes for term in self.terms)

    @property
    def device_bytes(self) -> int:
        """Of the device with the largest share."""
        return sum(term.device_bytes for term in self.terms)


class Planner:
    """Counts what a target and its draft need for any batch and context.

    Raises OptionError where the model cannot be split as asked, the context is beyond what it was
    made for, or the devices make no whole copies.
    """

    def __init__(
        self,
        target: ModelSource,
        draft: Draft,
        options: PlanOptions,
        devices: Sequence[Device],
    ) -> None:
        self._target, self._draft = target, draft
        self._options, self._devices = options, devices
        config, n = target.config, options.tensor_parallel
        if len(devices) % n:
            raise OptionError(
                f"{len(devices)} devices make no whole groups of tensor_parallel={n}; give a "
                "multiple of it"
            )
        check_split(config, n, target.name)
        self._limit = config.max_position_embeddings
        self.context = _context(options.context, self._limit, target.name)
        stated = options.num_speculative_tokens
        self.num_tokens = default_num_tokens(draft.method) if stated is None else stated
        choice = choose(target.stored, options.dtype, options.group_size)
        shapes = expected_shapes(config)
        self._weights = [
            *weight_terms("target", shapes, choice, config.num_key_value_heads, n),
            *draft.weights,
        ]
        self._caches = [
            CacheShape(
                "target",
                config.num_hidden_layers,
                config.num_key_value_heads,
                config.head_dim,
                options.kv_item_bytes(options.dtype, target.stored.dtype),
                config.max_position_embeddings,
                n,
            ),
            *draft.caches,
        ]

    def terms(self, batch: int, context: int) -> list[Term]:
        """Everything that is counted, for `batch` sequences of up to `context` tokens."""
        caches = [cache.term(batch, context) for cache in self._caches]
        return [*self._weights, *caches, *self._features(batch, context), *self._workspace(batch)]

    def device_bytes(self, batch: int, context: int) -> int:
        """Bytes on the device with the largest share."""
        return sum(term.device_bytes for term in self.terms(batch, context))

    def plan(self) -> Plan:
        """The answer for the options' batch and context."""
        options, context = self._options, self.context
        terms = self.terms(options.batch, context)
        needed = sum(term.device_bytes for term in terms)
        usable = [device.usable_bytes(options.reserve_percent) for device in self._devices]
        least = min(usable)
        return Plan(
            batch=options.batch,
            context=context,
            context_limit=self._limit,
            num_speculative_tokens=self.num_tokens,
            num_copies=len(self._devices) // options.tensor_parallel,
            terms=tuple(terms),
            devices=tuple(
                DeviceFit(device, room, needed)
                for device, room in zip(self._devices, usable, strict=True)
            ),
            largest_batch=_largest(lambda b: self.device_bytes(b, context) <= least, _MAX_BATCH),
            largest_context=_largest(
                lambda tokens: self.device_bytes(options.batch, tokens) <= least, self._limit
            ),
            notes=tuple(self._notes()),
        )

    def _features(self, batch: int, context: int) -> list[Term]:
        from outpace.drafters.parts.eagle_rows import MOST_WAITING

        draft = self._draft
        if not draft.features:
            return []
        waiting = min(context, MOST_WAITING)
        tokens = f"{waiting:,} token{'s' if waiting > 1 else ''}"
        formula = f"{tokens} × {draft.features:,} × {FLOAT_BYTES} B × batch {batch:,}"
        num_bytes = waiting * draft.features * FLOAT_BYTES * batch
        return [replicated(CACHES, "draft: features that wait", formula, num_bytes)]

    def _workspace(self, batch: int) -> list[Term]:
        """Logits of the rows that verification reads, the draft's distributions, activations."""
        draft, k, vocab = self._draft, self.num_tokens, self._target.config.vocab_size
        terms = [
            replicated(
                WORKSPACE,
                "logits to verify",
                f"({k} + 1) rows × batch {batch:,} × {vocab:,} × {FLOAT_BYTES} B",
                (k + 1) * batch * vocab * FLOAT_BYTES,
            )
        ]
        if draft.num_logits and k:
            terms.append(
                replicated(
                    WORKSPACE,
                    "draft: distributions",
                    f"{k} tokens × batch {batch:,} × {draft.num_logits:,} × {FLOAT_BYTES} B",
                    k * batch * draft.num_logits * FLOAT_BYTES,
                )
            )
        rows = max(self._options.max_num_batched_tokens, (k + 1) * batch)
        n = self._options.tensor_parallel
        terms.append(_activations("activations", self._target.config, rows, n))
        if draft.config is not None:
            terms.append(_activations("draft: activations", draft.config, rows, draft.num_devices))
        return terms

    def _notes(self) -> list[str]:
        target, draft, options = self._target, self._draft, self._options
        notes = list(draft.notes)
        if target.config.tie_word_embeddings:
            notes.append("The embedding is the output head too, and counted once.")
        windows = [kind.window for kind in target.config.layers if kind.window is not None]
        if windows:
            notes.append(
                f"{len(windows)} of {len(target.config.layers)} layers see the last "
                f"{min(windows):,} tokens only. Outpace keeps whole rows all the same, so that "
                "rolling back loses nothing, and they are counted whole."
            )
        if options.tensor_parallel > 1:
            notes += _split_notes(target, draft, options)
        notes += _unpacking(target, options.dtype)
        return notes


def _split_notes(target: ModelSource, draft: Draft, options: PlanOptions) -> list[str]:
    n, kv_heads = options.tensor_parallel, target.config.num_key_value_heads
    notes = []
    if kv_heads < n:
        notes.append(
            f"The target has {kv_heads} key/value heads for {n} devices: each is held by "
            f"{n // kv_heads} of them."
        )
    if draft.weights and draft.num_devices == 1:
        notes.append(
            f"The draft is replicated: each of the {n} devices holds all of it (tensor-parallel "
            "size 1)."
        )
    elif draft.weights:
        notes.append(f"The draft is split over {draft.num_devices} devices like the target.")
    notes.append("Outpace runs a model on one device; shares are those of engines that split it.")
    return notes


def _unpacking(target: ModelSource, dtype: str) -> list[str]:
    """What this engine holds otherwise than it is stored, and so counted."""
    stored = target.stored
    if dtype in ("awq", "gptq") or (dtype == "auto" and stored.scheme is not None):
        kind = "AWQ and GPTQ weights"
    elif dtype == "auto" and any(
        kind not in PACKED.values() and kind[0] in "QI" for kind in stored.types.values()
    ):
        kind = "GGUF types other than Q4_0, Q4_1 and Q8_0"
    else:
        return []
    return [
        f"Counted as stored. Outpace itself unpacks {kind} when it loads them: plan for that with "
        "dtype bfloat16."
    ]


def _activations(name: str, config: ModelConfig, rows: int, num_devices: int) -> Term:
    """The larger of what attention and MLP of one layer hold at a time, beside the residual stream
    and its norm; in float32, which is an upper bound for narrower ones."""
    query_heads = ceil_div(config.num_attention_heads, num_devices)
    kv_heads = device_kv_heads(config.num_key_value_heads, num_devices)
    inner = ceil_div(config.intermediate_size, num_devices)
    num_inner = 3 if config.gated_mlp else 2

    def wide(query: int, kv: int, channels: int) -> int:
        return max((2 * query + 2 * kv) * config.head_dim, num_inner * channels)

    whole = wide(config.num_attention_heads, config.num_key_value_heads, config.intermediate_size)
    per_token = 2 * config.hidden_size
    return Term(
        WORKSPACE,
        name,
        f"{rows:,} tokens × (2 × {config.hidden_size:,} + {whole:,}) × {FLOAT_BYTES} B",
        rows * (per_token + whole) * FLOAT_BYTES,
        rows * (per_token + wide(query_heads, kv_heads, inner)) * FLOAT_BYTES,
    )


def _context(asked: int | None, limit: int, name: str) -> int:
    if asked is None:
        from outpace.engine.setup import DEFAULT_MAX_MODEL_LEN

        return min(limit, DEFAULT_MAX_MODEL_LEN)
    if asked > limit:
        raise OptionError(f"context {asked} is beyond what {name} was made for ({limit} positions)")
    return asked


def _largest(fits: Callable[[int], bool], most: int) -> int:
    """The largest count up to `most` that fits, 0 if none does; what fits must do so for all
    smaller counts too."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
