"""Prompts to train on: read from files, told apart by source, put in an order of their own."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as List
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outpace.errors import OptionError
from outpace.files import read_text
from outpace.training.jsonl import optional_text, read_rows

if TYPE_CHECKING:
    from outpace.models.tokenizer import Tokenizer

JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
_EXPECTED = "`prompt` (a string), `turns` (a list of strings) or `messages` (of role and content)"


@dataclass(frozen=True, slots=True)
class Prompt:
    """A conversation up to and including the user's turn that is to be answered.

    messages: (role, content) of each turn. source: where it comes from; limits and reports go by
    it. category, license: as stated in its file, "" where they are not.
    """

    messages: tuple[tuple[str, str], ...]
    source: str
    category: str = ""
    license: str = ""

    @classmethod
    def from_user(cls, text: str, source: str, category: str = "", license: str = "") -> Prompt:
        return cls((("user", text),), source, category, license)

    @property
    def text(self) -> str:
        """All that is said in it."""
        return "\n\n".join(content for _, content in self.messages)

    def token_ids(self, tokenizer: Tokenizer) -> list[int]:
        """In the model's chat template, ready to be answered; of a model without one the bare
        text."""
        if tokenizer.chat_template is None:
            return tokenizer.encode(self.text)
        messages = [{"role": role, "content": content} for role, content in self.messages]
        text = tokenizer.apply_chat_template(messages)
        return tokenizer.encode(text, add_special_tokens=False)


def read_prompts(paths: Iterable[Path]) -> list[Prompt]:
    """The prompts of files in their order, each only once.

    JSON lines (.jsonl, .ndjson, .json) hold one prompt each: `prompt`, `turns` of which the first
    is taken, or `messages` up to the last of the user; `source` (else the name of the file),
    `category` and `license` are kept. Any other file is text with a prompt on each line.

    Raises OptionError with the file and the line for a line that is no prompt, and for a file
    without any.
    """
    prompts: dict[tuple[tuple[str, str], ...], Prompt] = {}
    for path in paths:
        found = list(_of_file(Path(path)))
        if not found:
            raise OptionError(f"{path} holds no prompt; expected one on each line: {_EXPECTED}")
        for prompt in found:
            prompts.setdefault(prompt.messages, prompt)
    return list(prompts.values())


def select_prompts(
    prompts: Iterable[Prompt],
    *,
    seed: int = 0,
    most: int | None = None,
    most_per_source: int | None = None,
    limits: Mapping[str, int] | None = None,
) -> list[Prompt]:
    """Prompts in random order, at most `most` of them.

    most_per_source: of each source; `limits` says otherwise for some. The order depends on the
    seed and the texts alone, so that a file with more prompts adds to a selection instead of
    replacing it. Raises OptionError for a limit on a source that does not occur.
    """
    prompts, limits = list(prompts), dict(limits or {})
    unknown = sorted(limits.keys() - {prompt.source for prompt in prompts})
    if unknown:
        sources = ", ".join(sorted({prompt.source for prompt in prompts})[:12])
        raise OptionError(f"there is no prompt of source {unknown[0]!r}; there are {sources}")
    taken: Counter[str] = Counter()
    chosen = []
    for prompt in sorted(prompts, key=lambda prompt: _rank(prompt, seed)):
        limit = limits.get(prompt.source, most_per_source)
        if limit is not None and taken[prompt.source] >= limit:
            continue
        taken[prompt.source] += 1
        chosen.append(prompt)
    return chosen[:most]


def _rank(prompt: Prompt, seed: int) -> bytes:
    return hashlib.sha256(f"{seed}:{prompt.messages}".encode(errors="surrogatepass")).digest()


def _of_file(path: Path) -> Iterator[Prompt]:
    if path.suffix in JSON_SUFFIXES:
        for where, row in read_rows(path):
            yield Prompt(
                messages_of_row(row, where),
                optional_text(row, "source", where) or path.stem,
                optional_text(row, "category", where),
                optional_text(row, "license", where),
            )
        return
    for line in read_text(path).splitlines():
        if line.strip():
            yield Prompt.from_user(line.strip(), path.stem)


def messages_of_row(row: dict[str, Any], where: str) -> tuple[tuple[str, str], ...]:
    """(role, content) of the conversation that a JSON object holds. where: said in errors."""
    if "prompt" in row:
        return (("user", _text(row["prompt"], "prompt", where)),)
    if "turns" in row:
        turns = row["turns"]
        if not isinstance(turns, list) or not turns:
            raise OptionError(f"{where}: turns must be a list of strings, got {turns!r:.60}")
        return (("user", _text(turns[0], "turns[0]", where)),)
    if "messages" in row:
        return _conversation(row["messages"], where)
    raise OptionError(f"{where}: expected {_EXPECTED}, got the keys {', '.join(map(str, row))}")


def _conversation(given: Any, where: str) -> tuple[tuple[str, str], ...]:
    if not isinstance(given, list):
        raise OptionError(f"{where}: messages must be a list, got {given!r:.60}")
    messages = []
    for index, message in enumerate(given):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise OptionError(
                f"{where}: messages[{index}] must be an object with role and content, "
                f"got {message!r:.60}"
            )
        content = _text(message.get("content"), f"messages[{index}].content", where)
        messages.append((message["role"], content))
    while messages and messages[-1][0] != "user":
        messages.pop()
    if not messages:
        raise OptionError(f"{where}: messages hold no turn of the user to be answered")
    return tuple(messages)


def _text(value: Any, name: str, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise OptionError(f"{where}: {name} must be a text that is not empty, got {value!r:.60}")
    return value


def count_sources(prompts: List[Prompt]) -> dict[str, tuple[int, str]]:
    """Source -> (how many prompts, the licence they state, "several" if not the same)."""
    counts = Counter(prompt.source for prompt in prompts)
    licenses: dict[str, set[str]] = {source: set() for source in counts}
    for prompt in prompts:
        licenses[prompt.source].add(prompt.license)
    return {
        source: (count, found.pop() if len(found := licenses[source]) == 1 else "several")
        for source, count in counts.most_common()
    }
