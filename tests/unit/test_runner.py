"""A model and its cache: however tokens were fed, drafted, rejected or reused, what follows is what
a fresh run over the committed tokens gives."""

from __future__ import annotations

import random

import pytest
import torch
from tiny import fresh_logits, greedy_tokens, new_runner, new_sequence, tiny_model

from outpace.cache import CacheRows
from outpace.runner import Runner
from outpace.types import Draft, Sequence

MODEL = tiny_model(seed=3, max_len=128)
VOCAB = MODEL.config.vocab_size
# float64 sums of a few hundred terms of order one; only their order differs between passes.
CLOSE = {"rtol": 1e-9, "atol": 1e-9}


def random_tokens(count: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(2, VOCAB) for _ in range(count)]


def opened(runner: Runner, tokens: list[int], seq_id: int = 0) -> Sequence:
    seq = new_sequence(tokens, seq_id)
    runner.open(seq)
    return seq


def cached_kv(runner: Runner, seq: Sequence) -> tuple[torch.Tensor, torch.Tensor]:
    row, length = runner._placements[seq.seq_id].row, runner.num_cached(seq)
    return runner.cache.k[:, row, :length], runner.cache.v[:, row, :length]


def assert_cache_equals_recomputed(runner: Runner, seq: Sequence) -> None:
    """Pitfall invariant: the cache holds tokens[:-1], as if they had been fed in one pass."""
    assert runner.num_cached(seq) == len(seq.tokens) - 1
    fresh = new_runner(MODEL)
    copy = opened(fresh, seq.tokens)
    if len(seq.tokens) > 1:
        fresh.extend([copy], max_feed=[len(seq.tokens) - 1])
    for ours, expected in zip(cached_kv(runner, seq), cached_kv(fresh, copy), strict=True):
        torch.testing.assert_close(ours, expected, **CLOSE)


def greedy_step(
    runner: Runner, seqs: list[Sequence], drafts: list[Draft] | None = None
) -> list[int]:
    """One verified step by hand; returns how many draft tokens of each were accepted."""
    drafts = drafts or [Draft()] * len(seqs)
    scores = runner.extend(seqs, drafts)
    accepted = []
    for seq, draft, rows in zip(seqs, drafts, scores.rows, strict=True):
        best = scores.logits[rows].argmax(-1).tolist()
        count = 0
        while count < len(draft) and draft.token_ids[count] == best[count]:
            count += 1
        seq.tokens.extend(best[: count + 1])
        accepted.append(count)
    runner.commit(seqs)
    return accepted


def draft_with(correct: list[int], length: int, num_right: int) -> Draft:
    """`length` tokens of which the first `num_right` are what the target will say."""
    tokens = correct[:length]
    if num_right < length:
        tokens[num_right] = (tokens[num_right] + 1) % VOCAB
    return Draft(tuple(tokens))


@pytest.mark.usefixtures("unchecked_shapes")
class TestScriptedAcceptance:
    @pytest.mark.parametrize("num_drafted", [1, 2, 4, 7])
    def test_cache_and_logits_after_every_accept_count(self, num_drafted):
        prompt = random_tokens(9, seed=num_drafted)
        answer = greedy_tokens(MODEL, prompt, 80)
        runner = new_runner(MODEL)
        seq = opened(runner, prompt)
        for wanted in [*range(num_drafted + 1), *range(num_drafted, -1, -1)]:
            rest = answer[seq.num_output :]
            (got,) = greedy_step(runner, [seq], [draft_with(rest, num_drafted, wanted)])
            assert got == wanted
            assert_cache_equals_recomputed(runner, seq)
        assert seq.tokens[9:] == answer[: seq.num_output]
        scores = runner.extend([seq])
        torch.testing.assert_close(scores.logits[-1], fresh_logits(MODEL, seq.tokens), **CLOSE)

    def test_steps_with_a_draft_alternate_with_steps_without(self):
        prompt = random_tokens(5, seed=11)
        answer = greedy_tokens(MODEL, prompt, 80)
        runner = new_runner(MODEL)
        seq = opened(runner, prompt)
        for length, right in [(3, 3), (0, 0), (2, 1), (0, 0), (0, 0), (1, 1), (5, 0), (0, 0)]:
            drafts = [draft_with(answer[seq.num_output :], length, right)]
            expected = fresh_logits(MODEL, seq.tokens)
            scores = runner.extend([seq], drafts)
            torch.testing.assert_close(scores.logits[0], expected, **CLOSE)
            seq.tokens.extend(answer[seq.num_output : seq.num_output + right + 1])
            runner.commit([seq])
            assert_cache_equals_recomputed(runner, seq)
        assert seq.tokens[5:] == answer[: seq.num_output]

    def test_every_draft_row_scores_its_own_prefix(self):
        tokens, draft = random_tokens(6), tuple(random_tokens(5, seed=1))
        runner = new_runner(MODEL)
        seq = opened(runner, tokens)
        scores = runner.extend([seq], [Draft(draft)])
        assert scores.logits.shape == (6, VOCAB)
        for index in range(6):
            expected = fresh_logits(MODEL, [*tokens, *draft[:index]])
            torch.testing.assert_close(scores.logits[index], expected, **CLOSE)

    def test_a_stop_inside_the_accepted_tokens_leaves_nothing_behind(self):
        prompt = random_tokens(6, seed=4)
        answer = greedy_tokens(MODEL, prompt, 8)
        for kept in range(1, 7):
            runner = new_runner(MODEL)
            seq = opened(runner, prompt)
            runner.extend([seq], [Draft(tuple(answer[:5]))])
            seq.tokens.extend(answer[:kept])  # the stop rule cut the verdict here
            runner.commit([seq])
            assert_cache_equals_recomputed(runner, seq)

    def test_commit_compares_what_was_fed_not_what_was_counted(self):
        # Tokens that someone else committed: the common prefix is kept and no more.
        runner = new_runner(MODEL)
        seq = opened(runner, random_tokens(6))
        runner.extend([seq], [Draft((10, 11, 12))])
        seq.tokens.extend([10, 11, 13, 14, 15])
        runner.commit([seq])
        assert list(runner.cache.token_ids(0)) == seq.tokens[:8]
        torch.testing.assert_close(
            runner.extend([seq]).logits[-1], fresh_logits(MODEL, seq.tokens), **CLOSE
        )


@pytest.mark.usefixtures("unchecked_shapes")
class TestBatches:
    def test_ragged_batch_with_other_accept_counts_equals_single_runs(self):
        lengths = [3, 17, 8, 30]
        prompts = [random_tokens(n, seed=n) for n in lengths]
        answers = [greedy_tokens(MODEL, prompt, 60) for prompt in prompts]
        runner = new_runner(MODEL, num_rows=4)
        seqs = [opened(runner, prompt, i) for i, prompt in enumerate(prompts)]
        rng = random.Random(5)
        for _ in range(8):
            drafts, wanted = [], []
            for seq, answer in zip(seqs, answers, strict=True):
                length = rng.randrange(5)
                wanted.append(rng.randint(0, length))
                drafts.append(draft_with(answer[seq.num_output :], length, wanted[-1]))
            assert greedy_step(runner, seqs, drafts) == wanted
            for seq in seqs:
                assert_cache_equals_recomputed(runner, seq)
        for seq, answer in zip(seqs, answers, strict=True):
            assert seq.tokens[seq.num_prompt :] == answer[: seq.num_output]

    def test_rows_may_be_skipped_and_come_in_any_order(self):
        prompts = [random_tokens(4 + i, seed=i) for i in range(4)]
        answers = [greedy_tokens(MODEL, prompt, 40) for prompt in prompts]
        runner = new_runner(MODEL, num_rows=4)
        seqs = [opened(runner, prompt, i) for i, prompt in enumerate(prompts)]
        rng = random.Random(7)
        for _ in range(12):
            some = rng.sample(seqs, rng.randint(1, 4))
            drafts = [
                draft_with(answers[s.seq_id][s.num_output :], 3, rng.randint(0, 3)) for s in some
            ]
            greedy_step(runner, some, drafts)
            for seq in some:
                assert_cache_equals_recomputed(runner, seq)
        for seq, answer in zip(seqs, answers, strict=True):
            assert seq.tokens[seq.num_prompt :] == answer[: seq.num_output]

    def test_scores_are_in_the_order_of_the_sequences_given(self):
        runner = new_runner(MODEL, num_rows=3)
        seqs = [opened(runner, random_tokens(5, seed=i), i) for i in range(3)]
        order = [seqs[2], seqs[0], seqs[1]]
        scores = runner.extend(order, [Draft((5,)), Draft(), Draft((6, 7))], capture=[0])
        for seq, rows, fed in zip(order, scores.rows, scores.fed, strict=True):
            torch.testing.assert_close(
                scores.logits[rows.start], fresh_logits(MODEL, seq.tokens), **CLOSE
            )
            expected = MODEL.decoder._embedding[torch.tensor(seq.tokens)]
            assert torch.equal(scores.hidden[0][fed][:5], expected)
        assert [rows.stop - rows.start for rows in scores.rows] == [2, 1, 3]
        assert [fed.stop - fed.start for fed in scores.fed] == [6, 5, 7]

    def test_a_prompt_chunk_beside_decoding_changes_nothing(self):
        long_prompt, short = random_tokens(70, seed=8), random_tokens(4, seed=9)
        answer = greedy_tokens(MODEL, short, 30)
        runner = new_runner(MODEL, num_rows=2)
        decoding = opened(runner, short, 0)
        greedy_step(runner, [decoding])
        prefilling = opened(runner, long_prompt, 1)
        while True:
            drafts = [draft_with(answer[decoding.num_output :], 3, 2), Draft((2, 3))]
            scores = runner.extend([decoding, prefilling], drafts, max_feed=[9, 20])
            best = scores.logits[scores.rows[0]].argmax(-1).tolist()
            decoding.tokens.extend(best[:3])
            runner.commit([decoding, prefilling])
            assert_cache_equals_recomputed(runner, decoding)
            if scores.rows[1] != slice(0, 0) and scores.rows[1].stop > scores.rows[1].start:
                break
        assert decoding.tokens[4:] == answer[: decoding.num_output]
        torch.testing.assert_close(
            scores.logits[scores.rows[1].start], fresh_logits(MODEL, long_prompt), **CLOSE
        )


class TestPrefillChunks:
    @pytest.mark.parametrize("chunk", range(1, 18))
    def test_every_chunk_size_gives_the_same(self, chunk):
        prompt = random_tokens(34, seed=2)
        runner = new_runner(MODEL)
        seq = opened(runner, prompt)
        draft, num_passes = Draft((4, 5)), 0
        while runner.num_cached(seq) < 34:
            pending = 34 - runner.num_cached(seq)
            scores = runner.extend([seq], [draft], max_feed=[chunk])
            num_passes += 1
            (rows,) = scores.rows
            if pending > chunk:
                assert rows.stop == rows.start, "logits in the middle of a prompt"
                assert scores.logits.shape == (0, VOCAB)
                assert runner.num_cached(seq) == 34 - pending + chunk, "draft fed mid-prefill"
                runner.commit([seq])  # what the engine does after every pass
        assert num_passes == -(-34 // chunk)
        assert scores.logits.shape == (3, VOCAB)
        for index in range(3):
            expected = fresh_logits(MODEL, [*prompt, *draft.token_ids[:index]])
            torch.testing.assert_close(scores.logits[index], expected, **CLOSE)

    def test_captured_states_join_to_those_of_one_pass(self):
        prompt = random_tokens(23, seed=6)
        whole = new_runner(MODEL)
        expected = whole.extend([opened(whole, prompt)], capture=[0, 1, 2]).hidden
        runner = new_runner(MODEL)
        seq = opened(runner, prompt)
        pieces: dict[int, list[torch.Tensor]] = {0: [], 1: [], 2: []}
        for chunk in (1, 4, 7, 11):
            scores = runner.extend([seq], max_feed=[chunk], capture=[0, 1, 2])
            assert scores.fed == [slice(0, chunk)]
            for layer, hidden in scores.hidden.items():
                pieces[layer].append(hidden[scores.fed[0]])
        for layer, parts in pieces.items():
            torch.testing.assert_close(torch.cat(parts), expected[layer], **CLOSE)

    def test_nothing_is_captured_unless_asked(self):
        runner = new_runner(MODEL)
        assert runner.extend([opened(runner, [3, 4])]).hidden == {}


class TestDraftIds:
    @pytest.mark.parametrize("bad", [-1, -100, VOCAB, VOCAB + 7, 2**40])
    def test_an_id_outside_the_vocabulary_is_fed_as_zero(self, bad):
        runner = new_runner(MODEL)
        seq = opened(runner, random_tokens(5))
        scores = runner.extend([seq], [Draft((7, bad, 9))])
        assert list(runner.cache.token_ids(0))[5:] == [7, 0, 9]
        torch.testing.assert_close(scores.logits[1], fresh_logits(MODEL, [*seq.tokens, 7]), **CLOSE)
        assert scores.logits.isfinite().all()

    def test_a_padding_row_of_the_model_is_not_a_draft_token(self):
        padded = tiny_model(seed=3, vocab_size=300, max_len=32)
        assert padded.decoder.num_logits == 258
        runner = new_runner(padded)
        seq = new_sequence([5, 6])
        runner.open(seq)
        assert runner.extend([seq], [Draft((258,))]).logits.shape == (2, 258)
        assert list(runner.cache.token_ids(0)) == [5, 6, 0]

    def test_a_zero_fed_for_an_impossible_id_is_forgotten_again(self):
        runner = new_runner(MODEL)
        seq = opened(runner, random_tokens(5))
        runner.extend([seq], [Draft((-1, 3))])
        seq.tokens.append(44)
        runner.commit([seq])
        assert_cache_equals_recomputed(runner, seq)


class TestDrafting:
    """What a draft model does: one more token per pass, logits after the last only."""

    def test_growing_drafts_feed_only_what_is_new(self):
        prompt = random_tokens(7, seed=12)
        runner = new_runner(MODEL)
        seq = opened(runner, prompt)
        draft: tuple[int, ...] = ()
        for fed in (7, 1, 1, 1, 1):
            scores = runner.extend([seq], [Draft(draft)], last_only=True)
            assert scores.fed == [slice(0, fed)]
            assert scores.logits.shape == (1, VOCAB)
            torch.testing.assert_close(
                scores.logits[0], fresh_logits(MODEL, [*prompt, *draft]), **CLOSE
            )
            draft = (*draft, int(scores.logits[0].argmax()))

    @pytest.mark.parametrize("accepted", range(5))
    def test_catching_up_after_each_accept_count(self, accepted):
        prompt = random_tokens(7, seed=13)
        runner = new_runner(MODEL)
        seq = opened(runner, prompt)
        draft: tuple[int, ...] = ()
        for _ in range(4):
            scores = runner.extend([seq], [Draft(draft)], last_only=True)
            draft = (*draft, int(scores.logits[0].argmax()))
        # The last draft token was proposed but never fed.
        assert runner.num_cached(seq) == 7 + 3
        seq.tokens.extend([*draft[:accepted], 50])
        runner.commit([seq])
        assert runner.num_cached(seq) == 7 + min(accepted, 3)
        scores = runner.extend([seq], last_only=True)
        torch.testing.assert_close(scores.logits[0], fresh_logits(MODEL, seq.tokens), **CLOSE)

    def test_steps_slept_through_are_caught_up(self):
        runner = new_runner(MODEL)
        seq = opened(runner, random_tokens(5, seed=14))
        runner.extend([seq], [Draft((3, 4))], last_only=True)
        seq.tokens.extend(random_tokens(20, seed=15))
        runner.commit([seq])
        scores = runner.extend([seq], last_only=True)
        torch.testing.assert_close(scores.logits[0], fresh_logits(MODEL, seq.tokens), **CLOSE)
        runner.commit([seq])
        assert_cache_equals_recomputed(runner, seq)


class TestRows:
    def test_release_gives_the_row_back_and_may_be_repeated(self):
        runner = new_runner(MODEL, num_rows=2)
        a, b = opened(runner, [5, 6, 7], 0), opened(runner, [5, 6, 8], 1)
        runner.check_integrity()
        runner.release(a)
        runner.release(a)
        runner.release(new_sequence([1], seq_id=99))
        assert not runner.is_open(a)
        assert runner.is_open(b)
        assert runner.cache.num_free_rows == 1
        runner.release(b)
        runner.check_integrity()
        assert runner.cache.num_free_rows == 2

    def test_commit_ignores_sequences_without_a_row(self):
        runner = new_runner(MODEL)
        runner.commit([new_sequence([1, 2], seq_id=5)])

    def test_integrity_check_finds_a_row_nobody_holds(self):
        runner = new_runner(MODEL, num_rows=2)
        runner.cache.open([1, 2])
        with pytest.raises(AssertionError, match="open rows"):
            runner.check_integrity()

    def test_max_len_is_the_smaller_of_cache_and_model(self):
        for capacity, max_len in [(50, 50), (128, 128), (500, 128)]:
            cache = MODEL.decoder.new_cache(num_rows=1, capacity=capacity)
            assert Runner(MODEL.decoder, cache).max_len == max_len

    def test_a_row_can_be_filled_to_the_last_slot(self):
        runner = Runner(MODEL.decoder, MODEL.decoder.new_cache(num_rows=1, capacity=64))
        tokens = random_tokens(64, seed=20)
        seq = opened(runner, tokens[:60])
        scores = runner.extend([seq], [Draft(tuple(tokens[60:]))])
        torch.testing.assert_close(scores.logits[-1], fresh_logits(MODEL, tokens), **CLOSE)
        seq.tokens.append(tokens[60])
        with pytest.raises(AssertionError, match="full"):
            runner.extend([seq], [Draft((1, 1, 1, 1, 1, 1))])


class TestPrefixReuse:
    @pytest.mark.parametrize("shared", [0, 1, 9, 20, 24, 25])
    def test_logits_equal_a_fresh_run(self, shared):
        first = random_tokens(25, seed=16)
        runner = new_runner(MODEL)
        seq = opened(runner, first, 0)
        greedy_step(runner, [seq])
        greedy_step(runner, [seq], [Draft((2, 3, 4))])
        runner.release(seq)
        second = first[:shared] + [(t + 1) % VOCAB for t in first[shared:]] + [3]
        again = new_sequence(second, seq_id=1)
        assert runner.open(again) == shared
        scores = runner.extend([again], [Draft((9,))])
        assert scores.fed == [slice(0, len(second) - shared + 1)]
        torch.testing.assert_close(scores.logits[0], fresh_logits(MODEL, second), **CLOSE)
        again.tokens.append(9)
        runner.commit([again])
        assert_cache_equals_recomputed(runner, again)

    def test_rejected_drafts_are_not_reused(self):
        runner = new_runner(MODEL)
        prompt = random_tokens(6, seed=17)
        seq = opened(runner, prompt)
        runner.extend([seq], [Draft((60, 61, 62))])
        seq.tokens.append(50)
        runner.commit([seq])
        runner.release(seq)
        follow_up = new_sequence([*prompt, 60, 61, 62, 63], seq_id=1)
        assert runner.open(follow_up) == 6

    def test_a_row_released_between_feeding_and_commit_reuses_what_was_truly_fed(self):
        # A request cancelled in the middle of a step: its drafts are real keys and values of
        # real tokens, so reusing them is right.
        runner = new_runner(MODEL)
        prompt = random_tokens(6, seed=18)
        seq = opened(runner, prompt)
        runner.extend([seq], [Draft((60, -1, 62))])
        runner.release(seq)
        follow_up = new_sequence([*prompt, 60, 0, 62, 63], seq_id=1)
        assert runner.open(follow_up) == 9
        torch.testing.assert_close(
            runner.extend([follow_up]).logits[-1], fresh_logits(MODEL, follow_up.tokens), **CLOSE
        )


class TestFork:
    """Several answers to one prompt: it is fed once, and the answers go their own ways."""

    @pytest.mark.parametrize("num_fed", [0, 1, 5, 8])
    def test_answers_to_one_prompt_are_independent(self, num_fed):
        prompt = random_tokens(9, seed=21)
        runner = new_runner(MODEL, num_rows=3)
        source = opened(runner, prompt, 0)
        if num_fed:
            runner.extend([source], max_feed=[num_fed])
        answers = [new_sequence(prompt, seq_id=i) for i in (1, 2)]
        for seq in answers:
            assert runner.fork(source, seq) == min(num_fed, 8)
            assert runner.num_cached(seq) == min(num_fed, 8)
        seqs = [source, *answers]
        for step in range(3):
            drafts = [Draft((10 + i, 20 + step)) for i in range(3)]
            scores = runner.extend(seqs, drafts)
            for i, seq in enumerate(seqs):
                fresh = fresh_logits(MODEL, [*seq.tokens, *drafts[i].token_ids])
                torch.testing.assert_close(scores.logits[scores.rows[i]][-1], fresh, **CLOSE)
                seq.tokens.append(10 + i if step != i else 30)
            runner.commit(seqs)
            for seq in seqs:
                assert_cache_equals_recomputed(runner, seq)

    def test_only_what_both_begin_with_is_taken_over(self):
        runner = new_runner(MODEL, num_rows=2)
        source = opened(runner, random_tokens(12, seed=22), 0)
        runner.extend([source], [Draft((60, 61))])
        seq = new_sequence([*source.tokens[:7], 5, 6, 7], seq_id=1)
        assert runner.fork(source, seq) == 7
        scores = runner.extend([seq])
        assert scores.fed == [slice(0, 3)]
        torch.testing.assert_close(scores.logits[-1], fresh_logits(MODEL, seq.tokens), **CLOSE)

    def test_without_the_source_it_is_open(self):
        runner = new_runner(MODEL)
        prompt = random_tokens(9, seed=23)
        source = opened(runner, prompt, 0)
        runner.extend([source])
        runner.release(source)
        seq = new_sequence(prompt, seq_id=1)
        assert runner.fork(source, seq) == 8
        torch.testing.assert_close(
            runner.extend([seq]).logits[-1], fresh_logits(MODEL, prompt), **CLOSE
        )

    def test_a_cache_that_cannot_copy_rows_opens_one(self):
        class Rows(CacheRows):
            pass

        runner = Runner(MODEL.decoder, Rows(num_rows=2, capacity=32))
        source = opened(runner, [5, 6, 7], 0)
        runner.cache.append(0, [5, 6])
        assert runner.fork(source, new_sequence([5, 6, 7], seq_id=1)) == 0
        assert runner.cache.num_free_rows == 0
