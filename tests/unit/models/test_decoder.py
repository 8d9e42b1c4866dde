"""The decoder against transformers' Llama, and against itself however the work is split.

What other families add is tested in test_decoder_features.py.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from oracles import llama_oracle
from safetensors.torch import save_file
from tiny import (
    fresh_logits,
    layer_kind,
    new_runner,
    new_sequence,
    random_weights,
    tiny_config,
    tiny_model,
    tiny_tokenizer,
)
from transformers import LlamaForCausalLM

from outpace.models.load import LoadedModel, load_model
from outpace.types import Draft

# float32 sums of up to a few hundred terms, in another order, over three layers.
CLOSE = {"rtol": 1e-4, "atol": 1e-4}
EXACT = {"rtol": 1e-10, "atol": 1e-10}

VARIANTS: dict[str, dict[str, Any]] = {
    "one key/value head per head": {"num_heads": 4, "num_kv_heads": 4},
    "two heads share": {"num_heads": 4, "num_kv_heads": 2},
    "three heads share": {"num_heads": 6, "num_kv_heads": 2, "hidden_size": 48},
    "one key/value head": {"num_heads": 4, "num_kv_heads": 1},
    "tied": {"tie_word_embeddings": True},
    "attention biases": {"qkv_bias": True, "o_bias": True},
    "mlp biases": {"mlp_bias": True},
    "all biases, tied": {
        "qkv_bias": True,
        "o_bias": True,
        "mlp_bias": True,
        "tie_word_embeddings": True,
    },
    "wide heads": {"head_dim": 16},
    "narrow heads": {"head_dim": 4},
    "other constants": {"layers": (layer_kind(theta=100.0),) * 2, "norm_eps": 1e-2},
    "three layers": {"num_layers": 3},
}


def write_variant(folder: Path, changes: dict[str, Any]) -> LlamaForCausalLM:
    """A random transformers model, saved with a tokenizer; returns it in float32."""
    config = tiny_config(**changes)
    rope = config.layers[0].rope
    assert rope is not None
    # The second of the frequencies theta^(-2i/dim).
    rope_theta = rope.frequencies[1] ** (-rope.dim / 2)
    weights = {name: value.float() for name, value in random_weights(config, seed=5).items()}
    reference = llama_oracle(config, weights, rope_theta=rope_theta)
    reference.save_pretrained(folder)
    tiny_tokenizer(config.vocab_size)._backend.save(str(folder / "tokenizer.json"))
    return reference


@pytest.fixture(scope="module", params=VARIANTS, ids=lambda name: name.replace(" ", "-"))
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[LoadedModel, LlamaForCausalLM]:
    folder = tmp_path_factory.mktemp("variant")
    reference = write_variant(folder, VARIANTS[request.param])
    return load_model(folder, dtype="float32", device="cpu"), reference


def random_tokens(count: int, seed: int = 0, vocab_size: int = 96) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(vocab_size) for _ in range(count)]


@torch.inference_mode()
def reference_logits(reference: Any, tokens: list[int]) -> torch.Tensor:
    return reference(torch.tensor([tokens])).logits[0].float()


class TestParity:
    def test_every_position_of_a_prompt(self, pair):
        model, reference = pair
        tokens = random_tokens(30)
        runner = new_runner(model)
        seq = new_sequence(tokens[:1])
        runner.open(seq)
        logits = runner.extend([seq], [Draft(tuple(tokens[1:]))]).logits
        assert logits.dtype == torch.float32
        torch.testing.assert_close(logits, reference_logits(reference, tokens), **CLOSE)

    def test_single_tokens_blocks_and_rollback(self, pair):
        model, reference = pair
        tokens = random_tokens(60, seed=1)
        expected = reference_logits(reference, tokens)
        runner = new_runner(model)
        seq = new_sequence(tokens[:10])
        runner.open(seq)
        for num_right, num_wrong in [(0, 0), (0, 3), (4, 0), (1, 2), (0, 0), (7, 1), (0, 0)]:
            start = len(seq.tokens)
            right = tokens[start : start + num_right]
            wrong = [(t + 1) % 96 for t in tokens[start + num_right :][:num_wrong]]
            logits = runner.extend([seq], [Draft((*right, *wrong))]).logits
            torch.testing.assert_close(
                logits[: num_right + 1], expected[start - 1 : start + num_right], **CLOSE
            )
            seq.tokens.extend(tokens[start : start + num_right + 1])
            runner.commit([seq])

    def test_ragged_batches(self, pair):
        model, reference = pair
        prompts = [random_tokens(n, seed=n) for n in (3, 40, 11)]
        drafts = [random_tokens(n, seed=n + 50) for n in (4, 0, 2)]
        runner = new_runner(model, num_rows=3)
        seqs = [new_sequence(prompt, i) for i, prompt in enumerate(prompts)]
        for seq in seqs:
            runner.open(seq)
        runner.extend(seqs, max_feed=[1, 25, 6])
        scores = runner.extend(seqs, [Draft(tuple(draft)) for draft in drafts])
        for prompt, draft, rows in zip(prompts, drafts, scores.rows, strict=True):
            expected = reference_logits(reference, prompt + draft)[len(prompt) - 1 :]
            torch.testing.assert_close(scores.logits[rows], expected, **CLOSE)

    @torch.inference_mode()
    def test_captured_states(self, pair):
        model, reference = pair
        tokens = random_tokens(12, seed=3)
        num_layers = model.config.num_hidden_layers
        states = reference(torch.tensor([tokens]), output_hidden_states=True).hidden_states
        runner = new_runner(model)
        seq = new_sequence(tokens)
        runner.open(seq)
        hidden = runner.extend([seq], capture=list(range(num_layers + 1))).hidden
        assert sorted(hidden) == list(range(num_layers + 1))
        for layer in range(num_layers):
            torch.testing.assert_close(hidden[layer], states[layer][0], **CLOSE)
        # transformers reports the last state after the final norm.
        normed = reference.model.norm(hidden[num_layers])
        torch.testing.assert_close(normed, states[num_layers][0], **CLOSE)


def test_parity_would_notice_one_wrong_weight(tmp_path):
    """Negative control: the tolerance is narrow enough to tell models apart."""
    reference = write_variant(tmp_path, {})
    with torch.no_grad():
        reference.model.layers[1].self_attn.k_proj.weight[3, 7] += 0.05
    tokens = random_tokens(30)
    model = load_model(tmp_path, dtype="float32", device="cpu")
    runner = new_runner(model)
    seq = new_sequence(tokens)
    runner.open(seq)
    error = runner.extend([seq]).logits[0] - reference_logits(reference, tokens)[-1]
    assert error.abs().max() > 5e-4


class TestSplitting:
    """In float64, the row-invariant mode, how a text was split into passes must not matter."""

    TOKENS = random_tokens(75, seed=9)

    def logits_in_chunks(self, model: LoadedModel, sizes: list[int]) -> torch.Tensor:
        runner = new_runner(model)
        seq = new_sequence(self.TOKENS[:1])
        runner.open(seq)
        pieces, step = [], 0
        while len(seq.tokens) <= len(self.TOKENS):
            size = sizes[step % len(sizes)]
            start = len(seq.tokens)
            draft = self.TOKENS[start : start + size - 1]
            pieces.append(runner.extend([seq], [Draft(tuple(draft))]).logits)
            seq.tokens.extend(self.TOKENS[start : start + size])
            if start + len(draft) >= len(self.TOKENS):
                break
            step += 1
        logits = torch.cat(pieces)
        assert len(logits) == len(self.TOKENS)
        return logits

    @pytest.mark.parametrize("kv_heads", [1, 2, 4])
    def test_chunk_sizes(self, kv_heads):
        model = tiny_model(seed=4, num_kv_heads=kv_heads, max_len=128)
        expected = self.logits_in_chunks(model, [1])
        assert expected.dtype == torch.float64
        for sizes in ([2], [5], [8], [13], [75], [1, 4, 2, 7]):
            logits = self.logits_in_chunks(model, sizes)
            torch.testing.assert_close(logits, expected, **EXACT)
            assert torch.equal(logits.argmax(-1), expected.argmax(-1))

    @pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-3), ("bfloat16", 1.0)])
    def test_lower_precision_stays_close_to_float64(self, dtype, tolerance):
        expected = self.logits_in_chunks(tiny_model(seed=4, max_len=128), [5])
        logits = self.logits_in_chunks(tiny_model(seed=4, max_len=128, dtype=dtype), [5])
        assert logits.dtype == torch.float32
        assert (logits.double() - expected).abs().max() < tolerance

    def test_the_text_matters(self):
        """Negative control: exact equality is not the rule between different texts."""
        model = tiny_model(seed=4, max_len=128)
        expected = self.logits_in_chunks(model, [5])
        changed = TestSplitting()
        changed.TOKENS = [*self.TOKENS[:3], 1, *self.TOKENS[4:]]
        logits = changed.logits_in_chunks(model, [5])
        assert torch.equal(logits[:3].argmax(-1), expected[:3].argmax(-1))
        assert not torch.allclose(logits[-1], expected[-1], **EXACT)


class TestShapes:
    def test_padding_rows_of_the_vocabulary_get_no_logit(self):
        padded = tiny_model(vocab_size=270, max_len=32)
        runner = new_runner(padded)
        seq = new_sequence([1, 2])
        runner.open(seq)
        assert runner.extend([seq]).logits.shape == (1, 258)

    def test_untied_head_is_its_own(self, tmp_path):
        config = tiny_config()
        weights = random_weights(config)
        weights["lm_head.weight"] = torch.zeros_like(weights["lm_head.weight"])
        write_variant(tmp_path, {})
        save_file({name: w.float() for name, w in weights.items()}, tmp_path / "model.safetensors")
        runner = new_runner(load_model(tmp_path, dtype="float32", device="cpu"))
        seq = new_sequence([1, 2])
        runner.open(seq)
        assert not runner.extend([seq]).logits.any()

    def test_a_model_that_claims_any_number_of_positions_takes_no_memory_for_them(self):
        model = tiny_model(max_len=2**31 - 1)
        (rotation,) = model.decoder._rotations
        tokens = [5, 6, 7, 8, 9]
        assert len(rotation) == 0
        expected = fresh_logits(tiny_model(max_len=64), tokens)
        assert torch.equal(fresh_logits(model, tokens), expected)
        assert 0 < len(rotation) <= 256

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_growing_rotation_tables_keep_every_bit(self, dtype):
        model, whole = (tiny_model(dtype=dtype, max_len=600, head_dim=16) for _ in range(2))
        whole.decoder.new_cache(num_rows=1, capacity=600)
        (rotation,), (complete,) = model.decoder._rotations, whole.decoder._rotations
        lengths = []
        for capacity in (1, 7, 250, 64, 513, 4096):
            model.decoder.new_cache(num_rows=1, capacity=capacity)
            lengths.append(len(rotation))
            positions = torch.arange(len(rotation))
            for table, other in zip(rotation(positions), complete(positions), strict=True):
                assert torch.equal(table, other)
        assert lengths == [1, 7, 250, 250, 513, 600]

    def test_one_table_for_each_distinct_rotation(self):
        far, near = layer_kind(theta=1e6), layer_kind(theta=1e4)
        layers = (near, far, near, layer_kind(theta=None), replace(far, window=4))
        assert len(tiny_model(layers=layers).decoder._rotations) == 2

    def test_loading_reports_every_layer(self):
        from outpace.models.decoder import Decoder

        seen: list[tuple[int, int]] = []
        config = tiny_config(num_layers=3)
        Decoder(
            config,
            random_weights(config).__getitem__,
            dtype=torch.float32,
            on_layer=lambda done, total: seen.append((done, total)),
        )
        assert seen == [(1, 3), (2, 3), (3, 3)]


@pytest.fixture(scope="module")
def model(default_model: Any) -> LoadedModel:
    return default_model("float32", "torch")


@pytest.fixture(scope="module")
def token_ids(model: LoadedModel, prompts: Any) -> list[list[int]]:
    every = max(1, len(prompts) // 4)
    return [model.tokenizer.encode(prompt.text)[:200] for prompt in prompts[::every][:4]]


@pytest.mark.model
@pytest.mark.usefixtures("unchecked_shapes")
class TestDefaultModel:
    def test_logits_equal_those_of_transformers(self, model, default_oracle, token_ids):
        for ids in token_ids:
            runner = new_runner(model, num_tokens=len(ids))
            seq = new_sequence(ids[:1])
            runner.open(seq)
            logits = runner.extend([seq], [Draft(tuple(ids[1:]))]).logits
            expected = reference_logits(default_oracle, ids)[:, : logits.shape[1]]
            assert (logits - expected).abs().max() < 1e-3

    @torch.inference_mode()
    def test_greedy_tokens_equal_those_of_transformers(self, model, default_oracle, token_ids):
        ids = token_ids[0]
        expected = default_oracle.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.int64),
            max_new_tokens=32,
            min_new_tokens=32,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )[0, len(ids) :].tolist()
        runner = new_runner(model, num_tokens=len(ids) + 32)
        seq = new_sequence(ids)
        runner.open(seq)
        while seq.num_output < 32:
            seq.tokens.append(int(runner.extend([seq]).logits[-1].argmax()))
        assert seq.tokens[len(ids) :] == expected

    @pytest.mark.slow
    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_passes_of_several_rows_agree_with_passes_of_one(self, dtype, token_ids, default_model):
        """Prints which block sizes agree bit for bit on this machine; demands agreement up to
        rounding, because the kernels of other CPUs may sum in another order."""
        model = default_model(dtype, "torch")
        text = [token for ids in token_ids for token in ids]
        ids = (text * (500 // len(text) + 1))[:500]
        for start in (40, 230, 378, 440):
            wanted = _continued(model, ids, start, 1)
            report = []
            for size in (2, 3, 5, 8, 11, 12, 22, 24):
                got = _continued(model, ids, start, size)
                assert (got - wanted).abs().max() < (1e-3 if dtype == "float32" else 1.0)
                report.append(f"{size}: {'equal' if torch.equal(got, wanted) else 'close'}")
            print(f"{dtype}, context {start}: {', '.join(report)}")


def _continued(model: LoadedModel, ids: list[int], start: int, size: int) -> torch.Tensor:
    """Logits of the 24 tokens from `start` on, fed `size` at a time after one prompt pass."""
    runner = new_runner(model, num_tokens=512)
    seq = new_sequence(ids[:start])
    runner.open(seq)
    runner.extend([seq])
    pieces = []
    for first in range(start, start + 24, size):
        last = min(first + size, start + 24)
        seq.tokens = ids[: first + 1]
        pieces.append(runner.extend([seq], [Draft(tuple(ids[first + 1 : last]))]).logits)
    return torch.cat(pieces)
