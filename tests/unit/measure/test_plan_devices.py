"""Sharing a model among devices, whether it fits, and the most that does."""

from __future__ import annotations

from pathlib import Path

import pytest
from plan_cases import planner, sizes, written

from outpace.errors import OptionError
from outpace.measure.plan.devices import Device, parse_devices, this_machine
from outpace.measure.plan.sharding import share


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    return written(tmp_path / "tiny")


def shared(name: str, num_devices: int, **options: object) -> dict[str, int]:
    asked = planner(name, tensor_parallel=num_devices, context=100, **options)
    return sizes(asked, on_device=True)


def test_two_devices(tiny: str) -> None:
    """Half of every matrix and of the embedding, one of two KV heads, all norms."""
    found = shared(tiny, 2)
    layer = 2 * 32 * 64 + 2 * 16 * 64 + 3 * 48 * 64
    assert found["target: matrices"] == 2 * layer * 2 == 61_440
    assert found["target: embedding"] == 132 * 64 * 2
    assert found["target: norms and biases"] == 320 * 2
    assert found["target: keys and values"] == 2 * 2 * 1 * 16 * 256 * 2
    # Logits are whole on each; of a pass residual and norm whole, the MLP's inside halved.
    assert found["logits to verify"] == 264 * 4
    assert found["activations"] == 512 * (2 * 64 + 3 * 48) * 4


def test_fewer_kv_heads_than_devices(tiny: str) -> None:
    """Four devices, two KV heads: each is held twice."""
    found = shared(tiny, 4)
    layer = 2 * 16 * 64 + 2 * 16 * 64 + 3 * 24 * 64
    assert found["target: matrices"] == 2 * layer * 2 == 34_816
    assert found["target: keys and values"] == shared(tiny, 2)["target: keys and values"]
    notes = planner(tiny, tensor_parallel=4).plan().notes
    assert any("2 key/value heads for 4 devices: each is held by 2" in note for note in notes)


def test_an_odd_vocabulary_is_rounded_up(tmp_path: Path) -> None:
    name = written(tmp_path / "m", vocab_size=265, tie_word_embeddings=False)
    found = shared(name, 2)
    assert found["target: embedding"] == found["target: output head"] == 133 * 64 * 2
    whole = sizes(planner(name, tensor_parallel=2))
    assert whole["target: embedding"] == 265 * 64 * 2


def test_groups_and_blocks_are_shared_whole(tiny: str) -> None:
    found = shared(tiny, 2, dtype="awq", group_size=32)["target: matrices"]
    # down: 48 of 96 inputs, which are 2 groups of 32 begun; o: 32 of 64.
    layer = 2 * (32 * 64 // 2 + 32 * 2 * 5 // 2) + 2 * (16 * 64 // 2 + 16 * 2 * 5 // 2)
    layer += 2 * (48 * 64 // 2 + 48 * 2 * 5 // 2) + 64 * 48 // 2 + 64 * 2 * 5 // 2
    assert found == 2 * layer


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("model.layers.0.self_attn.q_proj.bias", (64,), (16,)),
        ("model.layers.0.self_attn.k_proj.bias", (32,), (16,)),
        ("model.layers.0.self_attn.o_proj.bias", (64,), (64,)),
        ("model.layers.0.mlp.down_proj.weight", (64, 96), (64, 24)),
        ("model.layers.0.self_attn.q_norm.weight", (16,), (16,)),
        ("model.embed_positions.weight", (128, 64), (128, 64)),
        ("fc.weight", (64, 192), (64, 192)),
    ],
)
def test_shares(name: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    assert share(name, shape, 2, 4) == expected
    assert share(name, shape, 2, 1) == shape


def test_the_draft_is_replicated_unless_it_is_split(tiny: str) -> None:
    replicated = planner(tiny, tiny, tensor_parallel=2)
    split = planner(tiny, tiny, tensor_parallel=2, draft_tensor_parallel=2)
    assert sizes(replicated, on_device=True)["draft: matrices"] == 61_440 * 2
    found = sizes(split, on_device=True)
    for part in ("matrices", "embedding", "keys and values", "activations"):
        target = "activations" if part == "activations" else f"target: {part}"
        assert found[f"draft: {part}"] == found[target]
    assert any("replicated" in note for note in replicated.plan().notes)
    assert any("split over 2" in note for note in split.plan().notes)


@pytest.mark.parametrize(
    ("changes", "num_devices", "message"),
    [
        ({}, 3, "4 attention heads, which cannot be split evenly over 3"),
        ({"intermediate_size": 97}, 2, "97 channels inside the MLP"),
        (
            {"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 3},
            2,
            "3 key/value heads, which 2 devices can neither",
        ),
    ],
)
def test_what_cannot_be_split(
    tmp_path: Path, changes: dict[str, int], num_devices: int, message: str
) -> None:
    name = written(tmp_path / "m", **changes)
    with pytest.raises(OptionError, match=message):
        planner(name, tensor_parallel=num_devices)


def test_devices_make_whole_groups(tiny: str) -> None:
    with pytest.raises(OptionError, match="3 devices make no whole groups of tensor_parallel=2"):
        planner(tiny, devices="3x1GB", tensor_parallel=2)
    plan = planner(tiny, devices="4x1GB", tensor_parallel=2).plan()
    assert (plan.num_copies, len(plan.devices)) == (2, 4)


@pytest.mark.parametrize(
    ("text", "sizes_in_bytes"),
    [
        ("24GB", [24 * 10**9]),
        ("2x24GB", [24 * 10**9] * 2),
        ("80GiB", [80 * 2**30]),
        (" 2 x 1.5gb , 512MiB", [1_500_000_000] * 2 + [512 * 2**20]),
        ("1TB", [10**12]),
    ],
)
def test_device_strings(text: str, sizes_in_bytes: list[int]) -> None:
    assert [device.num_bytes for device in parse_devices(text)] == sizes_in_bytes


@pytest.mark.parametrize(
    "text", ["", "24", "24G", "GB", "0GB", "0x24GB", "-1x24GB", "2x", "24GB,", "1e3GB", "5000x1GB"]
)
def test_device_strings_that_say_nothing(text: str) -> None:
    with pytest.raises(OptionError, match=r"written like 24GB.*got"):
        parse_devices(text)


def test_this_machine() -> None:
    device = this_machine()
    assert device.num_bytes > 0
    assert "free memory" in device.name


def test_the_reserve() -> None:
    assert Device("x", 1000).usable_bytes(10.0) == 900
    assert Device("x", 1000).usable_bytes(0.0) == 1000


@pytest.mark.parametrize("num_bytes", [1_700_000, 2_000_000, 4_000_000])
@pytest.mark.parametrize("draft", [False, True])
def test_the_largest_that_fits_is_exact(tiny: str, num_bytes: int, draft: bool) -> None:
    asked = planner(
        tiny,
        tiny if draft else None,
        devices=f"{num_bytes / 10**6}MB",
        context=128,
        batch=3,
        reserve_percent=0,
    )
    plan = asked.plan()
    fits = [batch for batch in range(1, 64) if asked.device_bytes(batch, 128) <= num_bytes]
    assert plan.largest_batch == max(fits, default=0) < 63
    contexts = [n for n in range(1, 129) if asked.device_bytes(3, n) <= num_bytes]
    assert plan.largest_context == max(contexts, default=0)
    assert plan.fits == (plan.largest_batch >= 3) == (plan.largest_context == 128)


def test_the_smallest_device_decides(tiny: str) -> None:
    plan = planner(tiny, devices="1GB,0.5MB", tensor_parallel=2).plan()
    assert [device.fits for device in plan.devices] == [True, False]
    assert not plan.fits
    assert plan.largest_batch == 0


def test_a_context_beyond_the_model(tiny: str) -> None:
    with pytest.raises(OptionError, match=r"context 129 is beyond .* \(128 positions\)"):
        planner(tiny, context=129)
    assert planner(tiny).context == 128
