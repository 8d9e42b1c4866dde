"""The example and the tutorial built on it: the code that is shown is the code that runs."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from doc_blocks import DOCS, python_blocks, run_block
from plain import plain_llm
from tiny import new_sequence, tiny_model

from outpace import LLM, Drafter, SamplingParams
from outpace.drafters.base import DraftingContext
from outpace.outputs import RequestOutput
from outpace.types import Draft

ROOT = DOCS.parent
EXAMPLE = ROOT / "examples" / "toy_drafter.py"
TUTORIAL = DOCS / "add-a-drafter.md"
MAX_LINES = 40

TARGET = tiny_model(seed=1)
PROMPTS = [[5, 6, 7, 8, 5, 6, 7, 8, 5, 6], [9, 9, 9, 9, 9], [40]]


def example() -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLE))


def counting_drafter() -> type[Drafter]:
    """The tutorial's drafter with a memory, built from the page."""
    namespace = example() | {"DraftingContext": DraftingContext, "__name__": "tutorial"}
    (block,) = (b for b in python_blocks(TUTORIAL) if "class CountingDrafter" in b.code)
    run_block(TUTORIAL, block, namespace)
    return cast("type[Drafter]", namespace["CountingDrafter"])


DRAFTERS = {"toy": example()["ToyDrafter"], "counting": counting_drafter()}
both = pytest.mark.parametrize("drafter", DRAFTERS.values(), ids=DRAFTERS.keys())


def generate(llm: LLM, params: SamplingParams) -> list[RequestOutput]:
    return llm.generate([{"prompt_token_ids": ids} for ids in PROMPTS], params)


def build(drafter: type[Drafter], **options: Any) -> Drafter:
    return drafter(drafter.Options(**options), cast("DraftingContext", SimpleNamespace()))


def test_the_example_is_as_short_as_promised() -> None:
    num_lines = len(EXAMPLE.read_text(encoding="utf-8").splitlines())
    assert num_lines < MAX_LINES
    for page in (ROOT / "README.md", TUTORIAL):
        assert f"{num_lines} lines" in page.read_text(encoding="utf-8")


def test_the_tutorial_quotes_the_example() -> None:
    source = EXAMPLE.read_text(encoding="utf-8")
    others = ("CountingDrafter", "parents=")
    blocks = [b.code for b in python_blocks(TUTORIAL)]
    quoted = [code for code in blocks if not any(other in code for other in others)]
    assert len(quoted) == 4
    for code in quoted:
        assert code in source
    docstring, *lines = [line for line in source.splitlines() if line]
    assert docstring.startswith('"""')
    shown = [line for code in quoted for line in code.splitlines() if line]
    assert shown == lines, "the tutorial shows all of the example, in its order"


def test_the_tutorials_tree_has_the_paths_it_claims() -> None:
    (code,) = (b.code for b in python_blocks(TUTORIAL) if "parents=" in b.code)
    draft = eval(code, {"Draft": Draft})
    assert [draft.tokens_to(node) for node in (1, 2)] == [(40, 41), (50,)]


@both
@pytest.mark.parametrize(
    ("tokens", "budget", "min_count", "expected"),
    [
        ([1, 2, 3, 1, 2, 3, 1], 4, 1, (2, 3, 1, 2)),
        ([1, 2, 3, 1, 2, 4, 1], 4, 2, (2,)),  # only (1, 2) occurred twice
        ([1, 2, 3, 1, 2, 3, 1], 0, 1, ()),
        ([1, 2, 1, 3, 1, 3, 1], 1, 1, (3,)),  # the more frequent follower, not the first
        ([1, 2, 3], 4, 1, ()),
        ([7], 4, 0, ()),
    ],
)
def test_guesses(
    drafter: type[Drafter], tokens: list[int], budget: int, min_count: int, expected: Any
) -> None:
    toy = build(drafter, min_count=min_count)
    seq = new_sequence(tokens)
    (draft,) = toy.propose([seq], [budget])
    assert draft.token_ids == expected
    assert seq.tokens == tokens
    assert draft.q is None


def test_counting_once_equals_counting_again() -> None:
    toy, counting = (build(drafter) for drafter in DRAFTERS.values())
    seq, other = new_sequence([1, 2, 1, 3, 1, 3, 1]), new_sequence([4, 1, 2, 4], seq_id=1)
    for token in (2, 4, 1, 2, 3, 1):
        expected = toy.propose([seq, other], [5, 3])
        assert counting.propose([seq, other], [5, 3]) == expected
        seq.tokens.append(token)
    counting.release(seq)
    with pytest.raises(AssertionError, match="sequences \\[1\\]"):
        counting.check_integrity()
    counting.release(other)
    counting.check_integrity()


@both
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0, max_tokens=40, ignore_eos=True),
        SamplingParams(temperature=0.8, seed=3, max_tokens=40, ignore_eos=True),
    ],
    ids=["greedy", "seeded"],
)
def test_answers_equal_plain_decoding(drafter: type[Drafter], params: SamplingParams) -> None:
    with plain_llm(TARGET) as llm:
        plain = generate(llm, params)
    with LLM(TARGET, speculative_config={"method": drafter}, max_num_seqs=2) as llm:
        drafted = generate(llm, params)
    for ours, wanted in zip(drafted, plain, strict=True):
        assert ours.outputs[0].token_ids == wanted.outputs[0].token_ids
        assert ours.stats.num_drafter_errors == 0
    assert sum(output.stats.num_draft_tokens for output in drafted) > 0


def test_the_entry_point_makes_it_a_method(tmp_path: Path) -> None:
    """What the tutorial's pyproject.toml declares, as installing the package would lay it out."""
    page = TUTORIAL.read_text(encoding="utf-8")
    project = tomllib.loads(page.split("```toml\n")[1].split("```")[0])["project"]
    ((group, points),) = project["entry-points"].items()
    ((name, target),) = points.items()
    package = target.partition(":")[0]
    assert f"    {package}/\n        __init__.py" in page, "the layout shows another package"
    (tmp_path / package).mkdir()
    shutil.copy(EXAMPLE, tmp_path / package / "__init__.py")
    information = tmp_path / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Name: {project['name']}\nVersion: 0.1\n")
    (information / "entry_points.txt").write_text(f"[{group}]\n{name} = {target}\n")
    program = (
        "from outpace.drafters import available_methods, make_options\n"
        "from outpace.cli.main import main\n"
        f"assert {name!r} in available_methods()\n"
        f"print(make_options({name!r}, {{'min_count': 2}}))\n"
        "main(['generate', '--help'])\n"
    )
    shown = run_program(program, tmp_path)
    assert "ToyOptions(num_speculative_tokens=4, min_count=2)" in shown
    assert "--min-count" in shown
    assert "How often a pair must have occurred" in " ".join(shown.split())


def run_program(program: str, path: Path) -> str:
    """What a program prints in a new interpreter that also imports from `path`."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        encoding="utf-8",
        check=False,
        env=os.environ | {"PYTHONPATH": str(path)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def without_main(source: str) -> str:
    return source.partition('\n\nif __name__ == "__main__":')[0]


def test_the_example_may_stand_among_the_drafters(tmp_path: Path) -> None:
    """As the tutorial says: without its last block it keeps the layers and stays light."""
    package = tmp_path / "outpace"
    shutil.copytree(ROOT / "src" / "outpace", package, ignore=shutil.ignore_patterns("*.pyc"))
    toy = package / "drafters" / "toy.py"
    source = EXAMPLE.read_text(encoding="utf-8")
    toy.write_text(without_main(source), encoding="utf-8")
    imported = set(re.findall(r"^ *from (outpace\S*) import", toy.read_text("utf-8"), re.MULTILINE))
    assert imported == {"outpace.drafters.base", "outpace.types"}
    assert "from outpace import" in source, "the block left out is the one that needs the engine"
    program = (
        "import sys, outpace\n"
        f"assert outpace.__file__.startswith({str(tmp_path)!r})\n"
        "from outpace.cli.main import main\n"
        "try:\n"
        "    main(['generate', '--help'])\n"
        "except SystemExit:\n"
        "    assert 'torch' not in sys.modules and 'numpy' not in sys.modules\n"
    )
    shown = run_program(program, tmp_path)
    assert "--min-count" in shown


@pytest.mark.model
def test_the_example_runs_as_a_program() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], capture_output=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, done.stderr
    assert "num_output_tokens=64" in done.stdout
    assert "num_drafter_errors=0" in done.stdout
    assert "num_accepted_tokens=0," not in done.stdout
