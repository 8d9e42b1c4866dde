"""A toy grammar over a vocabulary of eight, its language and its law by a definition of their own.

a(b|c)*d in the letters of the tiny tokenizer: e(t|a)*o.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as List
from functools import cache

import numpy as np
from laws import PROMPT, SMALL, SMALL_VOCAB
from tiny import END_ID, fresh_logits

from outpace.grammar import Grammar, GrammarCompiler
from outpace.models.load import LoadedModel
from outpace.params import StructuredOutputsParams

REGEX = "e(t|a)*o"
A, B, C, D = (SMALL.tokenizer.encode(letter, add_special_tokens=False)[0] for letter in "etao")
STRUCTURE = {"regex": REGEX}


def allowed_after(output: List[int]) -> set[int]:
    """The tokens that may follow an output; none behind what may not stand, or the end."""
    allowed = {A}
    for token in output:
        if token not in allowed or token == END_ID:
            return set()
        allowed = {END_ID} if token == D else {B, C, D}
    return allowed


def is_word(output: List[int]) -> bool:
    """Whether it is a whole word with the end token behind it."""
    return output[-1:] == [END_ID] and is_beginning(output)


def is_beginning(output: List[int]) -> bool:
    return all(token in allowed_after(output[:i]) for i, token in enumerate(output))


@cache
def law_after(output: tuple[int, ...], temperature: float) -> np.ndarray:
    """The model's law of the next token among those allowed, [V]; float64."""
    logits = fresh_logits(SMALL, [*PROMPT, *output]).numpy()
    p = np.zeros(SMALL_VOCAB)
    allowed = sorted(allowed_after(output))
    weights = np.exp((logits[allowed] - logits[allowed].max()) / temperature)
    p[allowed] = weights / weights.sum()
    return p


def output_law(length: int, temperature: float) -> dict[tuple[int, ...], float]:
    """The probability of each output of at most `length` tokens, cut there if need be."""
    law: dict[tuple[int, ...], float] = {}
    open_: dict[tuple[int, ...], float] = {(): 1.0}
    while open_:
        longer: dict[tuple[int, ...], float] = {}
        for output, mass in open_.items():
            for token in np.flatnonzero(row := law_after(output, temperature)).tolist():
                text, chance = (*output, token), mass * float(row[token])
                into = law if token == END_ID or len(text) == length else longer
                into[text] = chance
        open_ = longer
    return law


def counted(outputs: Iterable[tuple[int, ...]], law: dict[tuple[int, ...], float]) -> np.ndarray:
    """How often each output of the law came. One that has no place there is an error."""
    counts = dict.fromkeys(law, 0)
    for output in outputs:
        assert output in counts, f"{output} is not in the language"
        counts[output] += 1
    return np.array(list(counts.values()))


def greedy_output(prompt: List[int], length: int, model: LoadedModel = SMALL) -> list[int]:
    """What plain greedy decoding gives under the toy grammar, token by token."""
    output: list[int] = []
    while len(output) < length and output[-1:] != [END_ID]:
        logits = fresh_logits(model, [*prompt, *output]).numpy()
        output.append(max(sorted(allowed_after(output)), key=lambda token: logits[token]))
    return output


def compiler(model: LoadedModel = SMALL) -> GrammarCompiler:
    tokenizer = model.tokenizer
    return GrammarCompiler(tokenizer.to_json, model.decoder.num_logits, tokenizer.end_token_ids)


def compiled(model: LoadedModel = SMALL, **asked: object) -> Grammar:
    """A grammar for a tiny model; the toy one unless another is asked for."""
    return compiler(model).compile(StructuredOutputsParams(**(asked or STRUCTURE)))


TOY = compiled()
