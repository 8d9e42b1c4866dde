"""Every model of `transformers` that the adapter runs: its text is the text of `transformers`
itself, drafted or not, and no rejected token leaves a trace. What it cannot run so is refused."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hf_cases import REFUSED, RUN, RUN_SLOWLY, VOCAB, Case, write, write_config
from plain import plain_llm
from scripted import oracle, random_tokens, right_for, scripted
from tiny import new_sequence

from outpace import LLM, SamplingParams
from outpace.errors import ModelError
from outpace.models.attention import Segment
from outpace.models.decoder import Batch
from outpace.models.load import LoadedModel, load_model
from outpace.runner import Runner
from outpace.types import Draft

NUM_TOKENS = VOCAB - 1  # the last vocabulary row is padding
COUNT = 24
PROMPTS = [[60, 61, 62, 63] * 3, list(range(2, 40))]
GREEDY = SamplingParams(temperature=0, max_tokens=COUNT, ignore_eos=True)
# Logits have a standard deviation of about 3. Some models in float64 compute norms and rotations in
# float32 all the same, because transformers says so.
CLOSE = {"float64": 1e-5, "float32": 1e-3}


@dataclass
class Subject:
    """A model on the adapter, and the same files as transformers reads them."""

    case: Case
    path: Path
    model: LoadedModel
    reference: Any
    answers: dict[tuple[int, ...], list[int]] = field(default_factory=dict)

    def logits(self, tokens: list[int]) -> torch.Tensor:
        """Logits after each token, from one pass without a cache: [N, NUM_TOKENS]."""
        with torch.inference_mode():
            output = self.reference(input_ids=torch.tensor([tokens]), use_cache=False)
        return output.logits[0, :, :NUM_TOKENS]

    def greedy(self, prompt: list[int]) -> list[int]:
        """transformers' own greedy text; the padding row has no token and is left out."""
        if tuple(prompt) not in self.answers:
            out = self.reference.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
                max_new_tokens=COUNT,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
                suppress_tokens=[NUM_TOKENS],
            )
            self.answers[tuple(prompt)] = out[0, len(prompt) :].tolist()
        return self.answers[tuple(prompt)]

    def close(self, ours: torch.Tensor, expected: torch.Tensor) -> None:
        difference = float((ours.double() - expected.double()).abs().max())
        assert difference < CLOSE[self.case.dtype], f"logits differ by {difference:.2g}"


def make(path: Path, name: str, case: Case, model_impl: str = "auto") -> Subject:
    write(path, name, case)
    model = load_model(path, dtype=case.dtype, device="cpu", model_impl=model_impl)
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=getattr(torch, case.dtype), local_files_only=True
    ).eval()
    return Subject(case, path, model, reference)


@pytest.fixture(
    scope="module",
    params=[*RUN, *(pytest.param(name, marks=pytest.mark.slow) for name in RUN_SLOWLY)],
)
def subject(request: Any, tmp_path_factory: Any) -> Subject:
    name = request.param
    return make(tmp_path_factory.mktemp(name), name, (RUN | RUN_SLOWLY)[name])


@pytest.fixture(scope="module")
def olmo2(tmp_path_factory: Any) -> Subject:
    return make(tmp_path_factory.mktemp("plain"), "olmo2", RUN["olmo2"])


def run(llm: LLM, prompts: list[list[int]] = PROMPTS, params: Any = GREEDY) -> list[list[int]]:
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], params)
    return [output.outputs[0].token_ids for output in outputs]


def speculating(model: LoadedModel, method: Any, k: int = 4, **options: Any) -> LLM:
    config = {"method": method, "num_speculative_tokens": k}
    return LLM(model, speculative_config=config, max_model_len=128, **options)


def new_runner(model: LoadedModel) -> Runner:
    return Runner(model.decoder, model.new_cache(num_rows=1, num_tokens=128))


class TestEveryArchitecture:
    def test_greedy_text_is_that_of_transformers_drafted_or_not(self, subject):
        answers = {tuple(ids): subject.greedy(ids) for ids in PROMPTS}
        expected = list(answers.values())
        assert len({token for answer in expected for token in answer}) > 3, "too easy a text"
        partly = right_for(answers, NUM_TOKENS, lambda seq: seq.num_output % 4)
        with plain_llm(subject.model, max_model_len=128) as llm:
            assert run(llm) == expected
        for method in ("ngram", scripted(partly)):
            with speculating(subject.model, method) as llm:
                assert run(llm) == expected, method
                llm._engine.check_integrity()

    def test_logits_after_every_accept_count(self, subject):
        prompt, answer = PROMPTS[0], subject.greedy(PROMPTS[0])
        runner = new_runner(subject.model)
        seq = new_sequence(prompt)
        runner.open(seq)
        for wanted in [0, 3, 1, 4, 2, 0, 0, 4]:
            rest = answer[seq.num_output :]
            draft = [*rest[:wanted], *((t + 1) % NUM_TOKENS for t in rest[wanted:4])]
            scores = runner.extend([seq], [Draft(tuple(draft))])
            expected = subject.logits([*seq.tokens, *draft])[-5:]
            subject.close(scores.logits, expected)
            seq.tokens.extend(rest[: wanted + 1])
            runner.commit([seq])
            assert runner.num_cached(seq) == len(seq.tokens) - 1
        runner.release(seq)
        runner.check_integrity()

    def test_prompts_in_chunks(self, subject):
        tokens = PROMPTS[1]
        runner = new_runner(subject.model)
        seq = new_sequence(tokens)
        runner.open(seq)
        for chunk in (1, 5, 11):
            assert runner.extend([seq], max_feed=[chunk]).logits.shape == (0, NUM_TOKENS)
        subject.close(runner.extend([seq]).logits[0], subject.logits(tokens)[-1])

    def test_a_second_request_starts_from_what_the_first_left(self, subject):
        first = PROMPTS[1]
        second = [*first[:30], 3, 4, 5]
        with speculating(subject.model, scripted(random_tokens(NUM_TOKENS))) as llm:
            run(llm, [first])
            output = llm.generate({"prompt_token_ids": second}, GREEDY)[0]
            assert output.metrics.num_cached_tokens == 30
            assert output.outputs[0].token_ids == subject.greedy(second)
            turn = [*second, *output.outputs[0].token_ids[:20], 7]
            output = llm.generate({"prompt_token_ids": turn}, GREEDY)[0]
            assert output.metrics.num_cached_tokens == len(turn) - 1
            assert output.outputs[0].token_ids == subject.greedy(turn)


class TestEngine:
    def test_more_sequences_than_one_wait_for_their_turn(self, olmo2):
        with speculating(olmo2.model, "ngram", max_num_seqs=8) as llm:
            assert llm._engine._target.cache.num_rows == 1
            assert run(llm, PROMPTS * 2) == [olmo2.greedy(ids) for ids in PROMPTS * 2]

    def test_it_runs_all_layers_or_none(self, olmo2):
        with pytest.raises(ModelError, match=r"'early_exit' .* adapter runs all layers or none"):
            speculating(olmo2.model, "early_exit")

    def test_a_cancelled_request_frees_the_row_for_the_next(self, olmo2):
        with speculating(olmo2.model, scripted(random_tokens(NUM_TOKENS))) as llm:
            stream = llm.stream({"prompt_token_ids": PROMPTS[0]}, GREEDY)
            next(iter(stream))
            stream.close()
            assert run(llm, [PROMPTS[0]]) == [olmo2.greedy(PROMPTS[0])]
            llm._engine.check_integrity()

    def test_a_failed_pass_leaves_no_trace(self, olmo2, monkeypatch):
        """A pass may fail when some layers have been fed and others not."""
        runner = new_runner(olmo2.model)
        seq = new_sequence(PROMPTS[0])
        runner.open(seq)
        runner.extend([seq], max_feed=[3])
        last = runner.cache.past.layers[-1]

        def failing(*args: Any, **kwargs: Any) -> None:
            raise RuntimeError("out of memory")

        with monkeypatch.context() as patch:
            patch.setattr(last, "update", failing)
            with pytest.raises(RuntimeError, match="out of memory"):
                runner.extend([seq])
        assert runner.num_cached(seq) == 3
        olmo2.close(runner.extend([seq]).logits[0], olmo2.logits(PROMPTS[0])[-1])
        runner.release(seq)
        runner.check_integrity()

    def test_seeded_text_does_not_depend_on_the_drafter(self, olmo2):
        params = SamplingParams(temperature=0.8, top_p=0.95, seed=5, max_tokens=40, ignore_eos=True)
        with plain_llm(olmo2.model, max_model_len=128) as llm:
            plain = run(llm, params=params)
        answers = dict(zip(map(tuple, PROMPTS), plain, strict=True))
        for propose in (oracle(answers), random_tokens(NUM_TOKENS)):
            with speculating(olmo2.model, scripted(propose)) as llm:
                assert run(llm, params=params) == plain

    def test_it_drafts_for_another_model_and_is_drafted_for(self, olmo2, tmp_path):
        other = make(tmp_path, "opt", RUN["opt"])
        for target, draft in ((olmo2, olmo2), (olmo2, other), (other, olmo2)):
            config = {"method": "draft_model", "model": draft.model, "num_speculative_tokens": 3}
            with LLM(target.model, speculative_config=config, max_model_len=128) as llm:
                assert run(llm) == [target.greedy(ids) for ids in PROMPTS]
                stats = llm.generate({"prompt_token_ids": PROMPTS[0]}, GREEDY)[0].stats
                assert target is not draft or stats.acceptance_rate == 1.0

    def test_a_tree_is_a_bug(self, olmo2):
        batch = Batch([5, 6, 7], [0], [Segment(0, 0, 3)])
        cache = olmo2.model.new_cache(num_rows=1, num_tokens=16)
        tree = replace(batch, segments=[Segment(0, 0, 3, parents=(-1, 0, 0))])
        with pytest.raises(AssertionError, match="trees"):
            olmo2.model.decoder.forward(tree, cache)


class TestOwnFamilies:
    """Models that our own decoder runs, forced onto the adapter."""

    @pytest.fixture(scope="class", params=["llama", "qwen2"])
    @staticmethod
    def both(request: Any, tmp_path_factory: Any) -> tuple[Subject, LoadedModel]:
        fields = RUN["olmo2"].fields | {"rms_norm_eps": 1e-5, "tie_word_embeddings": False}
        path = tmp_path_factory.mktemp(request.param)
        subject = make(path, request.param, Case(fields, seed=2), model_impl="transformers")
        return subject, load_model(path, dtype="float64", device="cpu")

    def test_greedy_text_is_that_of_our_own_decoder(self, both):
        subject, own = both
        assert (subject.model.model_impl, own.model_impl) == ("transformers", "torch")
        assert (subject.model.runs_on, own.runs_on) == ("transformers adapter", "torch decoder")
        with speculating(own, "ngram") as llm:
            expected = run(llm)
        with speculating(subject.model, "ngram") as llm:
            assert run(llm) == expected == [subject.greedy(ids) for ids in PROMPTS]

    def test_captured_layers_are_the_same_ones(self, both):
        subject, own = both
        layers = [0, 1]
        hidden = []
        for model in (subject.model, own):
            runner = new_runner(model)
            seq = new_sequence(PROMPTS[1])
            runner.open(seq)
            runner.extend([seq], max_feed=[9])
            hidden.append(runner.extend([seq], [Draft((3, 4))], capture=layers).hidden)
        for layer in layers:
            ours, expected = hidden[0][layer], hidden[1][layer]
            assert ours.shape == (len(PROMPTS[1]) - 9 + 2, 32)
            torch.testing.assert_close(ours, expected, rtol=0, atol=1e-3)

    def test_the_last_layer_is_refused_before_the_first_request(self, both):
        """transformers returns it after the final norm."""
        subject, own = both

        drafter = scripted(lambda seq, budget: Draft())
        drafter.capture = (1, 2)
        with speculating(own, drafter) as llm:
            run(llm, PROMPTS[:1])
        with pytest.raises(ModelError, match=r"layer 2 of .* layers 0 to 1"):
            speculating(subject.model, drafter)


class TestRefusals:
    @pytest.mark.parametrize("name", REFUSED)
    def test_what_cannot_be_rolled_back_is_refused_by_name(self, name, tmp_path):
        fields, reason = REFUSED[name]
        write_config(tmp_path, name, fields)
        with pytest.raises(ModelError) as caught:
            load_model(tmp_path, dtype="float32", device="cpu")
        message = str(caught.value)
        assert reason in message
        assert str(tmp_path) in message
        if reason not in ("encoder-decoder", "no causal language model"):
            assert "roll" in message

    def test_an_encoder_is_found_out_by_doing(self, tmp_path):
        """BERT's class for language modelling reads in both directions unless told otherwise."""
        fields = RUN_SLOWLY["phi"].fields
        write(tmp_path, "bert", Case(fields))
        with pytest.raises(ModelError, match="logits after a rollback differ by"):
            load_model(tmp_path, dtype="float32", device="cpu")
        directed = tmp_path / "decoder"
        directed.mkdir()
        write(directed, "bert", Case(fields | {"is_decoder": True}))
        assert load_model(directed, dtype="float32", device="cpu").model_impl == "transformers"


class TestRewindCheck:
    """A cache whose rollback does nothing, does too little, or leaves a trace, refuses to start."""

    def refused(self, subject: Subject, monkeypatch: Any, crop: Any, message: str) -> None:
        layer = transformers.cache_utils.DynamicLayer
        monkeypatch.setattr(layer, "crop", crop)
        with pytest.raises(ModelError, match=message) as caught:
            load_model(subject.path, dtype="float64", device="cpu")
        assert str(subject.path) in str(caught.value)

    def test_nothing_removed(self, olmo2, monkeypatch):
        message = "cannot be rolled back.*after a rollback to 3, its layers hold 6 tokens"
        self.refused(olmo2, monkeypatch, lambda layer, count: None, message)

    def test_one_token_too_few(self, olmo2, monkeypatch):
        def crop(layer: Any, count: int) -> None:
            layer.keys, layer.values = layer.keys[..., : count + 1, :], layer.values[..., :4, :]

        self.refused(olmo2, monkeypatch, crop, "its layers hold 4 tokens")

    def test_the_wrong_tokens(self, olmo2, monkeypatch):
        def crop(layer: Any, count: int) -> None:
            layer.keys, layer.values = layer.keys[..., -count:, :], layer.values[..., -count:, :]

        self.refused(olmo2, monkeypatch, crop, "differ by .* standard deviations")

    def test_only_one_layer_wrong(self, olmo2, monkeypatch):
        original, calls = transformers.cache_utils.DynamicLayer.crop, []

        def crop(layer: Any, count: int) -> None:
            calls.append(count)
            original(layer, count)
            if len(calls) == 2:
                layer.keys = layer.keys + 0.1

        self.refused(olmo2, monkeypatch, crop, "differ by .* standard deviations")

    def test_an_error_in_there(self, olmo2, monkeypatch):
        def crop(layer: Any, count: int) -> None:
            raise RuntimeError("this layer does not track past states")

        self.refused(olmo2, monkeypatch, crop, "rolled back.*does not track past states")

    def test_only_negative_counts_are_given(self, olmo2, monkeypatch):
        counts, original = [], transformers.cache_utils.DynamicLayer.crop
        monkeypatch.setattr(
            transformers.cache_utils.DynamicLayer,
            "crop",
            lambda layer, count: (counts.append(count), original(layer, count)),
        )
        with speculating(olmo2.model, scripted(random_tokens(NUM_TOKENS))) as llm:
            run(llm)
        assert counts
        assert max(counts) < 0

    @pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
    def test_half_precision_is_no_reason_to_refuse(self, olmo2, dtype):
        model = load_model(olmo2.path, dtype=dtype, device="cpu")
        assert model.dtype == dtype
        runner = new_runner(model)
        seq = new_sequence(PROMPTS[1])
        runner.open(seq)
        assert runner.extend([seq], max_feed=[8]).logits.shape == (0, NUM_TOKENS)
        logits = runner.extend([seq], [Draft((3, 4))]).logits
        assert logits.dtype == torch.float32
        expected = olmo2.logits([*PROMPTS[1], 3, 4])[-3:]
        assert float((logits - expected).abs().max()) < float(expected.std()), "not one model"
