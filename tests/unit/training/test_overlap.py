"""The overlap check finds what a benchmark also asks, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outpace.errors import OptionError
from outpace.training.answers import Answer
from outpace.training.overlap import Benchmarks, normalised_words, without_contaminated
from outpace.training.prompts import Prompt

WORDS = [f"w{i}" for i in range(30)]


def benchmark(path: Path, *rows: dict[str, object]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def prompts(*texts: str) -> list[Prompt]:
    return [Prompt.from_user(text, f"source-{i}") for i, text in enumerate(texts)]


@pytest.fixture
def bench(tmp_path: Path) -> Benchmarks:
    return Benchmarks(
        [
            benchmark(
                tmp_path / "bench.jsonl",
                {"turns": [" ".join(WORDS), "And why is that so?"], "category": "not a prompt"},
                {"messages": [{"role": "user", "content": " ".join(reversed(WORDS))}]},
            ),
            benchmark(tmp_path / "other.jsonl", {"prompt": "Name a colour of the rainbow"}),
        ]
    )


@pytest.mark.parametrize("start", [0, 9, 17])
def test_thirteen_words_in_a_row_are_found_wherever_they_stand(
    bench: Benchmarks, start: int
) -> None:
    shared = " ".join(WORDS[start : start + 13])
    for text in (shared, f"before {shared} after", shared.upper().replace(" ", " ... \n")):
        (overlap,) = bench.find(prompts("nothing", text))
        assert (overlap.index, overlap.benchmark, overlap.words) == (1, "bench.jsonl", shared)


@pytest.mark.parametrize("start", [0, 9, 18])
def test_twelve_are_not(bench: Benchmarks, start: int) -> None:
    twelve = " ".join(WORDS[start : start + 12])
    torn = " ".join([*WORDS[start : start + 6], "other", *WORDS[start + 6 : start + 12]])
    assert bench.find(prompts(twelve, torn, f"{twelve} and {twelve}")) == []


def test_the_length_is_a_choice(tmp_path: Path) -> None:
    path = benchmark(tmp_path / "bench.jsonl", {"prompt": " ".join(WORDS)})
    text = " ".join(WORDS[4:9])
    assert len(Benchmarks([path], 5).find(prompts(text))) == 1
    assert Benchmarks([path], 6).find(prompts(text)) == []


def test_every_turn_counts_and_a_short_one_only_as_a_whole(bench: Benchmarks) -> None:
    found = bench.find(
        prompts(
            " ".join(reversed(WORDS)),
            "and why is that so",
            "Name a colour of the rainbow!",
            "Please name a colour of the rainbow.",
            "not a prompt",
        )
    )
    assert [(o.index, o.benchmark) for o in found] == [
        (0, "bench.jsonl"),
        (1, "bench.jsonl"),
        (2, "other.jsonl"),
    ]


def test_scripts_without_spaces_are_compared_by_character(tmp_path: Path) -> None:
    text = "日本で一番高い山は何という山ですか"
    bench = Benchmarks([benchmark(tmp_path / "ja.jsonl", {"prompt": text})])
    assert len(bench.find(prompts(f"教えて、{text}"))) == 1
    assert bench.find(prompts("日本で一番長い川は何という川ですか")) == []
    assert normalised_words("GPT-4は 良い_x") == ["gpt", "4", "は", "良", "い", "x"]


def test_contaminated_prompts_are_refused_by_name_and_count(bench: Benchmarks) -> None:
    shared = " ".join(WORDS)
    given = prompts(f"{shared} one", "harmless", f"{shared} two", "name a colour of the rainbow")
    with pytest.raises(OptionError) as error:
        without_contaminated(given, bench)
    message = str(error.value)
    assert "2 prompts share 13 words in a row (or all of its words) with bench.jsonl" in message
    assert f'for example "{" ".join(WORDS[:13])}" (source-0)' in message
    assert "1 prompt shares 13 words" in message
    assert '"name a colour of the rainbow" (source-3)' in message
    kept, report = without_contaminated(given, bench, drop=True)
    assert [p.text for p in kept] == ["harmless"]
    assert report in message
    assert without_contaminated(kept, bench) == (kept, "")


def test_given_answers_are_checked_by_their_prompts(bench: Benchmarks) -> None:
    answers = [Answer("x", (1,), (2,), 0.0, text) for text in ("harmless", " ".join(WORDS))]
    assert without_contaminated(answers, bench, drop=True)[0] == answers[:1]


def test_files_that_are_no_benchmark_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(OptionError, match="holds no text"):
        Benchmarks([tmp_path / "empty.txt"])
    with pytest.raises(OptionError, match=r"x\.jsonl, line 1: expected a benchmark prompt"):
        Benchmarks([benchmark(tmp_path / "x.jsonl", {"question": "a"})])
    with pytest.raises(OptionError, match="cannot be read"):
        Benchmarks([tmp_path / "absent.jsonl"])
