"""`outpace audit`: the table, the JSON, the exit status, and errors in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from audit_cases import MODEL

from outpace.cli import audit as command
from outpace.cli.audit_tables import conclusion
from outpace.measure.audit import run, self_test
from outpace.measure.audit.results import (
    LOSSLESS,
    SAYS_LITTLE,
    VIOLATION,
    AuditResult,
    Check,
    Planted,
    SelfTest,
    Verdict,
)

pytestmark = pytest.mark.usefixtures("unchecked_shapes")
Run = Callable[..., Any]


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_load", lambda values: MODEL)
    monkeypatch.setenv("COLUMNS", "140")


def result_of(*verdicts: Verdict, complete: bool = True) -> AuditResult:
    checks = [
        Check("sampled", "all prompts", "answers", 512, 0, verdict, p_value=0.5, num_drafts=9)
        for verdict in verdicts
    ]
    return AuditResult("m", "float32", "torch", "suffix", {}, 0.001, checks, complete=complete)


@pytest.fixture
def finds(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Makes the audit find something; returns what it is asked for."""

    def replace_audit(found: AuditResult | SelfTest) -> dict[str, Any]:
        asked: dict[str, Any] = {}

        def audit(subject: Any, *args: Any, **options: Any) -> Any:
            asked.update(options, subject=subject, args=args)
            return found

        monkeypatch.setattr(run, "run_audit", audit)
        monkeypatch.setattr(self_test, "run_self_test", audit)
        return asked

    return replace_audit


def test_the_whole_of_it(run_cli: Run, tmp_path: Path) -> None:
    prompts, report = tmp_path / "prompts.txt", tmp_path / "report.json"
    prompts.write_text("Tell me about the sea and the sea and the sea.")
    amount = (
        "--samples",
        "256",
        "--max-tokens",
        "8",
        "--num-seeds",
        "1",
        "--level",
        "1e-6",
        "--batch",
        "64",
    )
    status, out, err = run_cli(
        *("audit", "--quick", "--method", "suffix", "--prompts", str(prompts)),
        *(*amount, "--temperature", "0.7", "--top-k", "20", "--json", str(report)),
    )
    assert status == 0
    text = " ".join(out.split())
    for part in ("rule: token verification", "greedy: suffix K=16, one at a time", "law: suffix"):
        assert part in text
    assert "Lossless as far as tested" in text
    assert "Not proved:" in text
    assert "top_k 20" in err
    found = json.loads(report.read_text())
    assert found["verdict"] == LOSSLESS
    assert found["complete"] is True
    assert found["sampling"] == {"temperature": 0.7, "top_k": 20}
    assert {check["kind"] for check in found["checks"]} == {"exact", "greedy", "seeded", "sampled"}
    # The user's own prompt takes part in the chi-square test.
    assert "prompts" in [check["name"] for check in found["checks"]]


@pytest.mark.parametrize(
    ("verdicts", "complete", "status", "words"),
    [
        ([LOSSLESS], True, 0, "Lossless as far as tested"),
        ([LOSSLESS, VIOLATION], True, 3, "NOT LOSSLESS: law: all prompts"),
        ([SAYS_LITTLE], True, 0, "too few drafts"),
        ([LOSSLESS], False, 130, "INTERRUPTED"),
        ([VIOLATION], False, 3, "NOT LOSSLESS"),
    ],
)
def test_exit_status(
    run_cli: Run, finds: Any, verdicts: list[Verdict], complete: bool, status: int, words: str
) -> None:
    finds(result_of(*verdicts, complete=complete))
    found = run_cli("audit", "--method", "suffix")
    assert found.status == status
    assert words in found.out


def test_json_on_standard_output_stands_alone(run_cli: Run, finds: Any) -> None:
    finds(result_of(LOSSLESS))
    assert json.loads(run_cli("audit", "--json", "-").out)["verdict"] == LOSSLESS


def test_options_reach_the_audit(run_cli: Run, finds: Any) -> None:
    asked = finds(result_of(LOSSLESS))
    assert run_cli("audit", "--minutes", "7", "--num-texts", "2", "--top_p", "0.5").status == 0
    options, subject = asked["args"][0], asked["subject"]
    assert (options.minutes, options.num_texts, options.num_models) == (7, 2, 100)
    assert (subject.params.temperature, subject.params.top_p) == (1.0, 0.5)
    assert subject.config == {"method": "auto"}
    assert len(asked["texts"]) == 2
    assert asked["own_prompts"] is False


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--method", "none"), "nothing to audit"),
        (("--samples", "3"), "at least 64"),
        (("--self-test", "--temperature", "0"), "temperature above 0"),
        (("--top-p", "0"), "top_p"),
    ],
)
def test_errors_in_one_line(run_cli: Run, args: tuple[str, ...], said: str) -> None:
    found = run_cli("audit", *args)
    assert found.status == 1
    assert said in found.err
    assert found.err.startswith("error: ")
    assert found.err.count("\n") == 1


def planted(*caught: bool) -> SelfTest:
    faults = [Planted(f"fault {i}", "chi-square", "answers", 256, c) for i, c in enumerate(caught)]
    return SelfTest("m", "float32", "torch", 0.001, faults, complete=True)


def test_self_test(run_cli: Run, finds: Any) -> None:
    asked = finds(planted(True, True))
    found = run_cli("audit", "--self-test", "--samples", "1024")
    assert found.status == 0
    assert "All 2 planted faults were caught" in found.out
    assert asked["samples"] == 1024
    finds(planted(True, False))
    found = run_cli("audit", "--self-test")
    assert found.status == 3
    assert "FAILED: fault 1 (chi-square)" in found.out


def test_a_tie_is_not_called_a_difference() -> None:
    tied = Check("greedy", "x", "texts", 8, 0, LOSSLESS, num_ties=2)
    result = AuditResult("m", "bfloat16", "torch", "suffix", {}, 0.001, [tied], complete=True)
    assert "8 texts equal plain decoding's but for 2 rounding ties" in conclusion(result)
