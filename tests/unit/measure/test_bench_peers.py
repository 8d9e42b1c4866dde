"""Peers behind a process: what they answer, how it is timed, and what their accidents do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from gguf import GGMLQuantizationType as Kind
from model_files import write_gguf, write_hf

from outpace import SamplingParams
from outpace.errors import OptionError
from outpace.measure.bench.peers import base, llama_cpp, transformers, weights
from outpace.measure.bench.peers.base import PeerError, PeerSubject, check_installed, fastest
from outpace.measure.bench.peers.process import PeerProcess, ProcessPeer, timing_of
from outpace.measure.bench.peers.worker import Request, StepClock
from outpace.measure.kept import Answer, BatchTiming

END = 105
GREEDY = SamplingParams(temperature=0.0, max_tokens=4)


def request(**values: Any) -> Request:
    known: dict[str, Any] = {
        "token_ids": [100],
        "max_tokens": 4,
        "end_token_ids": [END],
        "temperature": 0.0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "seed": None,
    }
    return Request(**known | values)


def subject(path: Path, **values: Any) -> PeerSubject:
    known: dict[str, Any] = {
        "path": path,
        "dtype": "q4_1",
        "device": "cpu",
        "end_token_ids": (END,),
        "max_model_len": 64,
        "max_batch": 1,
        "tuning_prompts": ((100,),),
        "threads": 1,
        "work_dir": path.parent / "made",
        "note": lambda text: None,
    }
    return PeerSubject(**known | values)


@pytest.fixture(scope="module")
def process() -> Iterator[PeerProcess]:
    with ExitStack() as closing:
        yield start(closing, step_len=3)


def start(closing: ExitStack, **setup: Any) -> PeerProcess:
    return PeerProcess("fake", "fake_peer:FakeEngine", setup, threads=3, closing=closing)


def peer(process: PeerProcess, name: str = "fake plain", **options: Any) -> ProcessPeer:
    return ProcessPeer(
        name,
        process,
        options,
        end_token_ids=[END],
        max_model_len=20,
        greedy_only=True,
        max_batch=2,
    )


def test_steps_become_a_batch() -> None:
    steps = [[(0.5, [1, 2]), (1.5, [3])], [(1.0, [4]), (2.0, [5, 6]), (3.0, [7])]]
    timing = timing_of(steps)
    assert [answer.token_ids for answer in timing.answers] == [[1, 2, 3], [4, 5, 6, 7]]
    assert [answer.first_s for answer in timing.answers] == [0.5, 1.0]
    # From 1.0, when both had begun: [3], [5, 6] and [7].
    assert (timing.total_s, timing.window_s, timing.window_tokens) == (3.0, 2.0, 4)
    assert timing.decided is None


def test_the_clock_leaves_out_what_follows_the_end() -> None:
    clock = StepClock([request(), request(max_tokens=3), request(end_token_ids=[])])
    for index in range(3):
        clock.add(index, [101, 102])
        assert not clock.has_ended(index)
        clock.add(index, [103, END, 104])
        clock.add(index, [106])
    tokens = [[token for _, step in own for token in step] for own in clock.steps]
    assert tokens == [[101, 102, 103, END], [101, 102, 103], [101, 102, 103, END]]
    assert all(clock.has_ended(index) for index in range(3))
    assert [len(own) for own in clock.steps] == [2, 2, 2]


def test_answers_come_back_from_the_process(process: PeerProcess) -> None:
    timing = peer(process, step_s=0.002).generate_batch([[7, 100], [10]], [GREEDY] * 2)
    assert [answer.token_ids for answer in timing.answers] == [
        [101, 102, 103, 104],
        [11, 12, 13, 14],
    ]
    first, last = timing.answers[0].first_s, timing.total_s
    assert 0.002 <= first < last
    assert timing.window_tokens == 2


def test_one_prompt_comes_with_its_steps(process: PeerProcess) -> None:
    timing = peer(process, step_s=0.002).generate([100], GREEDY)
    assert (timing.token_ids, timing.step_lens) == ([101, 102, 103, 104], [3, 1])
    assert 0.002 <= timing.ttft_s < timing.total_s


@pytest.mark.parametrize(
    ("params", "prompt", "expected"),
    [
        (SamplingParams(temperature=0.0, max_tokens=9), [100], [101, 102, 103, 104, END]),
        (SamplingParams(temperature=0.0, max_tokens=7, ignore_eos=True), [100], [*range(101, 108)]),
        (SamplingParams(temperature=0.0, max_tokens=9, stop_token_ids=(12,)), [10], [11, 12]),
        # The context has 20 places.
        (SamplingParams(temperature=0.0, max_tokens=None), [10] * 18, [11, 12]),
        (SamplingParams(temperature=0.0, max_tokens=50), [10] * 18, [11, 12]),
    ],
)
def test_answers_end_where_ours_do(
    process: PeerProcess, params: SamplingParams, prompt: list[int], expected: list[int]
) -> None:
    timing = peer(process).generate_batch([prompt], [params])
    assert timing.answers[0].token_ids == expected


def test_a_peer_is_given_its_threads_and_nothing_to_download(process: PeerProcess) -> None:
    assert process.call("environment", name="OMP_NUM_THREADS") == "3"
    assert process.call("environment", name="HF_HUB_OFFLINE") == "1"
    assert process.call("process_id") != os.getpid()


def test_what_an_engine_prints_is_not_taken_for_an_answer(process: PeerProcess) -> None:
    timing = peer(process, accident="chatter").generate_batch([[100]], [GREEDY])
    assert timing.answers[0].token_ids == [101, 102, 103, 104]


def test_an_error_is_told_and_the_peer_goes_on(process: PeerProcess) -> None:
    with pytest.raises(PeerError, match="fake failed: RuntimeError: out of memory"):
        peer(process, accident="error").generate_batch([[100]], [GREEDY])
    assert peer(process).generate_batch([[100]], [GREEDY]).window_tokens == 1


def test_ctrl_c_of_the_terminal_does_not_end_it(process: PeerProcess) -> None:
    os.kill(process.call("process_id"), signal.SIGINT)
    assert peer(process).generate_batch([[100]], [GREEDY]).window_tokens == 1


def test_what_cannot_be_compared_is_refused(process: PeerProcess) -> None:
    plain = peer(process)
    with pytest.raises(OptionError, match="fake plain decodes greedily"):
        plain.generate_batch([[1]], [SamplingParams(temperature=0.5)])
    with pytest.raises(OptionError, match="presence_penalty=1"):
        plain.generate_batch([[1]], [SamplingParams(temperature=0.0, presence_penalty=1.0)])
    with pytest.raises(OptionError, match="2 requests at a time, got 3"):
        plain.generate_batch([[1]] * 3, [GREEDY] * 3)


def test_a_crash_is_one_message_with_its_last_words() -> None:
    with ExitStack() as closing:
        process = start(closing)
        with pytest.raises(PeerError) as error:
            peer(process, accident="crash").generate_batch([[100]], [GREEDY])
        message = "the process of fake ended (SIGABRT): illegal instruction in kernel 7"
        assert str(error.value) == message
        with pytest.raises(PeerError, match="SIGABRT"):
            peer(process).generate_batch([[100]], [GREEDY])


def test_what_cannot_be_opened_leaves_no_process() -> None:
    ours = psutil.Process()
    before = set(ours.children())
    with ExitStack() as closing:
        with pytest.raises(PeerError, match="ValueError: no such weights"):
            start(closing, refuses=True)
        assert set(ours.children()) <= before


def test_an_interrupt_ends_what_hangs() -> None:
    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    with ExitStack() as closing:
        process = start(closing)
        running = psutil.Process(process.call("process_id"))
        old = signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        try:
            with pytest.raises(KeyboardInterrupt):
                peer(process, accident="hang").generate_batch([[100]], [GREEDY])
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, old)
        with pytest.raises(PeerError, match="interrupted"):
            peer(process).generate_batch([[100]], [GREEDY])
        assert running.is_running()
    assert not running.is_running()


_PARENT = """
from contextlib import ExitStack
from outpace.measure.bench.peers.process import PeerProcess
process = PeerProcess("fake", "fake_peer:FakeEngine", {}, threads=1, closing=ExitStack())
print(process.call("process_id"), flush=True)
process.call("sleep", seconds=600)
"""


def test_a_peer_does_not_outlive_who_asked() -> None:
    path = os.pathsep.join(sys.path)
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    ) as parent:
        assert parent.stdout is not None
        running = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    # Who adopts it may leave it a zombie.
    deadline = time.monotonic() + 60
    while running.is_running() and running.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "it goes on"
        time.sleep(0.05)


def test_closing_ends_the_process() -> None:
    with ExitStack() as closing:
        process = start(closing)
        running = psutil.Process(process.call("process_id"))
        one = peer(process)
        one.close()
        assert not running.is_running()
        with pytest.raises(PeerError):
            one.generate_batch([[100]], [GREEDY])
        one.close()


@dataclass
class TimedPeer:
    """Takes made-up times, one after another."""

    name: str
    seconds: list[float]
    fails: bool = False
    greedy_only: bool = True
    max_batch: int = 1
    calls: list[list[int]] = field(default_factory=list)

    def generate_batch(
        self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]
    ) -> BatchTiming:
        if self.fails:
            raise PeerError("broken")
        assert params[0].ignore_eos
        self.calls.append(list(prompts[0]))
        return BatchTiming([Answer([1], 0.0, None)], 0.0, self.seconds[len(self.calls) - 1])  # type: ignore[arg-type]

    def close(self) -> None:
        """Nothing is open."""


def test_the_fastest_is_chosen_after_a_warm_up() -> None:
    slow_start = TimedPeer("a", [9.0, 1.0, 1.0])
    slow = TimedPeer("b", [0.1, 3.0, 0.1])
    broken = TimedPeer("c", [], fails=True)
    notes: list[str] = []
    chosen = fastest([slow, slow_start, broken], [[1], [2]], notes.append)
    assert chosen == [slow_start]
    assert slow_start.calls == [[1], [1], [2]]
    assert notes == ["c was not measured: broken"]
    assert fastest([broken], [[1]], notes.append) == []
    assert fastest([slow], [], notes.append) == []


@pytest.mark.parametrize("name", sorted(base.PEERS))
def test_a_peer_that_is_missing_says_what_to_install(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "find_spec", lambda library: None)
    with pytest.raises(OptionError, match=f"the peer {name} needs .* install"):
        check_installed(name)


def test_an_unknown_peer_names_the_known_ones() -> None:
    with pytest.raises(OptionError, match=r"transformers, llama.cpp, openvino, vllm, got 'tgi'"):
        check_installed("tgi")


@pytest.fixture
def no_llama(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "find_spec", lambda library: None)


@pytest.mark.usefixtures("no_llama")
def test_weights_come_from_the_file_that_has_them(tmp_path: Path) -> None:
    own = write_gguf(tmp_path / "own.gguf", kind=Kind.Q8_0)
    other = write_gguf(tmp_path / "other.gguf", kind=Kind.F16)
    with ExitStack() as closing:

        def found(type_name: str, **values: Any) -> Path:
            return weights.gguf_file(subject(own, **values), type_name, closing)

        assert weights.main_format(own) == "q8_0"
        assert found("Q8_0") == own
        assert found("F16", files={"F16": other}) == other
        made = weights.made_path(own, "F16", tmp_path)
        other.rename(made)
        assert found("F16", work_dir=tmp_path) == made
        with pytest.raises(OptionError, match=r"no BF16 file of own\.gguf.*llama-cpp-python"):
            found("BF16")


def test_a_folder_is_no_gguf_file(tmp_path: Path) -> None:
    folder = write_hf(tmp_path / "model")
    assert weights.main_format(folder) is None
    with ExitStack() as closing, pytest.raises(OptionError, match=r"convert_hf_to_gguf\.py"):
        weights.gguf_file(subject(folder), "F16", closing)


def test_llama_cpp_alone_is_named_where_it_lacks_a_format(tmp_path: Path) -> None:
    notes: list[str] = []
    with ExitStack() as closing:
        odd = subject(tmp_path / "x.gguf", dtype="float64", note=notes.append)
        assert llama_cpp.open_methods(odd, closing) == []
    assert notes == ["llama.cpp was not measured: it has no format like float64"]


def test_packed_weights_are_run_as_floats_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setups: list[dict[str, Any]] = []

    def refuse(label: str, home: str, setup: dict[str, Any], **_: Any) -> PeerProcess:
        setups.append(setup)
        raise PeerError("no memory")

    monkeypatch.setattr(transformers, "PeerProcess", refuse)
    notes: list[str] = []
    with ExitStack() as closing:
        packed = subject(tmp_path / "x.gguf", note=notes.append)
        assert transformers.open_methods(packed, closing) == []
        half = subject(tmp_path / "x.gguf", dtype="float16", note=notes.append)
        assert transformers.open_methods(half, closing) == []
    assert "computes no q4_1" in notes[0]
    assert notes[1:] == ["transformers was not measured: no memory"] * 2
    assert setups[0]["dtype"] in ("bfloat16", "float32")
    assert setups[1]["dtype"] == "float16"


def test_importing_a_worker_is_light(process: PeerProcess) -> None:
    """The process of one engine must not hold the libraries of another."""
    loaded = process.call("modules", names=["torch", "outpace.engine", "outpace.params", "json"])
    assert loaded == ["json"]
