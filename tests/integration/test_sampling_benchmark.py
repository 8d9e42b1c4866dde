"""The benchmark of sampling: one tiny run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.model
def test_the_sampling_benchmark_times_every_case(tmp_path: Path) -> None:
    file = tmp_path / "sampling.json"
    command = [sys.executable, str(BENCHMARKS / "sampling.py"), "--json", str(file)]
    command += ["--vocab-sizes", "500", "--rows", "1", "3", "--repeats", "1"]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    found = json.loads(file.read_text())
    assert found["passes"][0]["seconds"]
    cases = {(cost["way"], cost["num_rows"]) for cost in found["costs"]}
    assert len(cases) == len(found["costs"]) == 16
    assert all(len(cost["seconds"]) == 1 for cost in found["costs"])
