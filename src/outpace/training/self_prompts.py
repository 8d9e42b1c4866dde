"""Prompts that the target invents: it writes the user's turn of its own chat template.

Magpie (2406.08464): a model tuned on conversations, given nothing but the beginning of one, goes on
with a request of the kind it was tuned on. Such prompts are as broad as what it has seen, and free.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as List
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from outpace.errors import OptionError
from outpace.params import SamplingParams
from outpace.training.generator import (
    BATCH,
    Generator,
    choose,
    derived_seed,
    derived_share,
    finished_in_order,
)
from outpace.training.jsonl import GrowingFile
from outpace.training.prompts import Prompt

if TYPE_CHECKING:
    from outpace.models.tokenizer import Tokenizer

SOURCE = "self"
LICENSE = "none (written by the target)"
_MARKER = "8c1fUSERTURN"
_MIN_CHARS = 12
_ENOUGH_TRIES, _LEAST_SHARE = 128, 0.05
"""A model that writes fewer prompts per try than this share, after that many, is given up on."""


@dataclass(frozen=True, kw_only=True)
class SelfPromptOptions:
    """What a target is to invent.

    target: fingerprint of the model. beginnings: first words of the user ("Translate German to
    English: ") and the share of prompts to start with them; "" leaves all to the model. Shares are
    relative to their sum. max_tokens: what is longer is dropped unfinished.
    """

    target: str
    beginnings: Mapping[str, float] = field(default_factory=lambda: {"": 1.0})
    max_tokens: int = 96
    seed: int = 0

    @property
    def run(self) -> str:
        """Equal for runs that invent the same prompts."""
        parts = f"{self.target} {sorted(self.beginnings.items())} {self.max_tokens} {self.seed}"
        return hashlib.sha256(parts.encode(errors="surrogatepass")).hexdigest()[:12]

    def beginning(self, number: int) -> str:
        """Of a try."""
        position = derived_share(self.seed, "beginning", number)
        return choose(position, list(self.beginnings.items()))

    def params(self, number: int, turn_end: str) -> SamplingParams:
        return SamplingParams(
            temperature=1.0,
            max_tokens=self.max_tokens,
            seed=derived_seed(self.seed, "prompt", number),
            stop=(turn_end,) if turn_end else (),
        )


def self_prompts(
    count: int,
    generator: Generator,
    tokenizer: Tokenizer,
    path: Path,
    options: SelfPromptOptions,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> list[Prompt]:
    """`count` different prompts, drawn at temperature 1. Their source names their beginning.

    path: JSON lines that grow as prompts come. Interrupted at any moment and called again, a run
    ends with the same file as uninterrupted.

    Raises OptionError for a model without a chat template, a file that another run made, or a
    model that hardly ever ends a user's turn.
    """
    prompts: dict[str, Prompt] = {}
    tried = 0
    with GrowingFile(path) as file:
        for row in file.rows:
            if row.get("run") != options.run:
                raise OptionError(
                    f"{path} holds prompts of another model or made with other options; give the "
                    "same ones to go on, or another file to start anew"
                )
            prompts[row["prompt"]] = _prompt(row["prompt"], row["source"])
            tried = row["try"] + 1
        progress(min(len(prompts), count), count)
        while len(prompts) < count:
            tries = range(tried, tried + min(BATCH, 2 * (count - len(prompts)) + 8))
            for number, text, source in _written(tries, generator, tokenizer, options):
                if text in prompts or len(prompts) == count:
                    continue
                prompts[text] = _prompt(text, source)
                row = {"prompt": text, "source": source, "license": LICENSE}
                file.add({**row, "try": number, "run": options.run})
                progress(len(prompts), count)
            tried = tries.stop
            _check_yield(len(prompts), tried, options)
    return list(prompts.values())[:count]


def _prompt(text: str, source: str) -> Prompt:
    return Prompt.from_user(text, source, "", LICENSE)


def _written(
    tries: range, generator: Generator, tokenizer: Tokenizer, options: SelfPromptOptions
) -> Iterator[tuple[int, str, str]]:
    """(number, text, source) of the tries that became a prompt, in their order."""
    start, end = user_turn(tokenizer)
    chosen = [options.beginning(number) for number in tries]
    # Words are spelled with the space before them: one at the end would stand where the model
    # never saw one.
    asked = [tokenizer.encode(start + words.rstrip(), False) for words in chosen]
    params = [options.params(number, end) for number in tries]
    finished = finished_in_order(generator, asked, params)
    for number, words, ids in zip(tries, chosen, finished, strict=True):
        written = _turn(ids, tokenizer, end)
        if written is None or (words != words.rstrip() and not written[:1].isspace()):
            continue
        if len(written.strip()) >= _MIN_CHARS:
            source = f"{SOURCE}:{words.strip()}" if words.strip() else SOURCE
            yield number, (words.rstrip() + written).strip(), source


def _turn(token_ids: List[int], tokenizer: Tokenizer, turn_end: str) -> str | None:
    """The text up to the end of the turn; None if it did not end, or is not fit for a prompt."""
    text = tokenizer.decode(token_ids, skip_special_tokens=False)
    ends = [turn_end, *map(tokenizer.token_text, tokenizer.end_token_ids)]
    found = [text.find(end) for end in ends if end and end in text]
    if not found:
        return None
    text = text[: min(found)]
    ids = tokenizer.encode(text, add_special_tokens=False)
    has_control = tokenizer.decode(ids) != tokenizer.decode(ids, skip_special_tokens=False)
    return None if has_control or "\ufffd" in text else text


def user_turn(tokenizer: Tokenizer) -> tuple[str, str]:
    """(what stands before the user's first words in the model's chat template, what ends them).

    Raises OptionError for a model without a chat template, or one that hides what the user says.
    """
    messages = [{"role": "user", "content": _MARKER}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=False)
    before, found, after = text.partition(_MARKER)
    if not found:
        raise OptionError(
            f"the chat template of {tokenizer.name} does not repeat what the user says, so that "
            "the model cannot invent prompts; give some in a file"
        )
    return before, after.strip()


def _check_yield(num_prompts: int, tried: int, options: SelfPromptOptions) -> None:
    if tried >= _ENOUGH_TRIES and num_prompts < _LEAST_SHARE * tried:
        raise OptionError(
            f"of {tried} prompts that the target began only {num_prompts} were new and came to "
            f"an end within {options.max_tokens} tokens; give prompts in a file, or more tokens"
        )
