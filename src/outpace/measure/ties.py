"""Two greedy answers differ: is it rounding, or is one of them wrong?

Greedy decoding takes the token with the highest logit. A pass over several rows may add in another
order than a pass over one, and then logits differ in their last bits; where two tokens are closer
than that, either may come out on top, and from there on the texts go their own ways. That is a tie.
Anything else is a violation: a third token, or a gap that rounding does not bridge.

How far rounding reaches is derived, not fitted. A number in a format with p bits of precision is
off by up to u = 2^-p of itself. Each layer adds such an error to the hidden state; in different
layers they are independent, so L layers leave a relative error of about sqrt(L) u, and through the
output head that is sqrt(L) u s on a logit, where s is the standard deviation of the row's logits.
Where sums are made in the format itself (float32, float64) every addition rounds: a thousand of
them are worth about 32 = sqrt(1000) roundings. Where logits themselves are stored in 16 bits, two
of value m are off by u m sqrt(2/3) together. `rounding_tolerance` is four times the root of the sum
of the squares.

On the default model (30 layers, s = 3.6, m = 22) that makes 1e-4 in float32 and 0.42 in bfloat16.
Its gaps between the two best tokens moved, against float64, by 1.1e-5 (3e-5 at most) and by 0.07
(0.2 at most). A network that magnifies errors from layer to layer, as random ones with large
weights do, may move further in bfloat16. There, ask float32: a violation that float32 does not show
was rounding.

What one difference cannot show: a bug that only ever picks the second of two nearly tied tokens
looks like rounding. Bugs pick at random places, so most of their differences are no ties; and the
smaller the tolerance, the fewer can hide, float32 a thousand times less than bfloat16.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as List
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float

from outpace.engine.parameters import bad_words_ids
from outpace.errors import OptionError
from outpace.grammar import GrammarCompiler
from outpace.measure.statistics import first_difference
from outpace.models.load import LoadedModel
from outpace.params import SamplingParams, StructuredOutputsParams
from outpace.runner import Runner
from outpace.sampling import History
from outpace.types import Sequence

GREEDY = SamplingParams(temperature=0)

_CHUNK_LEN = 512
_NUM_TOP = 5
_NUM_SIGMAS = 4.0
_SUM_ROUNDINGS = 32.0
# Half a step of a number between 1 and 2, in the format in which most is lost. Packed weights meet
# activations of 8 bits in other engines; their blocks share a scale, which costs another bit.
_UNITS = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
_PACKED_UNIT = 2.0**-7
_SUMS_IN_WIDER = {"float16", "bfloat16"}


@dataclass(frozen=True, slots=True)
class TopToken:
    """A token and its logit, after penalties and whatever else the parameters do to logits."""

    token_id: int
    logit: float


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where two greedy answers to one prompt differ.

    index: in the answers, from 0. plain_token, other_token: there; None where that answer is over.
    gap: how much the logits of the two tokens differ; None where one of them is no token or a
    forbidden one. tolerance: what rounding may make of equal logits. top_tokens: the best ones as
    plain decoding sees them, best first.
    """

    index: int
    plain_token: int | None
    other_token: int | None
    gap: float | None
    tolerance: float
    kind: Literal["tie", "violation"]
    top_tokens: tuple[TopToken, ...]


def classify_difference(
    loaded: LoadedModel,
    prompt_ids: List[int],
    plain_ids: List[int],
    other_ids: List[int],
    params: SamplingParams = GREEDY,
    *,
    other_arithmetic: bool = False,
) -> Difference | None:
    """Compare an answer with plain decoding's; None if they are equal.

    The common beginning is fed as plain decoding feeds it, token by token, and the logits after it
    are looked at. A tie needs both: the two tokens are the two best ones, and their gap is within
    the tolerance. Where one answer is over and the other goes on, that is a violation.

    plain_ids, other_ids: output tokens, end tokens included. params: of the request; what it does
    to logits is done here as well. other_arithmetic: the other answer was computed by other code or
    in another format. Without it the native step is granted no rounding: it computes the same bits
    whatever the number of rows.
    Raises OptionError for params that are not greedy.
    """
    if not params.is_greedy:
        raise OptionError(
            f"only greedy answers can be compared token by token, got temperature="
            f"{params.temperature}"
        )
    index = first_difference(plain_ids, other_ids)
    if index is None:
        return None
    seq = request_sequence(loaded, prompt_ids, params, len(prompt_ids))
    raw = _plain_logits(loaded, seq, plain_ids[:index])
    values = History(seq).processed(raw)
    tolerance = rounding_tolerance(loaded, raw, other_arithmetic=other_arithmetic)
    plain, other = (ids[index] if index < len(ids) else None for ids in (plain_ids, other_ids))
    pair = [_logit(values, token_id) for token_id in (plain, other)]
    gap = abs(pair[0] - pair[1]) if min(pair) > -math.inf else None
    are_best = int((values > min(pair)).sum()) <= 1
    return Difference(
        index=index,
        plain_token=plain,
        other_token=other,
        gap=gap,
        tolerance=tolerance,
        kind="tie" if are_best and gap is not None and gap <= tolerance else "violation",
        top_tokens=_top_tokens(values),
    )


def rounding_tolerance(
    loaded: LoadedModel, logits: Float[np.ndarray, " V"], *, other_arithmetic: bool = False
) -> float:
    """How far apart rounding may put two logits that are equal: see the top of this module.

    logits: raw ones, as the model gives them. other_arithmetic: see `classify_difference`.
    """
    if loaded.model_impl == "native" and not other_arithmetic:
        return 0.0
    unit = _UNITS.get(loaded.dtype, _PACKED_UNIT)
    finite = logits[np.isfinite(logits)].astype(np.float64)
    in_layers = math.sqrt(loaded.decoder.num_layers) * unit * float(finite.std())
    if loaded.dtype in _SUMS_IN_WIDER:
        of_logits = unit * float(np.abs(finite).max()) * math.sqrt(2 / 3)
    else:
        of_logits = 0.0
        in_layers *= _SUM_ROUNDINGS if loaded.dtype in _UNITS else 1.0
    return _NUM_SIGMAS * math.hypot(in_layers, of_logits)


def request_sequence(
    loaded: LoadedModel, token_ids: List[int], params: SamplingParams, num_prompt: int
) -> Sequence:
    """A request as the engine would hold it after `token_ids`, `num_prompt` of them its prompt."""
    tokenizer, asked = loaded.tokenizer, params.structured_outputs
    grammar = None
    if asked is not None:
        assert isinstance(asked, StructuredOutputsParams), "SamplingParams makes one of a mapping"
        compiler = GrammarCompiler(
            tokenizer.to_json, loaded.decoder.num_logits, tokenizer.end_token_ids
        )
        grammar = compiler.compile(asked).start()
    return Sequence(
        seq_id=0,
        tokens=list(token_ids),
        num_prompt=num_prompt,
        params=params,
        end_token_ids=tokenizer.end_token_ids,
        bad_words_ids=bad_words_ids(params.bad_words, tokenizer),
        grammar=grammar,
    )


@torch.inference_mode()
def _plain_logits(
    loaded: LoadedModel, seq: Sequence, output_ids: List[int]
) -> Float[np.ndarray, " V"]:
    """Logits after `output_ids`, which `seq` is given on the way; each by a pass over one row."""
    num_tokens = len(seq.tokens) + len(output_ids)
    runner = Runner(loaded.decoder, loaded.new_cache(num_rows=1, num_tokens=num_tokens))
    runner.open(seq, reuse=False)
    while len(seq.tokens) - runner.num_cached(seq) > _CHUNK_LEN:
        runner.extend([seq], max_feed=[_CHUNK_LEN])
    scores = runner.extend([seq])
    for token_id in output_ids:
        seq.tokens.append(token_id)
        scores = runner.extend([seq])
    logits: Float[np.ndarray, " V"] = scores.on_host()[scores.rows[0]][0]
    return logits


def _logit(values: Float[np.ndarray, " V"], token_id: int | None) -> float:
    """-inf for what cannot follow: a forbidden token, one that does not exist, or none."""
    if token_id is None or not 0 <= token_id < len(values):
        return -math.inf
    return float(values[token_id])


def _top_tokens(values: Float[np.ndarray, " V"]) -> tuple[TopToken, ...]:
    # Stable, so that of equal logits the smaller id comes first, as it does in greedy decoding.
    order = np.argsort(-values, kind="stable")[:_NUM_TOP].tolist()
    return tuple(TopToken(i, float(values[i])) for i in order if math.isfinite(values[i]))
