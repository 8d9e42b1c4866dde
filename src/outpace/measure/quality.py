"""What a cheaper way of computing a model costs in quality, measured on a text.

The text is cut into windows. Every window is fed to the model computed in float32, the reference,
and to the same model computed otherwise, and the two next-token distributions at each position are
compared: perplexity of the text, share of positions with the same greedy choice, and the
Kullback-Leibler divergence of the second distribution from the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from outpace.errors import OptionError
from outpace.measure.statistics import wilson
from outpace.models.load import LoadedModel
from outpace.models.tokenizer import Tokenizer
from outpace.params import SamplingParams
from outpace.runner import Runner
from outpace.types import Sequence as TokenSequence

# Tokens per pass. Logits of both models are held for so many positions.
_CHUNK_LEN = 128


@dataclass(frozen=True, slots=True)
class Quality:
    """How one way of computing a model compares with the reference, over `num_tokens` positions.

    perplexity, reference_perplexity: of the text, exp of the mean negative log-likelihood.
    num_same_choices: positions where both have the same argmax. mean_kl, max_kl: divergence
    KL(reference || this) per position, in nats.
    """

    num_tokens: int
    perplexity: float
    reference_perplexity: float
    num_same_choices: int
    mean_kl: float
    max_kl: float

    @property
    def same_choice_share(self) -> float:
        return self.num_same_choices / self.num_tokens

    @property
    def same_choice_interval(self) -> tuple[float, float]:
        """95 % interval of the share (Wilson's), taking positions for independent."""
        return wilson(self.num_same_choices, self.num_tokens)


class QualitySums:
    """Sums over positions; `add` logits piece by piece, then ask for the `result`."""

    def __init__(self) -> None:
        self._num_tokens = 0
        self._nll = 0.0
        self._reference_nll = 0.0
        self._num_same = 0
        self._kl = 0.0
        self._max_kl = 0.0

    def add(
        self, reference: Float[Tensor, "n v"], other: Float[Tensor, "n v"], next_ids: Sequence[int]
    ) -> None:
        """Logits of both at n positions, and the token of the text that follows each."""
        log_p = torch.log_softmax(reference.double(), dim=-1)
        log_q = torch.log_softmax(other.double(), dim=-1)
        following = torch.tensor(next_ids, device=log_p.device)[:, None]
        # A token that the reference rules out (-inf) adds nothing, whatever the other thinks.
        terms = torch.where(log_p == -math.inf, 0.0, log_p.exp() * (log_p - log_q))
        divergences = terms.sum(dim=-1).clamp(min=0.0)
        self._num_tokens += len(next_ids)
        self._reference_nll -= float(log_p.gather(1, following).sum())
        self._nll -= float(log_q.gather(1, following).sum())
        self._num_same += int((reference.argmax(dim=-1) == other.argmax(dim=-1)).sum())
        self._kl += float(divergences.sum())
        self._max_kl = max(self._max_kl, float(divergences.max()))

    def result(self) -> Quality:
        count = self._num_tokens
        return Quality(
            num_tokens=count,
            perplexity=math.exp(self._nll / count),
            reference_perplexity=math.exp(self._reference_nll / count),
            num_same_choices=self._num_same,
            mean_kl=self._kl / count,
            max_kl=self._max_kl,
        )


def make_windows(
    texts: Sequence[str], tokenizer: Tokenizer, *, window_len: int, max_tokens: int | None = None
) -> list[list[int]]:
    """Token ids of the texts in windows of `window_len`, which never span two texts.

    max_tokens: of the texts together; what is beyond it is left out. Every window begins with the
    beginning token where the model puts one before a text. A rest of which no token would
    be predicted is dropped.
    Raises OptionError where nothing is left to compare.
    """
    if window_len < 2:
        raise OptionError(f"a window must hold at least 2 tokens, got {window_len}")
    windows = []
    left = max_tokens
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False)[:left]
        left = None if left is None else left - len(ids)
        begin = _begin_ids(tokenizer, text)
        step = window_len - len(begin)
        pieces = [begin + ids[start : start + step] for start in range(0, len(ids), step)]
        windows += [piece for piece in pieces if len(piece) > 1]
    if not windows:
        raise OptionError(
            "the text is too short: at least 2 tokens are needed (one to read, one to predict), "
            "and some thousands for figures that mean something"
        )
    return windows


def _begin_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    first = tokenizer.encode(text[:1])[:1]
    return first if tokenizer.bos_id is not None and first == [tokenizer.bos_id] else []


def num_positions(windows: Sequence[Sequence[int]]) -> int:
    """How many next tokens there are to predict."""
    return sum(len(window) - 1 for window in windows)


def compare_models(
    reference: LoadedModel,
    other: LoadedModel,
    windows: Sequence[Sequence[int]],
    tick: Callable[[int], None] = lambda count: None,
) -> Quality:
    """Feed every window to both. tick(count) follows every `count` positions compared.

    Raises OptionError for models with different vocabularies or windows longer than either takes.
    """
    if reference.decoder.num_logits != other.decoder.num_logits:
        raise OptionError(
            f"{other.name} has {other.decoder.num_logits} tokens and {reference.name} "
            f"{reference.decoder.num_logits}: they are not the same model"
        )
    longest = max(map(len, windows))
    for model in (reference, other):
        if longest > model.max_len:
            raise OptionError(
                f"a window of {longest} tokens is longer than {model.name} takes "
                f"({model.max_len}); make it shorter"
            )
    readers = [_Reader(model, longest) for model in (reference, other)]
    sums = QualitySums()
    for window in windows:
        start = 1
        for first, second in zip(*(reader.chunks(window) for reader in readers), strict=True):
            next_ids = window[start : start + len(first)]
            sums.add(first, second.to(first.device), next_ids)
            start += len(next_ids)
            tick(len(next_ids))
    return sums.result()


class _Reader:
    """A model and a cache row to feed windows through."""

    def __init__(self, model: LoadedModel, num_tokens: int) -> None:
        self._runner = Runner(model.decoder, model.new_cache(num_rows=1, num_tokens=num_tokens))

    def chunks(self, window: Sequence[int]) -> Iterator[Float[Tensor, "n v"]]:
        """Logits after every token but the last, which predicts nothing, in order."""
        fed = list(window[:-1])
        seq = TokenSequence(0, fed, len(fed), SamplingParams())
        self._runner.open(seq, reuse=False)
        while self._runner.num_cached(seq) < len(fed):
            scores = self._runner.extend([seq], max_feed=[_CHUNK_LEN], score_prompt=[True])
            yield scores.logits[scores.prompt_rows[0]]
        self._runner.release(seq)
