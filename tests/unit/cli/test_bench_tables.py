"""The tables of `outpace bench`: whole figures in 80 columns, and nothing that a terminal obeys."""

from __future__ import annotations

import copy
import io
import re
from collections.abc import Callable

import pytest
from bench_summaries import Summary, interrupted, losing, one_method, summary
from rich.console import Console

from outpace.cli.bench_tables import show_summary


def shown(given: Summary, width: int = 80) -> str:
    out = io.StringIO()
    show_summary(given, Console(file=out, width=width))
    return out.getvalue()


def tables_of(given: Summary, width: int = 80) -> str:
    """All but the lines about where it ran, which are not wrapped so that they can be copied."""
    return shown(given, width).partition("\n\n")[2]


@pytest.mark.parametrize("make", [summary, one_method, interrupted, losing])
def test_nothing_is_cut_at_80_columns(make: Callable[[], Summary]) -> None:
    given = make()
    text = tables_of(given)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    for path in given["paths"]:
        for setting in path["settings"]:
            for method in setting["methods"]:
                row = method["columns"][-1]
                assert re.search(rf"^{method['method']} .*{row['tokens_per_s']:.1f} ", text, re.M)
                for column in method["columns"]:
                    ratio = column["ratio"]
                    if ratio and ratio["low"] is not None:
                        said = f"{ratio['mean']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]"
                        assert said in text


def test_what_does_not_fit_beside_each_other_comes_below() -> None:
    narrow, wide = tables_of(summary()), tables_of(summary(), 200)
    assert re.search("^column +suffix K=8 +draft_model K=4 +auto *$", narrow, re.M)
    assert re.search("^column +prompt lookup *$", narrow, re.M)
    assert re.search("^column +suffix K=8 +draft_model K=4 +auto +prompt lookup *$", wide, re.M)
    assert not re.search("^column +prompt lookup", wide, re.M)


def test_names_are_folded_before_figures_are_cut() -> None:
    given = one_method()
    given["paths"][0]["settings"][0]["methods"][1]["method"] = "suffix " + "x" * 100
    text = tables_of(given)
    assert max(map(len, text.splitlines())) <= 80
    assert re.search(r"x  +\d+\.\d  +\d\.\d\d  ", text)


def test_the_verdict_comes_below_the_tables() -> None:
    *_, verdict, end = shown(summary()).rpartition("Speculation pays here, one request at a time")
    assert verdict
    assert "native bfloat16, temperature 0: suffix K=8 pays: 2.26 (2.18 to 2.34) times" in end
    assert "**" not in end
    assert "`" not in end
    assert "Nothing is shown to pay here" in shown(losing())


def test_a_method_that_had_to_be_left_out_is_told() -> None:
    given = summary()
    assert "not measured" not in shown(given)
    given["paths"][1]["not_measured"] = ["eagle3 K=3"]
    assert "eagle3 K=3 was not measured in native q4_1; the notes say why." in " ".join(
        shown(given).split()
    )


def test_control_characters_of_names_are_not_obeyed() -> None:
    given = copy.deepcopy(summary())
    for path in given["paths"]:
        path["path"] += "\x1b[2J"
        for setting in path["settings"]:
            for method in setting["methods"]:
                method["method"] += "\x1b[31m"
                for column in method["columns"]:
                    column["column"] = f"\x1b]0;{column['column']}\x07"
    given["notes"].append("\x1b[31mnote\x9b")
    given["model"]["name"] = "\x1b[2J"
    text = shown(given)
    assert "\u241b[31m" in text
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)


def test_threads_are_shown_where_they_are_known() -> None:
    given = summary()
    assert "thread" not in tables_of(given).partition("v(n)")[0]
    given["paths"][0]["threads"] = 1
    given["paths"][1]["threads"] = 8
    text = tables_of(given)
    assert "native step (amx, bfloat16 weights); 1 thread;" in text
    assert "native step (amx, q4_1 weights); 8 threads;" in text
