"""What runs in the workers, on stand-ins of the same shape as the engines' own interfaces."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from outpace.measure.bench.peers import llama_cpp
from outpace.measure.bench.peers import vllm as vllm_peer
from outpace.measure.bench.peers.base import PeerError, PeerSubject
from outpace.measure.bench.peers.llama_cpp import LlamaEngine
from outpace.measure.bench.peers.openvino import OpenVinoEngine
from outpace.measure.bench.peers.vllm import VllmEngine
from outpace.measure.bench.peers.worker import Request, StepClock

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]


def request(**values: Any) -> Request:
    known: dict[str, Any] = {
        "token_ids": PROMPT,
        "max_tokens": 40,
        "end_token_ids": [],
        "temperature": 0.0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "seed": None,
    }
    return Request(**known | values)


def tokens(clock: StepClock, index: int = 0) -> list[int]:
    return [token for _, step in clock.steps[index] for token in step]


def module(**values: Any) -> ModuleType:
    made = ModuleType("stand-in")
    vars(made).update(values)
    return made


def peer_subject(folder: Path, notes: list[str]) -> PeerSubject:
    return PeerSubject(
        path=folder,
        dtype="bfloat16",
        device="cpu",
        end_token_ids=(2,),
        max_model_len=64,
        max_batch=3,
        tuning_prompts=((1,),),
        threads=1,
        work_dir=folder,
        note=notes.append,
    )


# --- llama.cpp ------------------------------------------------------------------------------------


def next_token(token_ids: Sequence[int]) -> int:
    """A model of ten tokens that depends on the last three and mostly repeats itself."""
    *_, a, b, c = [0, 0, *token_ids]
    return (a + 2 * b + 3 * c) % 10 if c % 3 else (c + 1) % 10


class FakeContext:
    """A llama_context: a cache of tokens, and logits after the last ones."""

    def __init__(self, library: Any, model: Any, *, num_tokens: int, **settings: Any) -> None:
        self.settings = {"repack": model, **settings}
        self.num_decoded: list[int] = []
        self._num_tokens = num_tokens
        self._cache: list[int] = []
        self._best: list[int] = []

    def decode(self, token_ids: Sequence[int], num_logits: int) -> None:
        self.num_decoded.append(len(token_ids))
        start = len(self._cache) + len(token_ids) - num_logits
        self._cache += token_ids
        assert len(self._cache) <= self._num_tokens
        self._best = [
            next_token(self._cache[: place + 1]) for place in range(start, len(self._cache))
        ]

    def forget(self, start: int) -> None:
        assert start <= len(self._cache)
        self._cache = self._cache[:start]

    def best(self, place: int = -1) -> int:
        return self._best[place]


class ForgetfulContext(FakeContext):
    """Keeps one rejected token too many."""

    def forget(self, start: int) -> None:
        super().forget(min(start + 1, len(self._cache)) if start else 0)


@dataclass
class FakeLookup:
    """Guesses what followed the last token before, and is often wrong."""

    max_ngram_size: int
    num_pred_tokens: int

    def __call__(self, token_ids: Any) -> list[int]:
        seen = list(token_ids)
        earlier = [place for place, token in enumerate(seen[:-1]) if token == seen[-1]]
        place = earlier[0] + 1 if earlier else len(seen)
        return seen[place : place + self.num_pred_tokens]


@pytest.fixture
def llama(monkeypatch: pytest.MonkeyPatch) -> Callable[..., LlamaEngine]:
    def open_engine(context: type[FakeContext] = FakeContext, repack: bool = True) -> LlamaEngine:
        monkeypatch.setattr(
            llama_cpp, "load_library", lambda: SimpleNamespace(llama_backend_init=lambda: None)
        )
        monkeypatch.setattr(llama_cpp, "load_weights", lambda library, path, *, repack: repack)
        monkeypatch.setattr(llama_cpp, "LlamaContext", context)
        lookup = module(LlamaPromptLookupDecoding=FakeLookup)
        monkeypatch.setitem(sys.modules, "llama_cpp", module())
        monkeypatch.setitem(sys.modules, "llama_cpp.llama_speculative", lookup)
        monkeypatch.setattr(llama_cpp, "NUM_TRIED", 2)
        return LlamaEngine(path="x.gguf", threads=2, max_model_len=60, repack=repack)

    return open_engine


def plain_continuation(count: int) -> list[int]:
    token_ids = list(PROMPT)
    for _ in range(count):
        token_ids.append(next_token(token_ids))
    return token_ids[len(PROMPT) :]


def test_llama_decodes_the_same_with_and_without_lookup(
    llama: Callable[..., LlamaEngine],
) -> None:
    engine, expected = llama(), plain_continuation(40)
    plain = engine.generate([request()], {"lookup_len": 0})
    assert tokens(plain) == expected
    assert {len(step) for _, step in plain.steps[0]} == {1}
    for lookup_len in (2, 4, 8):
        drafted = engine.generate([request()], {"lookup_len": lookup_len})
        assert tokens(drafted) == expected
        assert len(drafted.steps[0]) < 40, "no draft was accepted"
    assert tokens(engine.generate([request()], {"lookup_len": 0})) == expected


class FakeProcess:
    """A peer's process that decodes at its own pace, or fails."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.is_closed = seconds, False

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize(
    ("seconds", "prompts", "measured"),
    [
        ({"F16": 2.0, "BF16": 1.0}, ((1, 2),), ["BF16"]),
        ({"F16": 1.0, "BF16": 2.0}, ((1, 2),), ["F16"]),
        ({"F16": -1.0, "BF16": 2.0}, ((1, 2),), ["BF16"]),
        ({"F16": -1.0, "BF16": -1.0}, ((1, 2),), []),
        ({"F16": 1.0, "BF16": 2.0}, (), ["F16", "BF16"]),
    ],
)
def test_llama_is_measured_on_its_faster_file(
    seconds: dict[str, float],
    prompts: tuple[tuple[int, ...], ...],
    measured: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A negative number of seconds: it fails."""
    processes = {name: FakeProcess(value) for name, value in seconds.items()}

    @dataclass
    class FakePeer:
        name: str
        process: FakeProcess

        def generate_batch(self, prompts: Any, params: Any) -> Any:
            if self.process.seconds < 0:
                raise PeerError("it fell over")
            return SimpleNamespace(window_s=self.process.seconds)

    def started(subject: Any, label: str, type_name: str, closing: Any) -> FakeProcess:
        return processes[type_name]

    def peer(label: str, process: FakeProcess, *args: Any, **named: Any) -> FakePeer:
        return FakePeer(label, process)

    monkeypatch.setattr(llama_cpp, "_started", started)
    monkeypatch.setattr(llama_cpp, "ProcessPeer", peer)
    notes: list[str] = []
    subject = replace(peer_subject(tmp_path, notes), tuning_prompts=prompts)
    with ExitStack() as closing:
        peers = llama_cpp.open_methods(subject, closing)
    plain = [each.name for each in peers if each.name.endswith("plain")]
    assert plain == [f"llama.cpp {name} plain" for name in measured]
    assert {name for name, process in processes.items() if not process.is_closed} == set(measured)
    assert len({note.split(":")[0] for note in notes}) == len(notes)


def test_a_cache_that_keeps_rejected_drafts_shows(llama: Callable[..., LlamaEngine]) -> None:
    broken = llama(ForgetfulContext).generate([request()], {"lookup_len": 4})
    assert tokens(broken) != plain_continuation(40)


def test_llama_tries_every_setting_for_every_number_of_rows(
    llama: Callable[..., LlamaEngine],
) -> None:
    engine = llama()
    engine.generate([request(max_tokens=1)], {"lookup_len": 0})
    engine.generate([request(max_tokens=1)], {"lookup_len": 4})
    contexts: list[Any] = engine._contexts
    assert [(each.settings["repack"], each.settings["flash"]) for each in contexts] == [
        (True, False),
        (True, True),
        (False, False),
        (False, True),
    ]
    assert all(each.num_decoded.count(1) == 2 for each in contexts)
    assert all(each.num_decoded.count(5) == 2 for each in contexts)
    assert len(llama(repack=False).probe()) == 2


# --- vLLM -----------------------------------------------------------------------------------------


@dataclass
class FakeVllm:
    """vLLM's engine: every step gives each request two tokens, counting on from its prompt."""

    engine_args: Any
    running: dict[str, tuple[list[int], Any]] = field(default_factory=dict)
    outputs: dict[str, list[int]] = field(default_factory=dict)

    @classmethod
    def from_engine_args(cls, engine_args: Any) -> FakeVllm:
        return cls(engine_args)

    def add_request(self, request_id: str, prompt: Any, params: Any) -> None:
        assert request_id not in self.outputs, "the name of a request was used before"
        self.running[request_id] = (list(prompt["prompt_token_ids"]), params)
        self.outputs[request_id] = []

    def has_unfinished_requests(self) -> bool:
        return bool(self.running)

    def step(self) -> list[Any]:
        results = []
        for request_id, (token_ids, params) in list(self.running.items()):
            own = self.outputs[request_id]
            for _ in range(2):
                own.append((token_ids[-1] + len(own) + 1) % 100)
                if len(own) == params.max_tokens or own[-1] in params.stop_token_ids:
                    del self.running[request_id]
                    break
            output = SimpleNamespace(token_ids=list(own))
            results.append(SimpleNamespace(request_id=request_id, outputs=[output]))
        # Requests of the same step come in no particular order.
        return results[::-1]


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> VllmEngine:
    kinds = SimpleNamespace(CUMULATIVE="cumulative")
    made = module(
        EngineArgs=lambda **values: SimpleNamespace(**values),
        SamplingParams=lambda **values: SimpleNamespace(**values),
        LLMEngine=FakeVllm,
    )
    monkeypatch.setitem(sys.modules, "vllm", made)
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", module(RequestOutputKind=kinds))
    return VllmEngine(arguments={"model": "folder", "speculative_config": None})


def test_vllm_gives_every_request_its_own_tokens(vllm: VllmEngine) -> None:
    requests = [request(max_tokens=5), request(token_ids=[50], end_token_ids=[53])]
    for _ in range(2):
        clock = vllm.generate(requests, {})
        assert tokens(clock, 0) == [6, 7, 8, 9, 10]
        assert tokens(clock, 1) == [51, 52, 53]
        assert [len(step) for _, step in clock.steps[0]] == [2, 2, 1]


def test_vllm_keeps_nothing_of_a_prompt(vllm: VllmEngine) -> None:
    arguments = vllm._engine.engine_args
    assert arguments.enable_prefix_caching is False
    assert arguments.model == "folder"


def test_vllm_is_given_the_same_sampling(vllm: VllmEngine) -> None:
    params = vllm._params(request(temperature=0.8, top_k=-1, top_p=0.9, end_token_ids=[7, 8]))
    assert (params.temperature, params.top_k, params.top_p) == (0.8, 0, 0.9)
    assert params.stop_token_ids == [7, 8]
    assert params.ignore_eos


def test_vllm_has_a_process_for_each_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []

    def open_process(label: str, home: str, setup: Any, **_: Any) -> Any:
        opened.append(setup["arguments"]["speculative_config"])
        if label.endswith("ngram K=4"):
            raise PeerError("no kernel")
        return SimpleNamespace(label=label)

    monkeypatch.setattr(vllm_peer, "PeerProcess", open_process)
    notes: list[str] = []
    subject = replace(peer_subject(tmp_path, notes), head=tmp_path / "head")
    with ExitStack() as closing:
        peers = vllm_peer.open_methods(subject, closing)
        without = vllm_peer.open_methods(replace(subject, head=None), closing)
    assert [(peer.name, peer.greedy_only, peer.max_batch) for peer in peers] == [
        ("vLLM plain", False, 3),
        ("vLLM eagle3 K=3", True, 3),
    ]
    assert [peer.name for peer in without] == ["vLLM plain"]
    assert notes == ["vLLM ngram K=4 was not measured: no kernel"] * 2
    assert [config and config["method"] for config in opened[:3]] == [None, "ngram", "eagle3"]
    assert opened[2]["model"] == str(tmp_path / "head")


# --- OpenVINO -------------------------------------------------------------------------------------


class FakePipeline:
    """A continuous batching pipeline: a prompt step, then two tokens each step."""

    def __init__(self, path: str, scheduler: Any, device: str, properties: Any) -> None:
        self.properties = properties
        self.scheduler = scheduler
        self._running: list[Any] = []

    def add_request(self, number: int, prompt: Any, settings: Any) -> Any:
        handle = SimpleNamespace(left=settings.max_new_tokens, newest=int(prompt[0, -1]), read_=[])
        handle.can_read = lambda: bool(handle.read_)
        handle.read = lambda: {0: SimpleNamespace(generated_ids=handle.read_.pop(0))}
        handle.settings = settings
        self._running.append(handle)
        return handle

    def has_non_finished_requests(self) -> bool:
        return any(handle.left for handle in self._running)

    def step(self) -> None:
        for handle in self._running:
            count = min(2, handle.left)
            if count:
                new = [handle.newest + 1 + place for place in range(count)]
                handle.read_.append(new)
                handle.newest, handle.left = new[-1], handle.left - count


@pytest.fixture
def openvino(monkeypatch: pytest.MonkeyPatch) -> OpenVinoEngine:
    made = module(
        SchedulerConfig=SimpleNamespace,
        GenerationConfig=SimpleNamespace,
        ContinuousBatchingPipeline=FakePipeline,
    )
    monkeypatch.setitem(sys.modules, "openvino_genai", made)
    monkeypatch.setitem(sys.modules, "openvino", module(Tensor=lambda array: array))
    return OpenVinoEngine(path="x.gguf", threads=2, max_model_len=64, max_batch=2)


def test_openvino_gives_every_request_its_own_tokens(openvino: OpenVinoEngine) -> None:
    requests = [request(max_tokens=3), request(token_ids=[50], max_tokens=4)]
    clock = openvino.generate(requests, {"lookup_len": 0})
    assert tokens(clock, 0) == [6, 7, 8]
    assert tokens(clock, 1) == [51, 52, 53, 54]
    assert [len(step) for _, step in clock.steps[0]] == [2, 1]


def test_openvino_has_a_pipeline_for_lookup(openvino: OpenVinoEngine) -> None:
    openvino.generate([request(max_tokens=2)], {"lookup_len": 0})
    assert list(openvino._pipelines) == [False]
    openvino.generate([request(max_tokens=2)], {"lookup_len": 4})
    pipelines: dict[bool, Any] = openvino._pipelines
    assert pipelines[True].properties == {"INFERENCE_NUM_THREADS": 2, "prompt_lookup": True}
    assert "prompt_lookup" not in pipelines[False].properties
    assert pipelines[False].scheduler.enable_prefix_caching is False
    assert pipelines[True]._running[0].settings.num_assistant_tokens == 4
    assert not hasattr(pipelines[False]._running[0].settings, "num_assistant_tokens")


def test_openvino_samples_as_asked(openvino: OpenVinoEngine) -> None:
    settings = openvino._settings(request(temperature=0.8, top_k=5, end_token_ids=[7]), 0)
    assert (settings.do_sample, settings.temperature, settings.top_k) == (True, 0.8, 5)
    assert (settings.stop_token_ids, settings.ignore_eos) == ({7}, False)
    assert openvino._settings(request(), 0).ignore_eos
