"""The benchmark of the server: its arithmetic on made-up figures, its clients against scripted
servers, and tiny real runs."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import servers
from model_files import write_gguf

from outpace import LLM
from outpace.errors import OutpaceError
from outpace.measure import prompts

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@dataclass(frozen=True)
class Harness:
    """The benchmark's modules, which are no part of the package, and the script itself."""

    client: ModuleType
    options: ModuleType
    prompts: ModuleType
    results: ModuleType
    server: ModuleType
    summary: ModuleType
    script: ModuleType


@pytest.fixture(scope="module")
def harness() -> Iterator[Harness]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        import serve
        from harness.serve import client, options, results, server, summary

        yield Harness(client, options, prompts, results, server, summary, serve)
        sys.modules.pop("serve")


def make_run(
    harness: Harness,
    method: str,
    prompt: str,
    total_s: float,
    *,
    num_clients: int = 2,
    round_index: int = 0,
    text: str = "abc",
) -> Any:
    """Two answers, of 1 and of 11 tokens, the first token after a tenth of the time."""
    passes = 1 if method == "plain" else 2
    answers = tuple(
        harness.results.Answer(
            f"{prompt} {n}", "qa", text, 5, 0, n, n // passes or 1, total_s / 10, total_s
        )
        for n in (1, 11)
    )
    run: Any = harness.results.LoadRun(
        num_clients, round_index, prompt, method, answers, total_s, client_s=total_s / 50
    )
    return run


def rows_of(harness: Harness, runs: list[Any]) -> list[dict[str, Any]]:
    results = harness.results.Results(subject="auto", runs=runs)
    rows: list[dict[str, Any]] = harness.summary.summarise(results)["rows"]
    return rows


def test_methods_are_compared_set_by_set(harness: Harness) -> None:
    runs = []
    for index, prompt in enumerate("abcd"):
        for round_index, slow in enumerate((1.0, 1.0, 5.0)):  # of three rounds the median counts
            runs.append(make_run(harness, "plain", prompt, 2.0 + index, round_index=round_index))
            total_s = slow * (1.0 + index / 2)
            runs.append(make_run(harness, "auto", prompt, total_s, round_index=round_index))
    plain, auto = rows_of(harness, runs)
    assert [row["method"] for row in (plain, auto)] == ["plain", "auto"]
    assert (plain["num_sets"], plain["num_rounds"], plain["num_requests"]) == (4, 3, 24)
    assert plain["ratio"] is None
    assert auto["ratio"].mean == pytest.approx(2.0)
    assert auto["ratio"].low == pytest.approx(2.0)
    assert plain["tokens_per_s"] == pytest.approx((4 + 3) / 2)
    assert plain["requests_per_s"] == pytest.approx((2 / 3 + 2 / 4) / 2)
    assert plain["acceptance_length"] == 1.0
    assert auto["acceptance_length"] == pytest.approx(12 / 6)
    assert plain["client_share"] == pytest.approx(0.02)
    assert (auto["num_equal"], auto["num_compared"]) == (24, 24)


def test_latencies_are_percentiles_of_all_requests(harness: Harness) -> None:
    runs = [make_run(harness, "plain", str(n), 0.1 * n) for n in range(1, 101)]
    (row,) = rows_of(harness, runs)
    assert row["total_s"]["p50"] == pytest.approx(5.05, rel=0.01)
    assert row["total_s"]["p95"] == pytest.approx(9.5, rel=0.01)
    assert row["total_s"]["p99"] == pytest.approx(9.9, rel=0.01)
    assert row["ttft_s"]["p95"] == pytest.approx(0.95, rel=0.01)
    # Of an answer of one token there is no time per further token.
    assert row["token_s"]["p50"] == pytest.approx(5.05 * 0.9 / 10, rel=0.01)
    assert harness.summary.percentiles([None]) is None


def test_numbers_of_clients_are_kept_apart(harness: Harness) -> None:
    runs = [
        make_run(harness, method, "a", total_s, num_clients=num_clients)
        for num_clients, plain_s, auto_s in ((4, 1.0, 1.0), (1, 3.0, 1.0))
        for method, total_s in (("plain", plain_s), ("auto", auto_s))
    ]
    rows = rows_of(harness, runs[:-1])
    told = [(row["num_clients"], row["method"]) for row in rows]
    assert told == [(1, "plain"), (4, "plain"), (4, "auto")]
    ratios = {row["num_clients"]: row["ratio"] for row in rows_of(harness, runs)[1::2]}
    assert {clients: ratio.mean for clients, ratio in ratios.items()} == pytest.approx(
        {1: 3.0, 4: 1.0}
    )
    assert ratios[1].low is None  # too few sets for an interval


def test_texts_that_differ_are_counted(harness: Harness) -> None:
    runs = [
        make_run(harness, "plain", "a", 1.0),
        make_run(harness, "auto", "a", 1.0),
        make_run(harness, "plain", "b", 1.0, text="The end."),
        make_run(harness, "auto", "b", 1.0, text="The old."),
        make_run(harness, "auto", "c", 1.0),  # interrupted: without plain decoding's
    ]
    row = rows_of(harness, runs)[1]
    assert (row["num_equal"], row["num_compared"], row["first_difference"]) == (2, 4, 4)


USAGE = {
    "prompt_tokens": 3,
    "completion_tokens": 4,
    "prompt_tokens_details": {"cached_tokens": 0},
    "speculation": {"num_target_passes": 2},
}
EVENTS = [
    {"choices": [{"text": "Grüße"}]},
    {"choices": [{"text": ", 世界"}]},
    {"choices": [{"text": "", "finish_reason": "length"}]},
    {"choices": [], "usage": USAGE},
]
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: x\r\nTransfer-Encoding: chunked\r\n\r\n"


def events(*values: Any) -> bytes:
    """As server-sent events; a text is one as it is."""
    texts = [v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for v in values]
    return "".join(f"data: {text}\n\n" for text in texts).encode()


def chunked(body: bytes, size: int) -> bytes:
    parts = [body[i : i + size] for i in range(0, len(body), size)]
    return STREAM_HEAD + b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in (*parts, b""))


@asynccontextmanager
async def scripted(respond: Callable[[dict[str, Any]], Any]) -> AsyncIterator[tuple[str, int]]:
    """The address of a server that answers every request with the bytes, or the coroutine that
    gives them, that `respond` makes of its body; it closes the connection after no bytes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n") if not reader.at_eof() else b"":
            length = int(head.lower().partition(b"content-length: ")[2].split()[0])
            response = respond(json.loads(await reader.readexactly(length)))
            if asyncio.iscoroutine(response):
                response = await response
            # In small pieces, so that nothing comes as it was sent.
            for i in range(0, len(response), 7):
                writer.write(response[i : i + 7])
                await writer.drain()
            if not response.endswith(b"0\r\n\r\n"):
                break
        writer.close()

    async def until_the_client_leaves(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            await serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(until_the_client_leaves, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()
    finally:
        server.close()


def job(harness: Harness, label: str = "a") -> Any:
    return harness.client.Job(harness.prompts.BenchPrompt(label, "qa", (1, 2, 3)), {"is": label})


@pytest.mark.parametrize("size", [1, 5, 100, 10_000])
async def test_an_answer_is_read_however_it_is_cut(harness: Harness, size: int) -> None:
    response = chunked(events(*EVENTS, "[DONE]"), size)
    async with scripted(lambda body: response) as address:
        answers, total_s, client_s = await harness.client.ask_all(address, [job(harness)] * 2, 1)
    assert [answer.text for answer in answers] == ["Grüße, 世界"] * 2
    (answer, _) = answers
    assert (answer.label, answer.num_prompt, answer.num_tokens) == ("a", 3, 4)
    assert (answer.num_passes, answer.num_cached) == (2, 0)
    assert 0 < answer.ttft_s <= answer.total_s <= total_s
    assert answer.token_s == pytest.approx((answer.total_s - answer.ttft_s) / 3)
    assert client_s >= 0


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (
            b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 9\r\n\r\ncome back",
            "refused: http/1.1 429 too many requests come back",
        ),
        (chunked(events(*EVENTS), 20), "without \\[DONE\\]"),
        (chunked(events(*EVENTS[:-1], "[DONE]"), 20), "without text or usage"),
        (chunked(events(EVENTS[-1], "[DONE]"), 20), "without text or usage"),
        (
            chunked(events(EVENTS[0], {"error": {"message": "the engine failed"}}), 20),
            "broke off: the engine failed",
        ),
        (chunked(events(*EVENTS, "[DONE]"), 20)[:-20], "broke off: IncompleteRead"),
        (chunked(events("{", "[DONE]"), 20), "broke off: JSONDecodeError"),
        (b"", "broke off: IncompleteRead"),
    ],
    ids=["refused", "no end", "no usage", "no text", "error", "cut", "no JSON", "nothing"],
)
async def test_anything_but_an_answer_fails_the_run(
    harness: Harness, response: bytes, words: str
) -> None:
    def respond(body: dict[str, Any]) -> bytes:
        return response if body["is"] == "bad" else chunked(events(*EVENTS, "[DONE]"), 20)

    jobs = [job(harness, label) for label in ("a", "bad", "c")]
    async with scripted(respond) as address:
        with pytest.raises(harness.client.RequestFailedError, match=words):
            await harness.client.ask_all(address, jobs, 2)


@pytest.mark.parametrize("num_clients", [1, 3, 12])
async def test_each_client_has_one_request_at_a_time(harness: Harness, num_clients: int) -> None:
    running, most = 0, 0

    async def respond(body: dict[str, Any]) -> bytes:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01 if body["is"] == "3" else 0.001)
        running -= 1
        return chunked(events({"choices": [{"text": body["is"]}]}, EVENTS[-1], "[DONE]"), 50)

    jobs = [job(harness, str(i)) for i in range(9)]
    async with scripted(lambda body: respond(body)) as address:
        answers, *_ = await harness.client.ask_all(address, jobs, num_clients)
    assert [answer.text for answer in answers] == [str(i) for i in range(9)]
    assert most == min(num_clients, 9)


def test_a_server_is_found_and_ended(harness: Harness) -> None:
    program = (
        "import time; print('loading'); print('it is served at http://127.0.0.1:80', flush=True); "
        "time.sleep(60)"
    )
    processes, popen = [], harness.server.subprocess.Popen

    class Noted(popen):  # type: ignore[misc, valid-type]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            processes.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(harness.server.subprocess, "Popen", Noted)
        with harness.server.serving(["-c", program]) as address:
            assert address == ("127.0.0.1", 80)
            assert processes[0].poll() is None
    assert processes[0].poll() is not None


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("import sys; sys.exit('warning: no\\nError: the port is taken')", "the port is taken"),
        ("raise SystemExit(3)", "exit status 3"),
    ],
)
def test_a_server_that_does_not_start_is_told(harness: Harness, program: str, words: str) -> None:
    with (
        pytest.raises(OutpaceError, match=f"outpace serve did not start: {words}"),
        harness.server.serving(["-c", program]),
    ):
        pass


def test_options_are_parsed_and_refused(
    harness: Harness, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options = harness.options.parse_options("", ["--clients", "3,1", "--threads", "2"])
    assert options.clients == (3, 1)
    words = harness.server.arguments_of(options, 900)
    for flag, value in (("--max-model-len", "900"), ("--threads", "2"), ("--method", "auto")):
        assert words[words.index(flag) + 1] == value
    quick = harness.options.parse_options("", ["--quick", "--max-tokens", "5"])
    assert (quick.max_tokens, quick.minutes, quick.clients) == (5, 0, (1, 2))
    assert "--threads" not in harness.server.arguments_of(quick, 900)
    for arguments, told in (
        (["--clients", "0"], "0 is not at least 1"),
        (["--json", str(tmp_path / "no" / "a.json")], "there is no directory"),
    ):
        with pytest.raises(SystemExit):
            harness.options.parse_options("", arguments)
        assert told in capsys.readouterr().err


RunScript = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "model.gguf", metadata={"llama.context_length": 1024})


@pytest.fixture
def run_script(
    harness: Harness, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> RunScript:
    """Runs the script on a tiny model and two prompts, in this process."""
    prompts = tmp_path / "prompts.jsonl"
    rows = [
        {"question_id": 1, "category": "writing", "turns": ["Say a.", "Again."]},
        {"question_id": 2, "category": "qa", "turns": ["What is b?"]},
    ]
    prompts.write_text("\n".join(map(json.dumps, rows)))

    def run(*arguments: str) -> tuple[int, dict[str, Any]]:
        file = tmp_path / "results.json"
        command = f"serve.py --model {model} --prompts {prompts} --json {file} --quick "
        command += "--dtype float64 --model-impl torch --max-tokens 6 "
        monkeypatch.setattr(sys, "argv", [*command.split(), *arguments])
        status = harness.script.main()
        return status, json.loads(file.read_text()) if file.exists() else {}

    return run


@pytest.fixture
def server_here(harness: Harness, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server of the script is one in this process, with any model name."""

    @contextmanager
    def serving(arguments: list[str]) -> Iterator[tuple[str, int]]:
        llm = LLM(str(model), dtype="float64", max_model_len=200)
        with servers.serving(llm, served_model_names=(harness.server.MODEL_NAME,)) as running:
            yield "127.0.0.1", running.port

    monkeypatch.setattr(harness.script, "serving", serving)


def test_tiny_run_measures_a_server_of_its_own(
    run_script: RunScript, capsys: pytest.CaptureFixture[str]
) -> None:
    status, document = run_script()
    shown = capsys.readouterr().out
    assert status == 0, shown
    assert "Requests of several clients at once" in shown
    results = document["results"]
    assert results["complete"]
    assert [(run["num_clients"], run["method"]) for run in results["runs"]] == [
        (1, "plain"),
        (1, "auto"),
        (2, "auto"),
        (2, "plain"),
    ]
    for run in results["runs"]:
        assert [answer["category"] for answer in run["answers"]].count("qa") == 1
        assert all(answer["num_cached"] == 0 for answer in run["answers"])
        assert all(0 < answer["num_tokens"] <= 6 for answer in run["answers"])
    rows = document["summary"]["rows"]
    assert [row["acceptance_length"] for row in rows[::2]] == [1.0, 1.0]
    # In float64 rounding decides nothing, so nothing may differ.
    assert [(row["num_equal"], row["num_compared"]) for row in rows] == [(2, 2)] * 4


@pytest.mark.usefixtures("server_here")
def test_rounds_go_on_while_there_is_time(run_script: RunScript) -> None:
    status, document = run_script("--minutes", "1", "--sets", "2", "--repeats", "2")
    assert status == 0
    runs = document["results"]["runs"]
    assert [(run["round"], run["prompt"]) for run in runs if run["num_clients"] == 1][::2] == [
        (0, "2 requests, 0"),
        (0, "2 requests, 1"),
        (1, "2 requests, 0"),
        (1, "2 requests, 1"),
    ]
    # Nobody always comes first.
    assert {run["method"] for run in runs[::4]} == {"plain", "auto"}


@pytest.mark.usefixtures("server_here")
@pytest.mark.parametrize(
    ("failure", "expected", "words"),
    [
        (KeyboardInterrupt(), 130, "interrupted: "),
        (RuntimeError("the server refused"), 1, "FAILED: RuntimeError: the server refused"),
    ],
)
def test_an_early_end_leaves_what_was_measured(
    harness: Harness,
    run_script: RunScript,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    failure: BaseException,
    expected: int,
    words: str,
) -> None:
    ask_all, calls = harness.script.ask_all, []

    async def interrupted(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 4 + 4:  # four of them warm up
            raise failure
        return await ask_all(*arguments)

    monkeypatch.setattr(harness.script, "ask_all", interrupted)
    status, document = run_script()
    assert status == expected
    results = document["results"]
    assert not results["complete"]
    assert any(note.startswith(words) for note in results["notes"])
    assert [run["method"] for run in results["runs"]] == ["plain", "auto", "auto"]
    assert "Requests of several" in capsys.readouterr().out


def test_a_server_that_does_not_start_ends_the_script_in_one_line(
    harness: Harness,
    run_script: RunScript,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["-c", "import sys; sys.exit('error: no such method')"]
    monkeypatch.setattr(harness.script, "arguments_of", lambda *_: arguments)
    status, document = run_script()
    captured = capsys.readouterr()
    assert (status, document) == (2, {})
    (line,) = [line for line in captured.err.splitlines() if line.startswith("error:")]
    assert line == "error: outpace serve did not start: no such method"
