"""The native step's benchmark: its arithmetic on made-up figures, its plots, and one tiny run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest
from gguf import GGMLQuantizationType as Kind
from gguf_files import write_family

from outpace.models.open import open_checkpoint
from outpace.native.library import status

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SVG = "{http://www.w3.org/2000/svg}"


@dataclass(frozen=True)
class Harness:
    """The benchmark's modules, which are no part of the package."""

    curves: ModuleType
    llama: ModuleType
    options: ModuleType
    results: ModuleType
    summary: ModuleType
    weights: ModuleType


@pytest.fixture(scope="module")
def harness() -> Iterator[Harness]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        from harness.step import curves, llama, options, results, summary, weights

        yield Harness(curves, llama, options, results, summary, weights)


@pytest.fixture
def figures(harness: Harness) -> Any:
    """Two engines on one set of weights, and one on another; three rounds.

    In the second round the machine was ten times slower for everyone, in the third for nobody but
    the one pass that was being made.
    """
    results = harness.results
    made = results.Results()
    for label, kind, weights in (
        ("native q4_1", "native", "q4_1"),
        ("llama.cpp Q4_1", "llama.cpp", "q4_1"),
        ("torch bfloat16", "torch", "bfloat16"),
    ):
        made.engines.append(results.Engine(label, kind, weights, 1000, 10.0, ""))
    seconds = {
        ("native q4_1", 1): [1.0, 10.0, 1.0],
        ("native q4_1", 8): [1.5, 15.0, 1.5],
        ("llama.cpp Q4_1", 1): [2.0, 20.0, 20.0],
        ("llama.cpp Q4_1", 8): [6.0, 60.0],  # interrupted
        ("torch bfloat16", 1): [5.0, 50.0, 5.0],
    }
    for (label, num_rows), values in seconds.items():
        made.passes.append(results.Passes(label, 100, num_rows, values))
    made.probes.append(results.Probes(100, 1, [4000.0, 400.0, 4000.0]))
    made.probes.append(results.Probes(100, 8, [1.0, 1.0, 1.0]))
    made.prefills.append(results.Prefills("native q4_1", 512, [1.0, 2.0]))
    made.prefills.append(results.Prefills("llama.cpp Q4_1", 512, [3.0, 6.0]))
    return made


def test_v_is_relative_to_one_row_within_rounds(harness: Harness, figures: Any) -> None:
    rows = {(r["engine"], r["num_rows"]): r for r in harness.summary.pass_rows(figures)}
    assert rows["native q4_1", 1]["v"].median == 1.0
    assert rows["native q4_1", 8]["v"].median == pytest.approx(1.5)
    assert rows["llama.cpp Q4_1", 8]["v"].median == pytest.approx(3.0)
    assert rows["native q4_1", 8]["ms"].median == pytest.approx(1500.0)
    assert rows["native q4_1", 8]["ms"].high == pytest.approx(8250.0)


def test_the_limit_counts_weights_and_cache_against_the_rate_beside(
    harness: Harness, figures: Any
) -> None:
    """2,000 bytes in 1 s, of 4,000 a second: one half, also while all was ten times slower."""
    row = next(r for r in harness.summary.limit_rows(figures) if r["engine"] == "native q4_1")
    assert row["bytes"] == 1000 + 100 * 10
    assert row["gb_per_s"].median == pytest.approx(2000e-9)
    assert (row["fraction"].low, row["fraction"].high) == pytest.approx((0.5, 0.5))


def test_peers_are_compared_on_the_same_weights_within_rounds(
    harness: Harness, figures: Any
) -> None:
    rows = harness.summary.ratio_rows(figures)
    assert {row["peer"] for row in rows} == {"llama.cpp Q4_1"}
    speedups = {row["num_rows"]: row["speedup"] for row in rows}
    assert speedups[1] == harness.summary.Spread(2.0, 2.0, 11.0)
    assert speedups[8].median == pytest.approx(4.0)
    prefills = {row["engine"]: row for row in harness.summary.prefill_rows(figures)}
    assert prefills["native q4_1"]["speedups"]["llama.cpp Q4_1"].median == pytest.approx(3.0)
    assert prefills["native q4_1"]["tokens_per_s"] == pytest.approx(512 / 1.5)
    assert prefills["llama.cpp Q4_1"]["speedups"] == {}


def test_results_survive_json(harness: Harness, figures: Any) -> None:
    text = json.dumps(asdict(figures))
    again = harness.results.Results.from_json(json.loads(text))
    assert again == figures
    assert harness.summary.summarise(again) == harness.summary.summarise(figures)


def test_plots_draw_every_curve_where_it_belongs(harness: Harness) -> None:
    ours = {100: [(1, 1.0), (16, 1.5), (32, 2.0)], 4000: [(1, 1.0), (32, 4.0)]}
    peer = {100: [(1, 1.0), (32, 8.0)]}
    root = ElementTree.fromstring(harness.curves.draw({"a < b": (ours, peer), "c": ({}, {})}))
    lines = root.findall(f".//{SVG}polyline")
    assert len(lines) == 3
    dashed = [line for line in lines if line.get("stroke-dasharray")]
    assert len(dashed) == 1
    colours = [line.get("stroke") for line in lines]
    assert colours[0] == colours[1] != colours[2]  # by context: the peer's, ours, ours
    places = [
        [tuple(map(float, point.split(","))) for point in line.get("points", "").split()]
        for line in lines
    ]
    heights = [path[0][1] - path[-1][1] for path in places]  # v(32) - v(1) is 7, 1, 3
    assert [height / heights[1] for height in heights] == pytest.approx([7, 1, 3], rel=0.02)
    texts = [element.text for element in root.iter(f"{SVG}text")]
    assert {"a < b", "c", "100 cached", "4000 cached", "llama.cpp", "32"} <= set(texts)


def test_weights_are_counted_as_they_are_read(harness: Harness, tmp_path: Path) -> None:
    """Matrices of 64 in 8 bits take 34 bytes for 32; embeddings are gathered, unless tied."""
    sizes = {"vocab_size": 264, "hidden_size": 64}
    path = write_family(tmp_path / "untied.gguf", "llama", kind=Kind.Q8_0)
    tied = write_family(tmp_path / "tied.gguf", "qwen2", kind=Kind.Q8_0)
    config = open_checkpoint(path).config
    matrix = sizes["vocab_size"] * sizes["hidden_size"]
    heads = 64 * (64 + 32 + 32 + 64)
    layers = 4 * (heads + 3 * 64 * 96)
    norms = 4 * (2 * 4 + 1) * 64
    assert harness.weights.stored_weight_bytes(path) == (matrix + layers) * 34 // 32 + norms
    biases = 4 * 4 * (64 + 32 + 32)
    assert harness.weights.stored_weight_bytes(tied) == (
        (matrix + layers) * 34 // 32 + norms + biases
    )
    assert harness.weights.computed_weight_bytes(config, "bfloat16") == (
        2 * (matrix + layers + norms // 4)
    )
    assert not harness.weights.is_packed("bfloat16")


def test_options_are_parsed_and_refused(
    harness: Harness, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    parse = harness.options.parse_options
    options = parse("", ["--rows", "1-3,8", "--formats", "q4_1", "--peer", "torch"])
    assert (options.rows, options.formats, options.peers) == ((1, 2, 3, 8), ("q4_1",), ("torch",))
    assert parse("", []).peers == ()
    for arguments, words in (
        (["--rows", "2"], "must include 1"),
        (["--formats", "q3_k"], "unknown 'q3_k'"),
        (["--peer", "vllm"], "invalid choice"),
        (["--file", "q8_0=nowhere.gguf"], "is not FORMAT=FILE"),
        (["--json", str(tmp_path / "no" / "a.json")], "there is no directory"),
    ):
        with pytest.raises(SystemExit):
            parse("", arguments)
        assert words in capsys.readouterr().err


def test_a_missing_peer_says_how_to_get_it(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(ImportError, match="GGML_NATIVE=ON pip install"):
        harness.llama.load_library()


def run_without_llama(tmp_path: Path, arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the script where llama.cpp cannot be imported, installed or not."""
    hidden = tmp_path / "hidden" / "llama_cpp"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ImportError('hidden')")
    command = [sys.executable, str(BENCHMARKS / "step.py"), *arguments.split()]
    environment = os.environ | {"PYTHONPATH": str(hidden.parent)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_a_peer_that_was_asked_for_and_is_missing_ends_the_run(tmp_path: Path) -> None:
    done = run_without_llama(tmp_path, "--peer llama.cpp")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: llama.cpp is not installed (hidden); install it")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.skipif(status().path is None, reason="the native step is not available")
def test_tiny_run_fills_every_table(tmp_path: Path) -> None:
    model = write_family(tmp_path / "tiny.gguf", "llama", kind=Kind.Q8_0)
    arguments = "--formats bfloat16,q4_0 --rows 1,3 --contexts 12,9999 --prefills 16 "
    arguments += "--repeats 2 --burst 1 --threads 1 --peer torch --json - "
    arguments += f"--model {model} --plot {tmp_path / 'v.svg'} --work-dir {tmp_path}"
    done = run_without_llama(tmp_path, arguments)
    assert done.returncode == 0, done.stderr
    for title in ("1. A pass over n rows", "2. One row against", "3. How many times", "4. Prompts"):
        assert title in done.stderr
    document = json.loads(done.stdout)
    results = document["results"]
    assert results["complete"]
    assert [engine["label"] for engine in results["engines"]] == [
        "native bfloat16",
        "torch bfloat16",
    ]
    assert all(len(passes["seconds"]) == 2 for passes in results["passes"])
    assert {(p["context_len"], p["num_rows"]) for p in results["passes"]} == {(12, 1), (12, 3)}
    assert all(len(chosen) == 8 for chosen in results["choices"].values())
    assert any("9999" in note for note in results["notes"])
    assert any("Q4_0" in note for note in results["notes"])
    (ratio,) = [row for row in document["summary"]["ratios"] if row["num_rows"] == 3]
    assert (ratio["ours"], ratio["peer"]) == ("native bfloat16", "torch bfloat16")
    assert (tmp_path / "v.svg").read_text().count("<polyline") == 1
