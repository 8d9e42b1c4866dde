"""The example for OpenAI's client, run as it stands against a live server."""

from __future__ import annotations

import ast
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from servers import serving

from outpace import LLM
from outpace.models.load import LoadedModel

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "openai_client.py"
PAGE = ROOT / "docs" / "server.md"
MAX_LINES = 60


def test_the_example_is_short() -> None:
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) < MAX_LINES


def part(shown: str, title: str) -> str:
    """What is shown after a title, up to the next empty line."""
    found = re.search(rf"^{title}: (.*?)(\n\n|\Z)", shown, re.MULTILINE | re.DOTALL)
    assert found, shown
    return found[1].strip()


@pytest.mark.model
def test_the_example_shows_what_it_promises(
    default_model: Callable[..., LoadedModel],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    llm = LLM(default_model(), max_num_seqs=2, max_model_len=512)
    with serving(llm, served_model_names=("small", "other"), api_keys=("key",)) as server:
        monkeypatch.setenv("OPENAI_API_KEY", "key")
        monkeypatch.setattr(sys, "argv", ["openai_client.py", f"{server.url}/v1"])
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    shown = capsys.readouterr().out
    assert part(shown, "Model") == "small"
    answer, _, drafted = part(shown, "Whole").rpartition("\n  ")
    plain, _, undrafted = part(shown, "The same without drafts").rpartition("\n  ")
    assert len(answer) > 20
    assert part(shown, "Streamed") == answer == plain
    counts = r"\[(\w+): (\d+) tokens in (\d+) passes, (\d+) of (\d+) drafted accepted\]"
    told = [re.fullmatch(counts, line) for line in (drafted, undrafted)]
    assert told[0] is not None
    assert told[1] is not None
    method, *numbers = told[0].groups()
    num_tokens, num_passes, num_accepted, num_drafted = map(int, numbers)
    assert method == "auto"
    assert num_accepted <= num_drafted
    assert num_passes + num_accepted == num_tokens
    assert told[1].groups() == ("none", str(num_tokens), str(num_tokens), "0", "0")
    trip = ast.literal_eval(part(shown, "By a schema"))
    assert set(trip) == {"city", "season"}
    assert trip["season"] in ("spring", "summer", "autumn", "winter")


@pytest.mark.model
def test_the_program_of_the_page(
    default_model: Callable[..., LoadedModel], capsys: pytest.CaptureFixture[str]
) -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)
    with serving(LLM(default_model(), max_num_seqs=1, max_model_len=512)) as server:
        exec(program.replace("http://127.0.0.1:8000", server.url), {})
    *answer, speculation = capsys.readouterr().out.splitlines()
    assert "".join(answer)
    assert ast.literal_eval(speculation)["num_target_passes"] > 0
