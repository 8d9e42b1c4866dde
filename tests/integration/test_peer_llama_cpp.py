"""llama.cpp as a peer, where it is installed: it is compiled for a machine, and CI has none."""

from __future__ import annotations

from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import pytest

from outpace import LLM, SamplingParams
from outpace.measure.bench.peers.base import open_peers
from outpace.models.load import load_model

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(find_spec("llama_cpp") is None, reason="llama-cpp-python is not installed"),
]
MODEL = "smollm2-135m"
TEXT = "def fibonacci(n):\n    # The first two numbers\n    if n < 2:\n        return"
GREEDY = SamplingParams(temperature=0.0, max_tokens=24)


@pytest.mark.parametrize(
    ("dtype", "type_names"), [("q4_1", ("Q4_1",)), ("bfloat16", ("F16", "BF16"))]
)
def test_it_continues_as_we_do(tmp_path: Path, dtype: str, type_names: tuple[str, ...]) -> None:
    loaded = load_model(MODEL, dtype=dtype)
    prompts = [loaded.tokenizer.encode(TEXT)]
    with LLM(loaded) as llm:
        output = llm.generate([{"prompt_token_ids": prompts[0]}], GREEDY)[0]
    expected = list(output.outputs[0].token_ids)
    notes: list[str] = []
    with ExitStack() as closing:
        peers = open_peers(
            "llama.cpp",
            loaded,
            model=MODEL,
            max_model_len=256,
            max_batch=1,
            tuning_prompts=prompts,
            threads=1,
            note=notes.append,
            closing=closing,
            work_dir=tmp_path,
        )
        # Of several types of file the fastest is left.
        plain, lookup = peers
        measured = [name for name in type_names if f" {name} " in plain.name]
        assert len(measured) == 1
        assert f" {measured[0]} " in lookup.name
        choice = f"on the first prompts was measured, llama.cpp {measured[0]}"
        assert any(choice in note for note in notes) == (len(type_names) > 1)
        for peer in (plain, lookup):
            answer = peer.generate_batch(prompts, [GREEDY]).answers[0].token_ids
            # Roundings differ between the engines, so that later tokens may differ too.
            assert answer[:4] == expected[:4]
    made = [name for name in type_names if any(f"made a {name} file" in note for note in notes)]
    assert made == ([] if dtype == "q4_1" else list(type_names))
