"""`outpace train` from prompts to a draft that is used, on a tiny model."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from plain import plain_llm
from training_runs import KINDS, METHODS, prompts_file, run_killed, tiny_target, train_args

from outpace import LLM, SamplingParams
from outpace.cli.main import cli
from outpace.errors import OutpaceError
from outpace.heads.kinds import detect_kind, speculative_config

ALL_KINDS = [pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS[1:]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("training")


@pytest.fixture(scope="module")
def target(folder: Path) -> Path:
    return tiny_target(folder)


@pytest.fixture(scope="module")
def prompts(folder: Path) -> Path:
    return prompts_file(folder / "prompts.jsonl")


@pytest.fixture(scope="module")
def trained(folder: Path, target: Path, prompts: Path) -> Callable[[str], Path]:
    """The directory of a draft of each kind, trained once."""

    @cache
    def directory(kind: str) -> Path:
        out = folder / f"trained-{kind}"
        run(*train_args(kind, target, out, "--prompts", str(prompts)))
        return out

    return directory


def invoke(*args: str) -> Result:
    return CliRunner().invoke(cli, list(args))


def run(*args: str) -> Result:
    """Run a command that must succeed."""
    done = invoke(*args)
    if done.exception is not None:
        raise done.exception
    assert done.exit_code == 0, done.output
    return done


def error_of(*args: str) -> str:
    """Run a command that must fail with an error of ours."""
    done = invoke(*args)
    assert isinstance(done.exception, OutpaceError), done.output
    return str(done.exception)


def draft_bytes(directory: Path) -> dict[str, bytes]:
    names = ("config.json", "model.safetensors")
    return {name: (directory / name).read_bytes() for name in names}


def record_of(directory: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((directory / "training.json").read_text())
    return values


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_trained_and_drafts(
    trained: Callable[[str], Path], target: Path, kind: str
) -> None:
    directory = trained(kind)
    assert detect_kind(directory) == METHODS[kind]
    assert not directory.with_name(f"{directory.name}.work").exists()
    params = SamplingParams(temperature=0, max_tokens=12)
    config = speculative_config(directory, num_speculative_tokens=2)
    with LLM(str(target), speculative_config=config, threads=1) as llm:
        (plain,) = llm.generate("hello", params, speculative=False)
        (drafted,) = llm.generate("hello", params)
    assert drafted.outputs[0].token_ids == plain.outputs[0].token_ids
    assert drafted.stats.num_draft_tokens > 0
    assert drafted.stats.num_drafter_errors == 0


@pytest.mark.parametrize("kind", [KINDS[0], *ALL_KINDS])
def test_a_draft_says_where_it_comes_from(
    trained: Callable[[str], Path], target: Path, kind: str
) -> None:
    directory = trained(kind)
    record, card = record_of(directory), (directory / "README.md").read_text()
    with plain_llm(str(target), threads=1) as llm:
        fingerprint = llm.tokenizer.fingerprint()
    assert record["target"]["tokenizer_fingerprint"] == fingerprint
    assert record["target"]["name"] == "target"
    bound = json.loads((directory / "config.json").read_text())["outpace"]
    assert bound["target_fingerprint"] == record["target"]["fingerprint"]
    sources = {row["source"]: row for row in record["data"]["sources"]}
    assert sources["source 0"] == {
        "source": "source 0",
        "license": "CC0-1.0",
        "answers": 8,
        "answer_tokens": sources["source 0"]["answer_tokens"],
    }
    assert sum(row["answer_tokens"] for row in sources.values()) == record["data"]["answer_tokens"]
    assert record["training"]["steps"] == 4
    assert set(record["after"]) >= {"held out"}
    for said in ("CC0-1.0", fingerprint, record["target"]["fingerprint"], "K = 1"):
        assert said in card
    assert str(target.parent) not in card + json.dumps(record)


@pytest.mark.parametrize("kind", [KINDS[0], *ALL_KINDS])
@pytest.mark.parametrize(("method", "calls"), [("counted", 6), ("trained", 2)])
def test_a_killed_run_goes_on_to_the_same_draft(
    trained: Callable[[str], Path],
    folder: Path,
    target: Path,
    prompts: Path,
    kind: str,
    method: str,
    calls: int,
) -> None:
    """counted: while it generates answers; trained: in the third step of four."""
    out = folder / f"killed-{kind}-{method}"
    args = train_args(kind, target, out, "--prompts", str(prompts))
    run_killed(method, calls, args)
    work = out.with_name(f"{out.name}.work")
    num_answers = len((work / "answers.jsonl").read_text().splitlines())
    if method == "counted":
        assert 0 < num_answers < 16
    else:
        assert (work / "training" / "checkpoint.pt").exists()
    assert not out.exists()
    run(*args)
    assert draft_bytes(out) == draft_bytes(trained(kind))
    assert record_of(out)["after"] == record_of(trained(kind))["after"]


def test_another_seed_gives_another_draft(
    trained: Callable[[str], Path], folder: Path, target: Path, prompts: Path
) -> None:
    """What the comparisons above would see."""
    out = folder / "other-seed"
    run(*train_args("eagle3", target, out, "--prompts", str(prompts), "--seed", "1"))
    assert draft_bytes(out) != draft_bytes(trained("eagle3"))


def test_an_interrupted_run_says_how_to_go_on(
    folder: Path, target: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from outpace.cli.training_progress import TrainingProgress

    out = folder / "interrupted"
    args = train_args("medusa", target, out, "--prompts", str(prompts))

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(TrainingProgress, "trained", stop)
        done = invoke(*args)
    assert done.exit_code != 0
    assert "give the same command again" in done.output
    assert not out.exists()
    assert f"going on with the run in {out}.work" in " ".join(run(*args).output.split())
    assert (out / "model.safetensors").exists()


def test_a_work_directory_of_another_run_is_refused(
    folder: Path, target: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from outpace.training import recipe

    out = folder / "mismatched"
    args = train_args("medusa", target, out, "--prompts", str(prompts))

    def fail(*_: object, **__: object) -> None:
        raise OutpaceError("stopped here")

    with monkeypatch.context() as patched:
        patched.setattr(recipe, "train", fail)
        assert error_of(*args) == "stopped here"
    said = error_of(*args, "--loss", "ce")
    assert "draft.loss 'kl'" in said
    assert "draft.loss 'ce'" in said
    assert "data.prompts.1.sha256" not in said
    other = prompts_file(folder / "other.jsonl", 9)
    said = error_of(*train_args("medusa", target, out, "--prompts", str(other)))
    assert "data.prompts.1.sha256" in said
    assert "draft.kind 'eagle3'" in error_of(
        *train_args("eagle3", target, out, "--prompts", str(prompts))
    )
    run(*args)


def test_a_directory_with_something_in_it_is_refused(
    trained: Callable[[str], Path], target: Path, prompts: Path
) -> None:
    directory = trained("eagle3")
    before = draft_bytes(directory)
    said = error_of(*train_args("eagle3", target, directory, "--prompts", str(prompts)))
    assert "is there already" in said
    assert draft_bytes(directory) == before


def test_contaminated_prompts_are_refused_or_dropped(folder: Path, target: Path) -> None:
    question = "how many marbles does the tall boy from the green house next door have left"
    prompts = prompts_file(folder / "contaminated.jsonl")
    with prompts.open("a") as file:
        file.write(json.dumps({"prompt": f"Please tell me {question} today"}) + "\n")
    benchmark = folder / "benchmark.jsonl"
    benchmark.write_text(json.dumps({"prompt": f"Say {question}, and why"}) + "\n")
    out = folder / "clean"
    args = train_args("medusa", target, out, "--prompts", str(prompts))
    args += ["--benchmark", str(benchmark)]
    said = error_of(*args)
    assert "1 prompt shares 13 words in a row" in said
    assert "benchmark.jsonl" in said
    assert not out.with_name("clean.work").exists()
    run(*args, "--drop-contaminated")
    data = record_of(out)["data"]
    assert data["checked_against"] == ["benchmark.jsonl"]
    assert "1 prompt shares" in data["left_out"]
    assert data["answers"] == 16


def test_given_answers_are_taken_as_they_are(folder: Path, target: Path) -> None:
    answers = folder / "answers.jsonl"
    rows = [{"prompt": f"Number {i}", "answer": f"It is number {i}."} for i in range(12)]
    answers.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = folder / "from-answers"
    run(*train_args("medusa", target, out, "--answers", str(answers), "--keep-data"))
    data = record_of(out)["data"]
    assert data["answers"] == 12
    assert data["answers_given"] == ["answers.jsonl"]
    assert data["sources"][0]["license"] == "not stated"
    work = out.with_name("from-answers.work")
    assert (work / "features" / "sequences.jsonl").exists()
    assert not (work / "answers.jsonl").exists()


def test_answers_that_were_kept_can_be_given(
    folder: Path, target: Path, prompts: Path, trained: Callable[[str], Path]
) -> None:
    """The same answers give the same draft, whether generated or given."""
    kept = folder / "kept"
    run(*train_args("medusa", target, kept, "--prompts", str(prompts), "--keep-data"))
    out = folder / "given"
    run(*train_args("medusa", target, out, "--answers", str(folder / "kept.work/answers.jsonl")))
    assert draft_bytes(out) == draft_bytes(kept) == draft_bytes(trained("medusa"))
    assert record_of(out)["data"]["sources"] == record_of(kept)["data"]["sources"]


@pytest.mark.parametrize("kind", [KINDS[0], *ALL_KINDS])
def test_going_on_from_a_draft_reports_before_and_after(
    trained: Callable[[str], Path], folder: Path, target: Path, prompts: Path, kind: str
) -> None:
    out = folder / f"adapted-{kind}"
    domain = prompts_file(folder / f"domain-{kind}.jsonl", subject="law")
    args = train_args(kind, target, out, "--prompts", str(domain), "--init", str(trained(kind)))
    done = run(*args, "--general-prompts", str(prompts), "--json")
    record = json.loads(done.stdout.splitlines()[-1])
    assert record["out"] == str(out)
    assert record["draft"]["init"] == f"trained-{kind}"
    for when in ("before", "after"):
        assert {"held out", "general"} <= set(record[when])
    assert record["before"]["held out"] != record["after"]["held out"]
    assert "general, before" in (out / "README.md").read_text()


def test_a_draft_of_another_kind_is_no_start(
    trained: Callable[[str], Path], folder: Path, target: Path, prompts: Path
) -> None:
    args = train_args("medusa", target, folder / "wrong-start", "--prompts", str(prompts))
    said = error_of(*args, "--init", str(trained("eagle3")))
    assert "holds a draft for method 'eagle3'" in said
    assert not (folder / "wrong-start.work").exists()


@pytest.mark.parametrize(
    ("kind", "more", "said"),
    [
        ("eagle3", ["--intermediate-size", "8"], "intermediate_size cannot be chosen"),
        ("medusa", ["--num-heads", "5"], "num_heads cannot be chosen"),
        ("early-exit", ["--layer", "9"], "one of its layers 1 to 1, got 9"),
    ],
)
def test_what_a_start_has_decided_cannot_be_chosen(
    trained: Callable[[str], Path],
    folder: Path,
    target: Path,
    prompts: Path,
    kind: str,
    more: list[str],
    said: str,
) -> None:
    out = folder / f"chosen-{kind}"
    args = train_args(kind, target, out, "--prompts", str(prompts))
    assert said in error_of(*args, "--init", str(trained(kind)), *more)
    assert not out.with_name(f"{out.name}.work").exists()


def test_heads_that_cannot_be_shared_are_refused_before_anything_is_run(
    folder: Path, target: Path, prompts: Path
) -> None:
    args = train_args("eagle3", target, folder / "unshared", "--prompts", str(prompts))
    assert "4 heads cannot share 3" in error_of(*args, "--num-kv-heads", "3")
    assert not (folder / "unshared.work").exists()


def test_an_output_head_that_was_trained_is_trained_on(
    folder: Path, target: Path, prompts: Path
) -> None:
    """Without being asked for again; the target's rows would take its place otherwise."""
    first, second = folder / "own-head", folder / "own-head-on"
    given = ("--prompts", str(prompts))
    run(*train_args("eagle3", target, first, *given, "--train-head"))
    run(*train_args("eagle3", target, second, *given, "--init", str(first)))
    for draft in (first, second):
        assert json.loads((draft / "config.json").read_text())["outpace"]["lm_head"] == "stored"


def test_a_directory_without_a_name_is_no_place_for_a_draft(target: Path, prompts: Path) -> None:
    args = train_args("eagle3", target, Path("."), "--prompts", str(prompts))
    assert "needs a directory of its own" in error_of(*args)


@pytest.mark.parametrize("kind", [KINDS[0], *ALL_KINDS])
def test_a_draft_is_evaluated(
    trained: Callable[[str], Path], target: Path, prompts: Path, kind: str
) -> None:
    args = ["evaluate-draft", str(trained(kind)), "--model", str(target)]
    args += ["--prompts", str(prompts), "--num-prompts", "3", "--max-tokens", "9"]
    args += ["--num-speculative-tokens", "1-2", "--threads", "1"]
    table = run(*args).output
    for said in (f"{METHODS[kind]}, by draft length K", "category 0", "K = 2", "measured"):
        assert said in table
    found = json.loads(run(*args, "--json").stdout)
    assert found["method"] == METHODS[kind]
    assert found["num_questions"] == 3
    assert found["num_different"] == 0
    assert set(found["acceptance_by_category"]) == {"category 0", "category 1"}
    assert [row["num_speculative_tokens"] for row in found["lengths"]] == [1, 2]
    for row in found["lengths"]:
        assert row["acceptance_length"] >= 1.0
        assert set(row["by_category"]) == {"category 0", "category 1"}
        steps = row["num_speculative_tokens"] * row["draft_cost"] + row["pass_cost"]
        assert row["predicted_ratio"] <= 3 / steps + 1e-9
        assert row["measured_ratio"] > 0
