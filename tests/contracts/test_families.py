"""Every family that a Hugging Face directory may hold, against transformers' own class.

Each case is a random model of odd shape, saved by transformers and read back as any checkpoint is.
Logits must agree for prompts, decoding, after rollback, in ragged batches and under a tree mask.
A model_type that is supported but has no case fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import pytest
import torch
from families import CASES, family_of, save_model
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from outpace.models.attention import Segment, padded_capacity
from outpace.models.checkpoint import Checkpoint
from outpace.models.config import LayerKind, ModelConfig, Rope
from outpace.models.decoder import Batch, Decoder
from outpace.models.hf.config import SUPPORTED
from outpace.models.open import open_checkpoint
from outpace.models.tensors import check_tensors

FLOAT32_BOUND, FLOAT64_BOUND = 5e-5, 1e-11
"""Greatest difference of two logits, in units of the largest logit."""


@dataclass
class Model:
    """One case: transformers' model, and the checkpoint that it was saved to."""

    oracle: PreTrainedModel
    checkpoint: Checkpoint

    @cached_property
    def decoder(self) -> Decoder:
        return self.decoder_of(self.checkpoint.config, torch.float32)

    def decoder_of(self, config: ModelConfig, dtype: torch.dtype) -> Decoder:
        return Decoder(config, self.checkpoint.load, dtype=dtype)

    def expected(self, tokens: list[int], **options: Any) -> Float[Tensor, "n vocab"]:
        with torch.no_grad():
            return self.oracle(torch.tensor([tokens]), use_cache=False, **options).logits[0]


def build(case: str, path: Path) -> Model:
    oracle = save_model(case, path)
    checkpoint = open_checkpoint(path)
    check_tensors(checkpoint)
    return Model(oracle, checkpoint)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Products this small lose more by being shared out than they gain."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=list(CASES))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return build(request.param, tmp_path_factory.mktemp("family"))


class Session:
    """A decoder and a cache of its own, fed by hand."""

    def __init__(self, decoder: Decoder, num_rows: int = 1) -> None:
        self.decoder = decoder
        self.cache = decoder.new_cache(num_rows=num_rows, capacity=padded_capacity(96))
        for _ in range(num_rows):
            self.cache.open()

    def feed(
        self, feeds: Mapping[int, list[int]], parents: tuple[int, ...] | None = None
    ) -> dict[int, Float[Tensor, "n vocab"]]:
        """Feed tokens to rows in one pass; logits after each of them, by row."""
        token_ids: list[int] = []
        segments = []
        for row, tokens in sorted(feeds.items()):
            segment = Segment(row, self.cache.length(row), len(tokens), parents)
            self.cache.append(row, tokens)
            token_ids += tokens
            segments.append(segment)
        batch = Batch(token_ids, range(len(token_ids)), segments)
        logits, _ = self.decoder.forward(batch, self.cache)
        parts = logits.split([segment.num_tokens for segment in segments])
        return {segment.row: part for segment, part in zip(segments, parts, strict=True)}

    def logits(self, tokens: list[int]) -> Float[Tensor, "n vocab"]:
        return self.feed({0: tokens})[0]


def tokens_of(seed: int, count: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, 67, (count,), generator=generator).tolist()


def difference(found: Float[Tensor, "n vocab"], expected: Float[Tensor, "n vocab"]) -> float:
    """Greatest difference, in units of the largest logit."""
    return ((found - expected).abs().max() / expected.abs().max()).item()


PROMPT = tokens_of(1, 40)

pytestmark = pytest.mark.usefixtures("unchecked_shapes_in_module")


def test_every_supported_model_type_has_a_case() -> None:
    assert {family_of(case) for case in CASES} == set(SUPPORTED)


def test_prompt(model: Model) -> None:
    found = Session(model.decoder).logits(PROMPT)
    assert difference(found, model.expected(PROMPT)) < FLOAT32_BOUND


def test_decoding(model: Model) -> None:
    session = Session(model.decoder)
    steps = [session.logits(PROMPT[:15])]
    steps += [session.logits([token]) for token in PROMPT[15:30]]
    # Several at once, as a verified draft is.
    steps.append(session.logits(PROMPT[30:36]))
    assert difference(torch.cat(steps), model.expected(PROMPT[:36])) < FLOAT32_BOUND


def test_after_rollback(model: Model) -> None:
    session = Session(model.decoder)
    session.logits(PROMPT[:20] + tokens_of(2, 12))
    session.cache.rollback(0, 17)
    found = session.logits(PROMPT[17:40])
    assert difference(found, model.expected(PROMPT)[17:]) < FLOAT32_BOUND


def test_ragged_batch(model: Model) -> None:
    texts = {row: tokens_of(10 + row, length) for row, length in enumerate((31, 4, 18))}
    session = Session(model.decoder, num_rows=3)
    found: dict[int, list[Tensor]] = {row: [] for row in texts}
    fed = dict.fromkeys(texts, 0)
    for chunks in ((7, 1, 13), (1, 2, 1), (14, 1, 1), (1, 0, 3), (8, 0, 0)):
        feeds = {}
        for row, count in enumerate(chunks):
            if count:
                feeds[row] = texts[row][fed[row] : fed[row] + count]
                fed[row] += count
        for row, logits in session.feed(feeds).items():
            found[row].append(logits)
    assert fed == {row: len(text) for row, text in texts.items()}
    for row, text in texts.items():
        assert difference(torch.cat(found[row]), model.expected(text)) < FLOAT32_BOUND


# A tree behind the prompt: two roots, of which the first has two branches.
PARENTS = (-1, 0, 0, 1, 3, 2, -1, 6, 7, 8)
NODES = tokens_of(3, len(PARENTS))
TREE_PROMPT = PROMPT[:14]


def path_to(node: int) -> list[int]:
    """Nodes from a root to this one."""
    path = [node]
    while PARENTS[path[0]] >= 0:
        path.insert(0, PARENTS[path[0]])
    return path


def tree_logits(decoder: Decoder) -> Float[Tensor, "nodes vocab"]:
    session = Session(decoder)
    session.logits(TREE_PROMPT)
    return session.feed({0: NODES}, PARENTS)[0]


def test_nodes_of_a_tree_see_their_own_path(model: Model) -> None:
    found = tree_logits(model.decoder)
    for leaf in set(range(len(PARENTS))) - set(PARENTS):
        path = path_to(leaf)
        expected = model.expected(TREE_PROMPT + [NODES[node] for node in path])
        assert difference(found[path], expected[len(TREE_PROMPT) :]) < FLOAT32_BOUND


def test_a_tree_in_one_pass_of_transformers(model: Model) -> None:
    config = model.oracle.config.get_text_config()
    start = len(TREE_PROMPT)
    positions = [*range(start), *(start + len(path_to(node)) - 1 for node in range(len(PARENTS)))]
    sees = torch.ones(len(positions), len(positions)).tril().bool()
    for node in range(len(PARENTS)):
        sees[start + node, start:] = False
        sees[start + node, [start + other for other in path_to(node)]] = True
    distance = torch.tensor(positions)[:, None] - torch.tensor(positions)
    windowed = sees & (distance < (getattr(config, "sliding_window", None) or 96))
    masks = {
        kind: torch.zeros(1, 1, *seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
        for kind, seen in (("full_attention", sees), ("sliding_attention", windowed))
    }
    by_kind = getattr(config, "layer_types", None) is not None
    expected = model.expected(
        TREE_PROMPT + NODES,
        attention_mask=masks if by_kind else masks["sliding_attention"],
        position_ids=torch.tensor([positions]),
    )
    assert difference(tree_logits(model.decoder), expected[start:]) < FLOAT32_BOUND


@contextmanager
def no_detour_through_float32(oracle: PreTrainedModel) -> Iterator[None]:
    """transformers takes norms and softmax in float32 whatever the model's type. Meanwhile float32
    means float64 to it, except in its rotary tables, whose angles are float32 in ours as well."""
    narrow, wide = (torch.float32, torch.Tensor.float), (torch.float64, torch.Tensor.double)

    def use(meaning: tuple[torch.dtype, Any]) -> None:
        torch.float32, torch.Tensor.float = meaning  # type: ignore[misc, method-assign]

    hooks = []
    for name, module in oracle.named_modules():
        if name.endswith("rotary_emb"):
            hooks.append(module.register_forward_pre_hook(lambda *_: use(narrow)))
            hooks.append(module.register_forward_hook(lambda *_: use(wide)))
    use(wide)
    try:
        yield
    finally:
        use(narrow)
        for hook in hooks:
            hook.remove()


def with_frequencies_of(oracle: PreTrainedModel, config: ModelConfig) -> ModelConfig:
    """The configuration with its frequencies rounded as transformers rounds them, to float32."""
    tables = [
        buffer.float() for name, buffer in oracle.named_buffers() if name.endswith("inv_freq")
    ]

    def rounded(rope: Rope) -> Rope:
        ours = torch.tensor(rope.frequencies)
        theirs = next(
            table
            for table in tables
            if table.shape == ours.shape and torch.allclose(table, ours, rtol=1e-5, atol=0)
        )
        return replace(rope, frequencies=tuple(theirs.tolist()))

    return replace(
        config,
        layers=tuple(
            kind if kind.rope is None else replace(kind, rope=rounded(kind.rope))
            for kind in config.layers
        ),
    )


def test_float64(model: Model) -> None:
    config = with_frequencies_of(model.oracle, model.checkpoint.config)
    session = Session(model.decoder_of(config, torch.float64))
    found = torch.cat([session.logits(PROMPT[:25]), session.logits(PROMPT[25:])])
    oracle = model.oracle.double()
    try:
        with no_detour_through_float32(oracle):
            expected = model.expected(PROMPT)
    finally:
        oracle.float()
    assert expected.dtype == torch.float64
    assert difference(found, expected) < FLOAT64_BOUND


def with_layers(config: ModelConfig, change: Callable[[LayerKind], LayerKind]) -> ModelConfig:
    return replace(config, layers=tuple(map(change, config.layers)))


def turned_by(config: ModelConfig, factor: float) -> ModelConfig:
    """Every frequency multiplied by `factor`."""

    def changed(kind: LayerKind) -> LayerKind:
        if kind.rope is None:
            return kind
        frequencies = tuple(factor * frequency for frequency in kind.rope.frequencies)
        return replace(kind, rope=replace(kind.rope, frequencies=frequencies))

    return with_layers(config, changed)


def windows_longer_by(config: ModelConfig, count: int) -> ModelConfig:
    return with_layers(
        config, lambda kind: replace(kind, window=kind.window and kind.window + count)
    )


def factors_dropped(config: ModelConfig) -> ModelConfig:
    return with_layers(
        config,
        lambda kind: replace(kind, rope=kind.rope and replace(kind.rope, attention_factor=1.0)),
    )


# What a configuration says, misread: the comparison above must notice each.
MISREAD: list[tuple[str, str, Callable[[ModelConfig], ModelConfig]]] = [
    ("mistral", "window + 1", lambda c: windows_longer_by(c, 1)),
    ("mistral", "window - 1", lambda c: windows_longer_by(c, -1)),
    ("gemma3_text", "window + 1", lambda c: windows_longer_by(c, 1)),
    ("smollm3 window", "window + 1", lambda c: windows_longer_by(c, 1)),
    ("qwen2 window", "windows in other layers", lambda c: replace(c, layers=c.layers[::-1])),
    ("gemma2", "kinds of layers swapped", lambda c: replace(c, layers=c.layers[::-1])),
    ("llama", "frequencies", lambda c: turned_by(c, 1.01)),
    ("llama llama3", "frequencies", lambda c: turned_by(c, 1.01)),
    ("gpt_neox", "frequencies", lambda c: turned_by(c, 1.01)),
    ("qwen2 window", "attention factor", factors_dropped),
    ("phi3 longrope", "attention factor", factors_dropped),
    ("smollm3", "rope in all", lambda c: replace(c, layers=(c.layers[0],) * len(c.layers))),
    (
        "gemma3_text",
        "one rope",
        lambda c: with_layers(c, lambda k: replace(k, rope=c.layers[0].rope)),
    ),
    (
        "stablelm",
        "fewer channels turn",
        lambda c: with_layers(
            c, lambda k: LayerKind(Rope(k.rope.frequencies[:-1])) if k.rope else k
        ),
    ),
    ("gemma", "norm offset", lambda c: replace(c, norm_offset=0.0)),
    ("gemma", "embedding scale", lambda c: replace(c, embedding_scale=1.0)),
    ("gemma2", "attention scale", lambda c: replace(c, attention_scale=c.head_dim**-0.5)),
    ("gemma2", "attention softcap", lambda c: replace(c, attention_softcap=None)),
    ("gemma2", "final softcap", lambda c: replace(c, final_softcap=None)),
    ("gemma2", "block", lambda c: replace(c, block="pre")),
    ("gpt_neox", "block", lambda c: replace(c, block="pre")),
    ("gpt_neox sequential", "block", lambda c: replace(c, block="parallel")),
    ("gpt2", "activation", lambda c: replace(c, activation="gelu")),
    ("gpt_neox", "activation", lambda c: replace(c, activation="gelu_tanh")),
    ("gpt2", "norm", lambda c: replace(c, norm="rms")),
    ("gpt2", "positions", lambda c: replace(c, learned_positions=False)),
    ("gpt2 unscaled", "attention scale", lambda c: replace(c, attention_scale=c.head_dim**-0.5)),
    ("qwen2", "biases", lambda c: replace(c, qkv_bias=False)),
    ("qwen3", "norms of q and k", lambda c: replace(c, qk_norm=False)),
    ("llama biases", "biases", lambda c: replace(c, mlp_bias=False)),
    ("llama", "epsilon", lambda c: replace(c, norm_eps=1e-2)),
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Model]:
    return cache(lambda case: build(case, tmp_path_factory.mktemp("family")))


@pytest.mark.parametrize(
    ("case", "what", "change"), MISREAD, ids=lambda value: value if isinstance(value, str) else ""
)
def test_what_is_misread_is_noticed(
    models: Callable[[str], Model],
    case: str,
    what: str,
    change: Callable[[ModelConfig], ModelConfig],
) -> None:
    model = models(case)
    decoder = model.decoder_of(change(model.checkpoint.config), torch.float32)
    found = Session(decoder).logits(PROMPT)
    assert difference(found, model.expected(PROMPT)) > 2 * FLOAT32_BOUND, what
