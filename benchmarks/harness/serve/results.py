"""Raw results of the server's benchmark: every single figure, before any averaging."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Answer:
    """One request, as its client saw it. Times in seconds from when it was sent.

    label, category: of its prompt. num_cached: prompt tokens that the server had in its cache.
    num_tokens, num_passes: output tokens, and target passes that gave them. ttft_s: until the first
    piece of the answer had come; total_s: until all of it had.
    """

    label: str
    category: str
    text: str
    num_prompt: int
    num_cached: int
    num_tokens: int
    num_passes: int
    ttft_s: float
    total_s: float

    @property
    def token_s(self) -> float | None:
        """Seconds per output token after the first; None for an answer of one."""
        num_more = self.num_tokens - 1
        return (self.total_s - self.ttft_s) / num_more if num_more > 0 else None


@dataclass(frozen=True, slots=True)
class LoadRun:
    """A set of requests, answered to several clients at once. Runs that agree in all but `method`
    were made right after each other.

    prompt: which set it was. answers: to its requests, in their order. total_s: until the last one
    had ended; client_s: processor time of all clients together.
    """

    num_clients: int
    round: int
    prompt: str
    method: str
    answers: tuple[Answer, ...]
    total_s: float
    client_s: float

    @property
    def token_speed(self) -> float:
        """Output tokens per second of all requests together, prompts included."""
        return sum(answer.num_tokens for answer in self.answers) / self.total_s

    @property
    def request_speed(self) -> float:
        """Requests per second."""
        return len(self.answers) / self.total_s


@dataclass(slots=True)
class Results:
    """Filled while measuring. `complete` becomes true at the very end. subject: the method under
    test."""

    subject: str = ""
    runs: list[LoadRun] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    elapsed_s: float = 0.0
    complete: bool = False
