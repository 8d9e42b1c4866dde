"""What holds for every test: annotated shapes are enforced, few threads, no deadlines."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jaxtyping
import pytest
import torch
from hypothesis import settings
from jaxtyping import install_import_hook
from prompts import PROMPTS, Prompt

# Before any of these modules is imported: array arguments are checked against their annotations.
install_import_hook(
    [
        "outpace.sampling",
        "outpace.verification",
        "outpace.cache",
        "outpace.models.attention",
        "outpace.models.decoder",
        "outpace.models.layer",
        "outpace.models.linear",
        "outpace.models.norm",
        "outpace.models.rotation",
        "outpace.runner",
    ],
    "beartype.beartype",
)

settings.register_profile("outpace", deadline=None)
settings.load_profile("outpace")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Two threads for real models, one for tiny ones: a team of threads gains nothing there, and
    where cores are taken its members wait for one another."""
    torch.set_num_threads(2 if item.get_closest_marker("model") else 1)


@contextmanager
def without_shape_checks() -> Iterator[None]:
    """Many calls of the same shapes: checking each one would take minutes."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def unchecked_shapes() -> Iterator[None]:
    with without_shape_checks():
        yield


@pytest.fixture(scope="module")
def unchecked_shapes_in_module() -> Iterator[None]:
    with without_shape_checks():
        yield


@pytest.fixture(scope="session")
def prompts() -> list[Prompt]:
    """Prompts for real models: the folder in OUTPACE_PROMPTS, else the built-in ones.

    A folder holds `*_dev.jsonl` files of objects with `turns` (the first is used) or `prompt`.
    """
    folder = os.environ.get("OUTPACE_PROMPTS")
    if not folder:
        return list(PROMPTS)
    files = sorted(Path(folder).glob("*_dev.jsonl"))
    assert files, f"OUTPACE_PROMPTS={folder} holds no *_dev.jsonl file"
    return [prompt for path in files for prompt in _read_prompts(path)]


def _read_prompts(path: Path) -> list[Prompt]:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
    name = path.name.removesuffix("_dev.jsonl")
    return [
        Prompt(row.get("category", name), row["turns"][0] if "turns" in row else row["prompt"])
        for row in rows
    ]
