"""Keys and values, and what the drafting methods keep: by hand, from real files, by the engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from heads import random_exit, random_medusa
from model_files import write_hf
from plan_cases import QWEN_1_5B, QWEN_32B, planner, sizes, written
from safetensors import safe_open

from outpace.drafters import drafter_class, make_options
from outpace.errors import ModelError, OptionError
from outpace.heads.bundled import DRAFTS
from outpace.measure.plan.options import PlanOptions
from outpace.models.load import LoadedModel, load_model

DEFAULT_MODEL = "smollm2-135m"
BUNDLED = DRAFTS / "smollm2-135m-eagle3"
KEYS_AND_VALUES = "target: keys and values"
GB = 1e9


def stored_bytes(directory: Path) -> int:
    """Bytes of all tensors of a draft's file."""
    with safe_open(directory / "model.safetensors", "pt") as file:
        return sum(file.get_tensor(name).nbytes for name in file.keys())  # noqa: SIM118


def draft_weights(found: dict[str, int]) -> int:
    """Bytes of what a draft has of its own and keeps for all sequences together."""
    of_sequences = ("keys and values", "features", "distributions", "activations")
    return sum(
        size
        for name, size in found.items()
        if name.startswith("draft: ") and not any(part in name for part in of_sequences)
    )


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hf(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def loaded(tiny: Path) -> LoadedModel:
    return load_model(tiny, dtype="float32", device="cpu", model_impl="torch")


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({}, 2),
        ({"dtype": "float32"}, 4),
        ({"dtype": "q4_0"}, 2),
        ({"dtype": "bfloat16", "kv_dtype": "float32"}, 4),
        ({"dtype": "float32", "kv_dtype": "float16"}, 2),
    ],
)
def test_by_hand(tiny: Path, options: dict[str, str], size: int) -> None:
    """2 x 2 layers x 2 KV heads x 16 x 256 slots (100 tokens, in whole blocks) x batch 3."""
    found = sizes(planner(str(tiny), batch=3, context=100, **options))
    assert found[KEYS_AND_VALUES] == 2 * 2 * 2 * 16 * 256 * 3 * size


def test_the_same_as_the_engine_reserves(tiny: Path, loaded: LoadedModel) -> None:
    found = sizes(planner(str(tiny), dtype="float32", batch=3, context=100))
    assert found[KEYS_AND_VALUES] == loaded.kv_bytes(num_rows=3, num_tokens=100)


@pytest.mark.model
def test_the_default_model(default_model: Callable[..., LoadedModel]) -> None:
    model = default_model()
    found = sizes(planner(DEFAULT_MODEL, batch=2, context=8192))
    assert found[KEYS_AND_VALUES] == model.kv_bytes(num_rows=2, num_tokens=8192)
    assert found[KEYS_AND_VALUES] == 2 * 8192 * 23_040  # "23 kB a token"


@pytest.mark.model
@pytest.mark.parametrize("context", [100, 8192])
def test_the_bundled_head(default_model: Callable[..., LoadedModel], context: int) -> None:
    found = sizes(planner(DEFAULT_MODEL, method="eagle3", context=context, batch=3))
    drafter = drafter_class("eagle3")
    engine = drafter.row_bytes(make_options(drafter, {}), default_model(), context)
    assert found["draft: keys and values"] + found["draft: features that wait"] == 3 * engine
    # The file leaves out the output head: its rows are the target's, and copied when it is opened.
    assert draft_weights(found) == stored_bytes(BUNDLED) + 12_288 * 576 * 2
    assert found["draft: distributions"] == 3 * 3 * 12_288 * 4
    given = sizes(planner(DEFAULT_MODEL, str(BUNDLED), context=context, batch=3))
    assert given == found
    by_default = sizes(planner(DEFAULT_MODEL, method="auto", context=context, batch=3))
    assert draft_weights(by_default) == draft_weights(found)
    assert planner(DEFAULT_MODEL, str(BUNDLED), "auto").num_tokens == 16
    assert planner(DEFAULT_MODEL, str(BUNDLED)).num_tokens == 3


def test_medusa_heads(tiny: Path, loaded: LoadedModel, tmp_path: Path) -> None:
    directory = random_medusa(loaded, tmp_path / "heads", draft_vocab_size=50)
    asked = planner(str(tiny), str(directory), batch=2, num_speculative_tokens=3)
    found = sizes(asked)
    # The file has no mask of the target's vocabulary, which others have; it is 264 bytes.
    assert draft_weights(found) == stored_bytes(directory) + 264
    assert found["draft: distributions"] == 3 * 2 * 50 * 4
    assert "draft: keys and values" not in found
    assert any("no cache" in note for note in asked.plan().notes)


def test_a_trained_exit_and_one_without_training(
    tiny: Path, loaded: LoadedModel, tmp_path: Path
) -> None:
    directory = random_exit(loaded, tmp_path / "exit", draft_vocab_size=50, rank=8)
    found = sizes(planner(str(tiny), str(directory)))
    assert draft_weights(found) == stored_bytes(directory)
    shared = planner(str(tiny), method="early_exit")
    assert draft_weights(sizes(shared)) == 0
    assert "draft: keys and values" not in sizes(shared)
    assert any("target's own layers" in note for note in shared.plan().notes)


@pytest.mark.parametrize("method", ["ngram", "suffix", "recycling", "lookahead", "none"])
def test_methods_without_a_draft(tiny: Path, method: str) -> None:
    found = sizes(planner(str(tiny), method=method, num_speculative_tokens=4))
    assert not any(name.startswith("draft") for name in found)
    assert found["logits to verify"] == 5 * 264 * 4


def test_a_draft_model_has_weights_a_cache_and_passes(tiny: Path, tmp_path: Path) -> None:
    draft = written(tmp_path / "draft", num_hidden_layers=1, max_position_embeddings=64)
    found = sizes(planner(str(tiny), draft, dtype="float16", batch=2, context=128))
    assert found["draft: matrices"] == 30_720 * 2
    assert found["draft: keys and values"] == 2 * 1 * 2 * 16 * 256 * 2 * 2
    # 512 tokens x (residual and normed input 2 x 64, MLP 3 x 96) in float32
    assert found["draft: activations"] == found["activations"] == 512 * (128 + 288) * 4
    packed = sizes(planner(str(tiny), draft, dtype="q4_0"))
    assert packed["draft: matrices"] == 30_720 * 2
    told = sizes(planner(str(tiny), draft, dtype="q4_0", draft_dtype="q4_0"))
    assert told["draft: matrices"] == 30_720 // 32 * 18


def test_windows_are_counted_whole_and_said(tmp_path: Path) -> None:
    sizes_of_heads = {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}
    name = written(tmp_path / "m", **sizes_of_heads, sliding_window=16)
    asked = planner(name, context=128)
    assert sizes(asked)[KEYS_AND_VALUES] == 2 * 2 * 2 * 16 * 256 * 2
    assert any("2 of 2 layers see the last 16 tokens" in note for note in asked.plan().notes)


def test_the_example_in_circulation(tmp_path: Path) -> None:
    """docs/plan.md, "What an example in circulation gets wrong"."""
    target = written(tmp_path / "32b", QWEN_32B)
    draft = written(tmp_path / "1.5b", QWEN_1_5B)
    asked = planner(target, draft, dtype="awq", draft_dtype="awq", batch=16, context=4096)
    found = sizes(asked)
    draft_cache, cache = found["draft: keys and values"], found[KEYS_AND_VALUES]
    assert draft_cache == 2 * 28 * 2 * 128 * 4096 * 2 * 16 == 1_879_048_192
    assert cache == 2 * 64 * 8 * 128 * 4096 * 2 * 16 == 17_179_869_184
    assert round(draft_cache / GB, 2) == 1.88  # published: 0.37

    half = written(tmp_path / "half", QWEN_32B, num_hidden_layers=32)  # as published
    assumed = sizes(planner(half, batch=16, context=4096))[KEYS_AND_VALUES]
    weights = (32 + 1.5) * 0.5  # GB, as published
    assert round(weights + assumed / GB + 0.37, 1) == 25.7
    assert round(weights + cache / GB + draft_cache / GB, 1) == 35.8

    # Weights as they are: 4 bits, and for every 128 a scale and a zero; embeddings in 16 bits.
    layer = 2 * 5120**2 + 2 * 1024 * 5120 + 3 * 5120 * 27648
    matrices = 64 * layer // 2 + 64 * layer // 128 * 5 // 2
    assert found["target: matrices"] == matrices
    assert found["target: embedding"] == found["target: output head"] == 152064 * 5120 * 2
    target_weights = sum(
        found[f"target: {x}"] for x in ("matrices", "embedding", "output head", "norms and biases")
    )
    assert [round(x / GB, 1) for x in (target_weights, draft_weights(found))] == [19.3, 1.1]
    total = target_weights + draft_weights(found) + cache + draft_cache
    assert round(total / GB, 1) == 39.5


def test_drafts_that_do_not_go_with_the_request(
    tiny: Path, loaded: LoadedModel, tmp_path: Path
) -> None:
    name = str(tiny)
    with pytest.raises(OptionError, match="method 'ngram' takes no draft"):
        planner(name, name, "ngram")
    with pytest.raises(OptionError, match=r"method must be one of .*got 'magic'"):
        planner(name, method="magic")
    with pytest.raises(OptionError, match="needs a draft: give --draft"):
        planner(name, method="draft-model")
    with pytest.raises(ModelError, match=r"no 'eagle3' draft comes with this package.*--draft"):
        planner(name, method="eagle3")
    heads = random_medusa(loaded, tmp_path / "heads")
    with pytest.raises(OptionError, match=r"is a draft for method 'medusa', but .* 'eagle3'"):
        planner(name, str(heads), "eagle3")
    qwen = written(tmp_path / "qwen", QWEN_32B)
    with pytest.raises(ModelError, match=r"target with 49152 vocabulary rows, and .* has 152064"):
        planner(qwen, str(BUNDLED))
    other = written(tmp_path / "other", vocab_size=300)
    notes = planner(name, other).plan().notes
    assert any("300 rows of the draft, 264 of the target" in note for note in notes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": 0}, "batch must be at least 1, got 0"),
        ({"context": 0}, "context must be at least 1"),
        ({"tensor_parallel": 0}, "tensor_parallel must be at least 1"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens must be at least 1"),
        ({"num_speculative_tokens": -1}, "num_speculative_tokens must be at least 0"),
        ({"reserve_percent": 100}, "from 0 to below 100 percent"),
        ({"reserve_percent": float("nan")}, "from 0 to below 100 percent"),
        ({"dtype": "int3"}, "dtype must be one of"),
        ({"draft_dtype": "int3"}, "draft_dtype must be one of"),
        ({"kv_dtype": "fp8"}, "kv_dtype must be one of"),
        ({"group_size": 0}, "group_size must be positive, or -1"),
        ({"tensor_parallel": 4, "draft_tensor_parallel": 2}, "must be 1 or tensor_parallel"),
    ],
)
def test_options_that_cannot_be(options: dict[str, float], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        PlanOptions(**options)  # type: ignore[arg-type]
