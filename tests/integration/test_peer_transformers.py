"""transformers as a peer: a tiny model in its process, and, where asked for, the default one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from model_files import write_hf

from outpace import LLM, SamplingParams
from outpace.measure.bench.peers.base import Peer, open_peers
from outpace.models.load import LoadedModel, load_model

PROMPTS = [[1, 40, 41, 42, 40, 41], [1, 99], [1, 7, 7, 7, 7, 7, 7, 7]]
MAX_TOKENS = 20


def greedy(**values: bool) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS, **values)


def ours(loaded: LoadedModel, prompts: list[list[int]], params: SamplingParams) -> list[list[int]]:
    with LLM(loaded) as llm:
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], params)
    return [list(output.outputs[0].token_ids) for output in outputs]


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("peer") / "tiny"
    # As many rows as the tokenizer has tokens: ours never chooses a row without one.
    return write_hf(folder, config={"vocab_size": 263})


@pytest.fixture(scope="module")
def tiny(tiny_path: Path) -> LoadedModel:
    return load_model(tiny_path, dtype="float32", device="cpu", model_impl="torch")


@pytest.fixture(scope="module")
def peers(tiny: LoadedModel, tiny_path: Path) -> Iterator[list[Peer]]:
    notes: list[str] = []
    with ExitStack() as closing:
        yield open_peers(
            "transformers",
            tiny,
            model=str(tiny_path),
            max_model_len=64,
            max_batch=3,
            tuning_prompts=PROMPTS[:1],
            threads=1,
            note=notes.append,
            closing=closing,
            draft=str(tiny_path),
            num_draft_tokens=3,
        )
    assert notes == []


def test_it_decodes_plainly_and_in_its_own_two_ways(peers: list[Peer]) -> None:
    plain, lookup, assisted = (peer.name for peer in peers)
    assert plain == "transformers plain"
    assert lookup in [f"transformers prompt lookup K={k}" for k in (2, 4, 8)]
    assert assisted == "transformers assisted K=3"


def test_greedy_tokens_are_ours(peers: list[Peer], tiny: LoadedModel) -> None:
    expected = ours(tiny, PROMPTS, greedy())
    for peer in peers:
        for prompt, token_ids in zip(PROMPTS, expected, strict=True):
            timing = peer.generate_batch([prompt], [greedy()])
            assert timing.answers[0].token_ids == token_ids, peer.name
            assert 0 < timing.answers[0].first_s <= timing.total_s


def test_assistance_by_the_model_itself_takes_fewer_steps(peers: list[Peer]) -> None:
    plain, _, assisted = peers
    ways = [peer.generate_batch([PROMPTS[1]], [greedy(ignore_eos=True)]) for peer in peers[::2]]
    assert [peer.name for peer in (plain, assisted)] == [peer.name for peer in peers[::2]]
    assert [len(timing.answers[0].token_ids) for timing in ways] == [MAX_TOKENS] * 2
    # The first step of plain decoding gives one token, that of assistance all that was agreed on.
    assert [timing.window_tokens for timing in ways] == [MAX_TOKENS - 1, MAX_TOKENS - 4]


def test_prompts_of_several_lengths_go_together(peers: list[Peer], tiny: LoadedModel) -> None:
    timing = peers[0].generate_batch(PROMPTS, [greedy()] * len(PROMPTS))
    assert [answer.token_ids for answer in timing.answers] == ours(tiny, PROMPTS, greedy())


def test_it_samples_from_what_is_asked_for(peers: list[Peer]) -> None:
    params = [
        SamplingParams(temperature=5.0, max_tokens=8, ignore_eos=True, seed=s) for s in (1, 2)
    ]
    answers = [
        peers[0].generate_batch([PROMPTS[0]], [each]).answers[0].token_ids
        for each in (params[0], params[0], params[1])
    ]
    assert answers[0] == answers[1] != answers[2]
    only = SamplingParams(temperature=5.0, top_k=1, max_tokens=8, ignore_eos=True)
    best = peers[0].generate_batch([PROMPTS[0]], [greedy(ignore_eos=True)]).answers[0].token_ids
    assert peers[0].generate_batch([PROMPTS[0]], [only]).answers[0].token_ids == best[:8]


@pytest.mark.model
@pytest.mark.slow
def test_the_default_model_gives_our_tokens() -> None:
    name = "smollm2-135m"
    loaded = load_model(name, dtype="float32", device="cpu", model_impl="torch")
    prompts = [loaded.tokenizer.encode("The capital of France is")]
    with ExitStack() as closing:
        peers = open_peers(
            "transformers",
            loaded,
            model=name,
            max_model_len=64,
            max_batch=1,
            tuning_prompts=prompts,
            threads=2,
            note=lambda text: None,
            closing=closing,
        )
        assert len(peers) == 2
        expected = ours(loaded, prompts, greedy())[0]
        for peer in peers:
            assert peer.generate_batch(prompts, [greedy()]).answers[0].token_ids == expected
