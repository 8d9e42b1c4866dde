"""What `outpace info` says about the native step."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner

from outpace.cli import info
from outpace.native import library, pool


@pytest.fixture(autouse=True)
def small_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "probe_buffer", lambda: np.ones(1 << 20, np.uint8))
    monkeypatch.delenv(library.PATH_VARIABLE, raising=False)


@pytest.mark.skipif(not library.status().usable, reason="no native library")
def test_with_the_native_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(library.PATH_VARIABLE, "portable")
    values = info.native_step()
    assert values["native_path"] == "portable"
    assert values["native_unavailable"] is None
    assert "portable" in values["native_paths_usable"]
    assert values["native_threads"] >= 1
    assert "AVX2" in values["lost"]
    assert values["read_gb_per_s_one_thread"] > 0
    assert values["read_gb_per_s_all_threads"] > 0


def test_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_open", lambda: (None, "the compiler was on holiday"))
    values = info.native_step()
    assert values["native_path"] is None
    assert "torch serves" in values["lost"]
    assert values["read_gb_per_s_one_thread"] is None
    text = CliRunner().invoke(info.info, []).output
    assert "on holiday" in text


def test_every_path_has_its_line() -> None:
    assert set(info.LOST) == set(library.PATHS)
