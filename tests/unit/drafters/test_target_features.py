"""Features of a pass on their way to a head: what is kept, copied and shared."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from outpace.drafters.parts.features import MOST_WASTE, CapturedFeatures, FeatureQueue
from outpace.models.native.states import HostStates

LAYERS, ROWS, SIZE = [2, 5, 9], 12, 4
STATES = np.random.default_rng(0).standard_normal((3, ROWS, SIZE)).astype(np.float32)


def side_by_side(part: np.ndarray) -> np.ndarray:
    return np.concatenate(list(part), axis=1)


def test_states_become_tensors_when_asked_for() -> None:
    states = HostStates(LAYERS, STATES)
    assert list(states) == LAYERS
    assert len(states) == 3
    assert torch.equal(states[5], torch.from_numpy(STATES[1]))
    assert 3 not in states
    with pytest.raises(KeyError):
        states[3]


@pytest.mark.parametrize("layers", [LAYERS, [9, 2]])
@pytest.mark.parametrize("rows", [slice(3, 9), [3, 4, 6, 8]])
def test_rows_are_the_same_from_native_and_other_targets(
    layers: list[int], rows: slice | list[int]
) -> None:
    native = HostStates(LAYERS, STATES)
    other = {layer: native[layer].double() for layer in LAYERS}
    kept = [CapturedFeatures(hidden, layers).keep(rows, 1, 3) for hidden in (native, other)]
    wanted = STATES[[LAYERS.index(layer) for layer in layers]][:, rows][:, 1:3]
    for part in kept:
        assert part.dtype == np.float32
        np.testing.assert_array_equal(part, wanted)
    np.testing.assert_array_equal(
        CapturedFeatures(native, layers)[[7]],
        side_by_side(STATES[[LAYERS.index(layer) for layer in layers]][:, [7]]),
    )


def test_a_large_pass_is_not_kept_for_a_few_rows() -> None:
    captured = CapturedFeatures(HostStates(LAYERS, STATES), LAYERS)
    few, many = captured.keep(slice(0, ROWS), 0, 2), captured.keep(slice(0, ROWS), 0, ROWS - 1)
    assert ROWS > 2 * MOST_WASTE
    assert not np.shares_memory(few, STATES)
    assert np.shares_memory(many, STATES)


def test_a_queue_gives_what_was_added_in_order() -> None:
    """Against a plain list, through random additions, removals and returns."""
    rng = np.random.default_rng(1)
    queue, model = FeatureQueue(), np.empty((0, 3 * SIZE), np.float32)
    dropped: np.ndarray | None = None
    for _ in range(300):
        count = int(rng.integers(0, 4))
        added = rng.standard_normal((3, count, SIZE)).astype(np.float32)
        queue.add(added)
        model = np.concatenate([model, side_by_side(added)])
        if dropped is not None and rng.random() < 0.3:
            queue.put_back()
            model, dropped = np.concatenate([dropped, model]), None
            assert not queue.can_put_back
        if len(model) and rng.random() < 0.6:
            taken = int(rng.integers(1, len(model) + 1))
            np.testing.assert_array_equal(queue.first(taken), model[:taken])
            queue.drop(taken)
            dropped, model = model[taken - 1 : taken], model[taken:]
        assert len(queue) == len(model)
        if len(model):
            np.testing.assert_array_equal(queue.first(len(model) + 5), model)
            other = FeatureQueue()
            queue.share(2, other)
            np.testing.assert_array_equal(other.first(9), model[:2])
        if dropped is not None:
            other = FeatureQueue()
            queue.share_dropped(other)
            np.testing.assert_array_equal(other.first(1), dropped)


def test_a_prompt_is_not_kept_for_its_last_token() -> None:
    queue, prompt = FeatureQueue(), np.zeros((3, 100, SIZE), np.float32)
    queue.add(prompt)
    queue.drop(100)
    queue.put_back()
    assert not np.shares_memory(queue.first(1), prompt)
