"""A published tiny model."""

from __future__ import annotations

from pathlib import Path

import pytest
from published import ALIAS, FAKE_PIP, make_release

from outpace.models.hub import aliases


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "published"


@pytest.fixture
def release(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> aliases.Release:
    """A published tiny model, an empty cache, and pip replaced by the stand-in."""
    published = make_release(folder)
    monkeypatch.setattr(aliases, "ALIASES", {ALIAS: published})
    monkeypatch.setenv("OUTPACE_CACHE", str(tmp_path / "cache"))
    module = tmp_path / "python"
    module.mkdir()
    (module / "pip.py").write_text(FAKE_PIP)
    monkeypatch.setenv("PYTHONPATH", str(module))
    monkeypatch.setenv("FAKE_PIP_FOLDER", str(folder))
    return published
