"""What the command line says to and of the native step: its options, and its packed weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType as Kind
from model_files import write_gguf
from native_models import usable_paths

from outpace.cli.model_options import ACTIVATIONS, DTYPES, KV_CACHE_DTYPES, MODEL_IMPLS
from outpace.models import load
from outpace.models.native import formats, packed_file

Run = Callable[..., Any]


def test_choices_are_those_of_the_python_interface() -> None:
    """They are written down twice, so that showing help does not import torch."""
    assert ("auto", *load.DTYPES, *formats.PACKED_DTYPES) == DTYPES
    assert MODEL_IMPLS == load.MODEL_IMPLS
    assert ("auto", *formats.KV_CACHE_DTYPES) == KV_CACHE_DTYPES
    assert ("auto", *formats.ACTIVATIONS) == ACTIVATIONS


def test_options_arrive(run_cli: Run, llms: list) -> None:
    run_cli(
        *("generate", "a", "--dtype", "q4_1", "--model-impl", "native", "--threads", "3"),
        *("--kv-cache-dtype", "float32", "--activations", "int8"),
    )
    run_cli("generate", "a")
    first, second = llms
    assert (first.dtype, first.model_impl, first.threads) == ("q4_1", "native", 3)
    assert (first.kv_cache_dtype, first.activations) == ("float32", "int8")
    assert (second.kv_cache_dtype, second.activations, second.threads) == ("auto", "auto", None)


@pytest.mark.skipif(not usable_paths(), reason="the native library is not built")
def test_packed_weights_are_listed_and_removed(
    run_cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTPACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(packed_file, "SMALLEST_FILE", 0)
    assert run_cli("models", "packed") == (0, "no packed weights are kept\n", "")
    model = write_gguf(tmp_path / "model.gguf", kind=Kind.Q4_1)
    load.load_model(model, device="cpu")
    (path,) = (tmp_path / "cache" / "packed").glob("*.packed")
    status, out, _ = run_cli("models", "packed")
    assert (status, out.split()) == (0, ["0", "MB", str(path)])
    listed = json.loads(run_cli("models", "packed", "--json")[1])
    assert listed == [
        {
            "path": str(path),
            "label": "q4_1",
            "sources": [str(model)],
            "num_bytes": path.stat().st_size,
        }
    ]
    assert run_cli("models", "packed", "--remove")[1].split() == [str(path)]
    assert not path.exists()
    assert json.loads(run_cli("models", "packed", "--json")[1]) == []
