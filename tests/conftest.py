"""What holds for every test: annotated shapes are enforced, few threads, no deadlines."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jaxtyping
import pytest
import torch
from hypothesis import settings
from jaxtyping import install_import_hook
from prompts import PROMPTS, Prompt

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

    from outpace import LLM
    from outpace.models.load import LoadedModel

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

settings.register_profile("quick", deadline=None, max_examples=60)
settings.register_profile("exhaustive", deadline=None, max_examples=300)


def pytest_configure(config: pytest.Config) -> None:
    """Many examples only where the slow tests run as well; see also effort.py."""
    quick = "not slow" in config.getoption("markexpr")
    settings.load_profile("quick" if quick else "exhaustive")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Two threads for real models, one for tiny ones: a team of threads gains nothing there, and
    where cores are taken its members wait for one another."""
    torch.set_num_threads(2 if item.get_closest_marker("model") else 1)


_seconds: Counter[str] = Counter()
"""Wall-clock of the tests so far, by area: the first two folders below tests/."""


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    folders = report.nodeid.partition("::")[0].split("/")[1:-1]
    _seconds["/".join(folders[:2])] += report.duration


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The seconds of each area, to be held against the budgets in tests/README.md."""
    for area, seconds in _seconds.most_common():
        terminalreporter.write_line(f"{seconds:7.1f} s  {area}")


@contextmanager
def shape_checks(wanted: bool) -> Iterator[None]:
    """Many calls of the same shapes: checking each one doubles or triples the time."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", not wanted)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


@pytest.fixture
def unchecked_shapes() -> Iterator[None]:
    with shape_checks(False):
        yield


@pytest.fixture(scope="module")
def unchecked_shapes_in_module() -> Iterator[None]:
    with shape_checks(False):
        yield


@pytest.fixture
def checked_shapes() -> Iterator[None]:
    """For one test where its module leaves the checks out."""
    with shape_checks(True):
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


DEFAULT_MODEL = "smollm2-135m"


@pytest.fixture(scope="session")
def default_model() -> Callable[..., LoadedModel]:
    """The default model, loaded once for each dtype and model_impl that some test asks for."""

    @cache
    def load(dtype: str = "auto", model_impl: str = "auto") -> LoadedModel:
        from outpace.models.load import load_model

        with shape_checks(False):
            return load_model(DEFAULT_MODEL, dtype=dtype, device="cpu", model_impl=model_impl)

    return load


@pytest.fixture(scope="session")
def default_oracle() -> LlamaForCausalLM:
    """transformers' Llama with the weights of the default model, in float32.

    transformers' own reading of the GGUF file takes ten times as long; a slow test of
    test_weights.py shows that it gives the same model.
    """
    from oracles import llama_oracle

    from outpace.models.hub.names import resolve
    from outpace.models.open import open_checkpoint

    checkpoint = open_checkpoint(resolve(DEFAULT_MODEL))
    weights = {name: checkpoint.load(name) for name in checkpoint.names()}
    return llama_oracle(checkpoint.config, weights, rope_theta=100_000.0)


@pytest.fixture(scope="session")
def default_tokenizer_of_transformers() -> PreTrainedTokenizerFast:
    """transformers' tokenizer of the default model, with SmolLM2's own pre-tokenizer.

    transformers knows no split for GGUF's "smollm" and falls back to GPT-2's, which puts the last
    of several spaces to the digits after it; the published tokenizer.json takes digits first.
    """
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    from outpace.models.hub.names import resolve

    path = resolve(DEFAULT_MODEL)
    found = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    found.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    return found


@pytest.fixture
def default_model_in_memory(
    monkeypatch: pytest.MonkeyPatch, default_model: Callable[..., LoadedModel]
) -> None:
    """`outpace.LLM` takes the default model from memory, where it is asked for with no more than a
    dtype: for programs and commands that are run in this process."""
    import outpace
    from outpace import LLM as real  # noqa: N811

    at_rest = {"model_impl": "auto", "kv_cache_dtype": "auto", "activations": "auto"}
    at_rest |= {"device": "auto", "threads": None}

    def make(model: Any, **options: Any) -> LLM:
        if model == DEFAULT_MODEL and at_rest.items() <= (at_rest | options).items():
            model = default_model(options.pop("dtype", "auto"))
        return real(model, **options)

    monkeypatch.setitem(vars(outpace), "LLM", make)


def _read_prompts(path: Path) -> list[Prompt]:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
    name = path.name.removesuffix("_dev.jsonl")
    return [
        Prompt(row.get("category", name), row["turns"][0] if "turns" in row else row["prompt"])
        for row in rows
    ]
