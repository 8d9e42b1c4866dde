"""The native step: what it computes, and that its bits depend on the token's own past alone.

Values are compared with our decoder in torch, for every family in float32 and for every format.
Bits are compared with those of the same model fed one token at a time, on every instruction-set
path that this machine runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from eagle_heads import draft_vocabulary, head_config, head_weights
from families import CASES, save_model
from heads import random_medusa
from jaxtyping import Float
from native_models import (
    FORMATS,
    in_blocks,
    in_company,
    in_trees,
    loaded,
    odd_model,
    opened,
    random_tree,
    some_tokens,
    stored,
    usable_paths,
)
from plain import plain_llm
from tiny import feed
from torch import Tensor

from outpace import LLM, SamplingParams
from outpace.drafters import available_methods
from outpace.heads.native import NativeEagle
from outpace.heads.target_parts import TargetParts
from outpace.models.attention import padded_capacity
from outpace.models.checkpoint import Checkpoint
from outpace.models.decoder import Decoder
from outpace.models.native.decoder import NativeDecoder, native_decoder
from outpace.models.open import open_checkpoint

PATHS = usable_paths()

pytestmark = [
    pytest.mark.usefixtures("unchecked_shapes_in_module"),
    pytest.mark.skipif(not PATHS, reason="the native library is not built"),
]

FLOAT32_BOUND = 5e-5
"""Greatest difference of two logits, in units of the largest: sums in another order."""

paths = pytest.mark.parametrize("path", PATHS)
formats = pytest.mark.parametrize(("dtype", "activations"), FORMATS)


def difference(found: Float[Tensor, "n vocab"], expected: Float[Tensor, "n vocab"]) -> float:
    """Greatest difference, in units of the largest logit."""
    return ((found - expected).abs().max() / expected.abs().max()).item()


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Products this small lose more by being shared out than they gain."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@dataclass
class Family:
    """One checkpoint, run by torch and natively."""

    checkpoint: Checkpoint

    @cached_property
    def torch(self) -> Decoder:
        return Decoder(self.checkpoint.config, self.checkpoint.load, dtype=torch.float32)

    @cached_property
    def native(self) -> NativeDecoder:
        return self.on(PATHS[0])

    def on(self, path: str) -> NativeDecoder:
        return native_decoder(
            self.checkpoint.config, self.checkpoint, dtype="float32", path=path, threads=1
        )

    def expected(self, tokens: list[int]) -> Float[Tensor, "n vocab"]:
        return in_blocks(self.torch, tokens, [len(tokens)])


@pytest.fixture(scope="module", params=list(CASES))
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    path = tmp_path_factory.mktemp("family")
    save_model(request.param, path)
    return Family(open_checkpoint(path))


TEXT = some_tokens(48, seed=1, vocab_size=67)
PARENTS = [-1, 0, 0, 1, 3, 2, -1, 6, 7, 8]
NODES = some_tokens(len(PARENTS), seed=2, vocab_size=67)


class TestFamilies:
    """float32 against our decoder in torch, whose own values the tests of families check."""

    @paths
    def test_prompt(self, family: Family, path: str) -> None:
        found = in_blocks(family.on(path), TEXT, [len(TEXT)])
        assert found.dtype == torch.float32
        assert difference(found, family.expected(TEXT)) < FLOAT32_BOUND

    def test_decoding_and_rollback(self, family: Family) -> None:
        rows = opened(family.native)
        expected = family.expected(TEXT)
        found = [feed(family.native, rows, {0: TEXT[:20]})[0][0]]
        for wrong in (3, 0, 5):
            start = rows.length(0)
            block = TEXT[start : start + 4]
            logits = feed(family.native, rows, {0: block + NODES[:wrong]})[0][0]
            found.append(logits[: len(block)])
            rows.rollback(0, start + len(block))
        found += [feed(family.native, rows, {0: [token]})[0][0] for token in TEXT[32:]]
        assert difference(torch.cat(found), expected) < FLOAT32_BOUND

    def test_ragged_batch_and_captured_states(self, family: Family) -> None:
        texts = {row: some_tokens(row * 7 + 2, seed=row, vocab_size=67) for row in range(3)}
        layers = list(range(family.native.num_layers + 1))
        found, hidden = feed(family.native, opened(family.native, 3), texts, capture=layers)
        expected, states = feed(family.torch, opened(family.torch, 3), texts, capture=layers)
        for row in texts:
            assert difference(found[row], expected[row]) < FLOAT32_BOUND
        assert sorted(hidden) == layers
        for layer in layers:
            assert hidden[layer].shape == states[layer].shape
            assert difference(hidden[layer], states[layer]) < FLOAT32_BOUND

    def test_trees_and_what_is_kept_of_them(self, family: Family) -> None:
        results = []
        for decoder in (family.torch, family.native):
            rows = opened(decoder)
            feed(decoder, rows, {0: TEXT[:14]})
            tree = feed(decoder, rows, {0: NODES}, {0: PARENTS})[0][0]
            rows.keep(0, 14, [0, 1, 3])
            assert list(rows.token_ids(0)) == TEXT[:14] + [NODES[node] for node in (0, 1, 3)]
            results.append(torch.cat([tree, feed(decoder, rows, {0: TEXT[20:26]})[0][0]]))
        assert difference(results[1], results[0]) < FLOAT32_BOUND
        chain = TEXT[:14] + [NODES[node] for node in (0, 1, 3)] + TEXT[20:26]
        assert difference(results[1][len(NODES) :], family.expected(chain)[-6:]) < FLOAT32_BOUND

    def test_forked_rows_go_their_own_ways(self, family: Family) -> None:
        rows = family.native.new_cache(num_rows=2, capacity=padded_capacity(64))
        rows.open()
        feed(family.native, rows, {0: TEXT[:20]})
        assert rows.fork(0, 11) == 1
        texts = {0: TEXT[:20] + NODES[:3], 1: TEXT[:11] + NODES[3:6]}
        found = feed(family.native, rows, {0: NODES[:3], 1: NODES[3:6]})[0]
        for row, text in texts.items():
            assert list(rows.token_ids(row)) == text
            assert difference(found[row], family.expected(text)[-3:]) < FLOAT32_BOUND


# How far logits may be from those of float64 on the same weights: root mean square, in units of the
# logits' own. Twice to three times what is measured; our decoder in torch has 0.03 in bfloat16.
BOUNDS = {"float32": 1e-5, "bfloat16": 0.03, "int16": 5e-4, "int8": 0.12}


def error(found: Float[Tensor, "n vocab"], expected: Float[Tensor, "n vocab"]) -> float:
    return ((found - expected).norm() / expected.norm()).item()


@paths
@formats
@pytest.mark.parametrize("tied", [True, False])
def test_formats_compute_what_their_weights_say(
    dtype: str, activations: str, path: str, tied: bool
) -> None:
    """Against torch in float64 on the dequantised (or rounded) weights."""
    config, weights = stored(dtype, tied=tied)
    precision = torch.bfloat16 if dtype == "bfloat16" else torch.float32

    def rounded(name: str) -> Tensor:
        tensor = weights.load(name)
        return tensor.to(precision) if tensor.ndim == 2 else tensor

    exact = Decoder(config, rounded, dtype=torch.float64)
    native = odd_model(dtype, activations, tied=tied, path=path, kv_cache_dtype="float32")
    tokens = some_tokens(60, seed=3)
    found = in_blocks(native, tokens, [60]).double()
    bound = BOUNDS[dtype if activations == "auto" else activations]
    assert error(found, in_blocks(exact, tokens, [60])) < bound


@formats
def test_keys_and_values_in_bfloat16_stay_close(dtype: str, activations: str) -> None:
    tokens = some_tokens(60, seed=3)
    wide, narrow = (
        in_blocks(odd_model(dtype, activations, kv_cache_dtype=kind), tokens, [60])
        for kind in ("float32", "bfloat16")
    )
    assert 0 < error(narrow, wide) < 2 * BOUNDS["bfloat16"]


class TestBits:
    """A token's logits have the same bits however its text was fed."""

    TOKENS = some_tokens(70, seed=4)
    OTHERS = tuple(some_tokens(60, seed=5 + i) for i in range(4))

    @paths
    @formats
    def test_blocks_batches_threads_and_trees(
        self, dtype: str, activations: str, path: str
    ) -> None:
        one, two = (odd_model(dtype, activations, path=path, threads=n) for n in (1, 2))
        single = in_blocks(one, self.TOKENS, [1])
        for sizes in ([2], [3, 1], [5], [8], [13], [40], [70]):
            assert torch.equal(in_blocks(one, self.TOKENS, sizes), single), sizes
        for sizes in ([1], [1, 16, 2, 31]):
            assert torch.equal(in_blocks(two, self.TOKENS, sizes), single), sizes
        for decoder in (one, two):
            assert torch.equal(in_company(decoder, self.TOKENS, self.OTHERS), single)
        for seed, decoder in enumerate((one, two, one)):
            assert torch.equal(in_trees(decoder, self.TOKENS, seed), single), seed

    @pytest.mark.parametrize("kv_cache_dtype", ["float32", "bfloat16"])
    @paths
    def test_both_kinds_of_cache(self, kv_cache_dtype: str, path: str) -> None:
        for dtype in ("float32", "q8_0"):
            decoder = odd_model(dtype, path=path, kv_cache_dtype=kv_cache_dtype)
            single = in_blocks(decoder, self.TOKENS, [1])
            assert torch.equal(in_blocks(decoder, self.TOKENS, [17]), single)
            assert torch.equal(in_trees(decoder, self.TOKENS, 9), single)

    @paths
    @formats
    def test_the_check_would_see_one_changed_bit_of_the_past(
        self, dtype: str, activations: str, path: str
    ) -> None:
        """Negative control: two texts that differ in one old token, at the end of a window and in
        a forked row, differ in every later row and in no earlier one."""
        decoder = odd_model(dtype, activations, path=path)
        changed = [*self.TOKENS[:50], self.TOKENS[50] ^ 1, *self.TOKENS[51:]]
        a, b = (in_blocks(decoder, tokens, [7]) for tokens in (self.TOKENS, changed))
        assert torch.equal(a[:50], b[:50])
        assert all(not torch.equal(x, y) for x, y in zip(a[50:], b[50:], strict=True))

    def test_torch_does_not_pass_this_check(self) -> None:
        """Negative control: the comparison tells a step that sums in another order for other
        numbers of rows from one that does not."""
        config, weights = stored("float32")
        decoder = Decoder(config, weights.load, dtype=torch.float32)
        decoder._layers[0]._mlp._down = lambda x, residual: (
            residual + _summed_by_row_count(x, weights.load("model.layers.0.mlp.down_proj.weight"))
        )
        single = in_blocks(decoder, self.TOKENS, [1])
        assert not torch.equal(in_blocks(decoder, self.TOKENS, [8]), single)


def _summed_by_row_count(x: Tensor, weight: Tensor) -> Tensor:
    """x W^T, the inner dimension split in as many parts as there are rows."""
    parts = zip(x.chunk(len(x), 1), weight.chunk(len(x), 1), strict=True)
    return torch.stack([a @ b.T for a, b in parts]).sum(0)


class TestDrafting:
    """A whole greedy draft in one call is what one pass after the other would draft."""

    @paths
    @pytest.mark.parametrize(("dtype", "activations"), [FORMATS[0], FORMATS[1], FORMATS[-1]])
    def test_it_equals_drafting_step_by_step(self, path: str, dtype: str, activations: str) -> None:
        decoder = odd_model(dtype, activations, path=path)
        texts = [some_tokens(n, seed=n) for n in (3, 40, 1, 17)]
        counts = [5, 1, 8, 3]
        cached = [2, 30, 0, 0]
        rows = opened(decoder, len(texts))
        feed(decoder, rows, {row: texts[row][: cached[row]] for row in (0, 1)})
        pending = [text[c:] for text, c in zip(texts, cached, strict=True)]
        drafted = decoder.draft(rows, list(range(4)), cached, pending, counts)
        for row, (text, count) in enumerate(zip(texts, counts, strict=True)):
            expected, single = [], opened(decoder)
            logits = feed(decoder, single, {0: text})[0][0][-1]
            for _ in range(count):
                expected.append(int(logits.argmax()))
                logits = feed(decoder, single, {0: expected[-1:]})[0][0][-1]
            assert drafted[row] == expected
        # Keys and values of what was fed are those of ordinary passes.
        for row, tokens in enumerate(pending):
            rows.append(row, [*tokens, *drafted[row][:-1]])
        after = feed(decoder, rows, {row: [9] for row in range(4)})[0]
        for row, text in enumerate(texts):
            whole = [*text, *drafted[row][:-1], 9]
            assert torch.equal(after[row][-1], in_blocks(decoder, whole, [1])[-1])

    def test_ties_go_to_the_smaller_id(self) -> None:
        config, weights = stored("float32")
        weights = type(weights)({n: torch.zeros_like(w) for n, w in weights._weights.items()})
        decoder = native_decoder(config, weights, dtype="float32")
        assert decoder.draft(opened(decoder), [0], [0], [[5, 6]], [3]) == [[0, 0, 0]]


PROMPTS = [
    [5, 6, 7, 8, 5, 6, 7, 8, 5, 6],
    [9, 9, 9, 9, 9],
    [40],
    list(range(2, 60)),
    [11, 12, 13, 11, 12, 13, 11],
    [60, 61, 62] * 5,
    [17, 4],
    [33, 2, 8],
]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logprobs=1),
    SamplingParams(temperature=0, max_tokens=12, repetition_penalty=1.3, min_tokens=5),
    SamplingParams(temperature=0.9, top_p=0.9, seed=11, max_tokens=12, ignore_eos=True),
]


def answers(llm: LLM) -> list[Any]:
    """Token ids and log-probabilities, to the last bit, of all prompts under all parameters."""
    found = []
    for params in PARAMS:
        for output in llm.generate([{"prompt_token_ids": ids} for ids in PROMPTS], params):
            answer = output.outputs[0]
            reports = answer.logprobs or []
            chosen = [r[t].logprob for r, t in zip(reports, answer.token_ids, strict=bool(reports))]
            found.append((answer.token_ids, chosen, answer.finish_reason))
    return found


@pytest.mark.parametrize(("dtype", "activations"), [FORMATS[0], FORMATS[1], FORMATS[6]])
def test_every_drafter_gives_the_bits_of_plain_decoding(
    dtype: str, activations: str, tmp_path: Path
) -> None:
    target, other = odd_model(dtype, activations), odd_model(dtype, activations, seed=1)
    parts = TargetParts(loaded(target))
    heads = {name: head_config(name) for name in ("eagle3", "eagle")}
    configs: dict[str, dict[str, Any]] = {
        "draft_model": {"model": loaded(other, "other")},
        "medusa": {"model": random_medusa(parts.target, tmp_path / "medusa")},
        **{
            name: {"model": NativeEagle(c, head_weights(c), parts, draft_vocabulary(c))}
            for name, c in heads.items()
        },
    }
    with plain_llm(loaded(target), max_num_seqs=1) as llm:
        expected = answers(llm)
    for method in available_methods():
        config = {"method": method, "num_speculative_tokens": 4, **configs.get(method, {})}
        for batch in (1, 8):
            with LLM(loaded(target), speculative_config=config, max_num_seqs=batch) as llm:
                assert answers(llm) == expected, (method, batch)


def test_a_model_that_drafts_for_itself_is_always_right() -> None:
    """Greedy drafts come from the same bits as the target's choices."""
    target = loaded(odd_model("q4_1", "int8"))
    config = {"method": "draft_model", "model": target, "num_speculative_tokens": 4}
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    with LLM(target, speculative_config=config, max_num_seqs=8) as llm:
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in PROMPTS], params)
    assert all(output.stats.acceptance_rate == 1.0 for output in outputs)


def test_random_trees_are_trees() -> None:
    rng = np.random.default_rng(0)
    for length in (1, 4):
        ids, parents, nodes = random_tree(rng, list(range(100, 100 + length)))
        assert [ids[node] for node in nodes] == list(range(100, 100 + length))
        assert [parents[node] for node in nodes] == [-1, *nodes[:-1]]
        assert all(parent < i for i, parent in enumerate(parents))
