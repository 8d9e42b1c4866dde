"""`outpace audit`: the table, the JSON, the exit status, and errors in one line."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from audit_cases import MODEL

from outpace.cli import audit as command
from outpace.cli.audit_tables import conclusion
from outpace.cli.interrupts import terminate_as_interrupt
from outpace.measure.advise.configuration import AdvisedConfig, write_config
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
    monkeypatch.setattr(command, "load_target", lambda values: MODEL)
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
    for part in ("token verification", "suffix K=16 greedy, one at a time", "The law of sampled"):
        assert part in text
    assert "Lossless as far as tested" in text
    assert "Not proved:" in text
    assert "top_k 20" in err
    found = json.loads(report.read_text())
    assert found["verdict"] == LOSSLESS
    assert found["complete"] is True
    assert found["sampling"] == {"temperature": 0.7, "top_k": 20}
    assert {check["kind"] for check in found["checks"]} == {"exact", "greedy", "seeded", "sampled"}
    # The user's own prompt alone is what is sampled.
    laws = [check["name"] for check in found["checks"] if check["kind"] == "sampled"]
    assert laws == ["prompts", "all prompts"]
    assert found["law_prompts"] == found["text_prompts"] == ["prompts"]


@pytest.mark.parametrize(
    ("verdicts", "complete", "status", "words"),
    [
        ([LOSSLESS], True, 0, "Lossless as far as tested"),
        ([LOSSLESS, VIOLATION], True, 3, "NOT LOSSLESS: law: all prompts"),
        ([SAYS_LITTLE], True, 0, "hardly a draft was judged in sampled answers"),
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


def test_sigterm_is_an_interruption() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), terminate_as_interrupt():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


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
    assert len(asked["texts"]) > 2  # as many as there are; the audit takes what it needs
    assert asked["own_prompts"] is False


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--method", "none"), "nothing to audit"),
        (("--samples", "3"), "at least 64"),
        (("--self-test", "--temperature", "0"), "temperature above 0"),
        (("--self-test", "--quick"), "--quick has no meaning"),
        (("--self-test", "--num-texts", "3"), "--num-texts has no meaning"),
        (("--top-p", "0"), "top_p"),
    ],
)
def test_errors_in_one_line(run_cli: Run, args: tuple[str, ...], said: str) -> None:
    found = run_cli("audit", *args)
    assert found.status == 1
    assert said in found.err
    assert found.err.startswith("error: ")
    assert found.err.count("\n") == 1


def test_a_configuration_decides_the_model_too(
    run_cli: Run, finds: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another model's audit would say that this one is lossless."""
    loaded: dict[str, Any] = {}

    def load(values: dict[str, Any]) -> Any:
        loaded.update(values)
        return MODEL

    monkeypatch.setattr(command, "load_target", load)
    asked, path = finds(result_of(LOSSLESS)), tmp_path / "advice.json"
    method = {"method": "suffix", "num_speculative_tokens": 4}
    write_config(path, AdvisedConfig("a-model", MODEL.fingerprint, "float32", method))
    assert run_cli("audit", "--config", str(path)).status == 0
    assert (loaded["model"], loaded["dtype"]) == ("a-model", "float32")
    assert asked["subject"].config == method
    write_config(path, AdvisedConfig("a-model", "of another", "float32", method))
    found = run_cli("audit", "--config", str(path))
    assert found.status == 1
    assert "run outpace advise again" in found.err


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


def greedy_result(**changes: Any) -> AuditResult:
    check = Check("greedy", "x", "texts", 8, 0, LOSSLESS, **({"num_drafted": 5} | changes))
    silent = Check("greedy", "y", "texts", 8, 0, SAYS_LITTLE, num_drafted=0)
    sampling = {"temperature": 0.0}
    result = AuditResult("m", "bfloat16", "torch", "suffix", sampling, 0.001, [check, silent])
    result.text_prompts, result.complete = ["a"] * 8, True
    return result


def test_a_tie_is_not_called_a_difference() -> None:
    said = conclusion(greedy_result(num_ties=2))
    assert "of 16 texts (8 prompts, 2 checks) 5 had drafts judged" in said
    assert "equal plain decoding's but for 2 rounding ties" in said
    assert conclusion(greedy_result(num_ties=1)).count("1 rounding tie.") == 1


def test_an_interrupted_audit_has_no_verdict_and_counts_no_text_without_drafts() -> None:
    result = greedy_result(num_drafted=0)
    result.complete = False
    said = conclusion(result)
    assert said.startswith("INTERRUPTED, so there is no verdict")
    assert "Nothing was tested to the end" in said
    assert "smaller biases" not in said
    assert "texts" not in said


def test_the_tables_fit_80_columns(
    run_cli: Run, finds: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = result_of(LOSSLESS)
    result.checks += [
        Check("exact", "recursive rejection over trees", "tiny models", 100, 0, LOSSLESS),
        *greedy_result(num_drafts=1234, method="suffix K=16").checks,
    ]
    finds(result)
    out = run_cli("audit", "--method", "suffix").out
    tables = out[: out.index("Lossless as far")]
    assert max(map(len, tables.splitlines())) <= 80
    for line in ("recursive rejection over trees", "suffix K=16 greedy, x", "all prompts 512"):
        assert line in " ".join(tables.split())
    # Columns without a word in them are left out.
    assert "ties" not in tables
    assert "impossible" not in tables


def test_a_fault_is_caught_and_a_control_is_not_called_missed(run_cli: Run, finds: Any) -> None:
    result = planted(True, False)
    result.planted.append(
        Planted("nothing", "enumeration", "tiny models", 1, False, is_control=True)
    )
    finds(result)
    out = " ".join(run_cli("audit", "--self-test").out.split())
    assert "fault 0 chi-square 256 answers caught" in out
    assert "fault 1 chi-square 256 answers MISSED" in out
    assert "nothing enumeration 1 tiny model nothing found" in out
