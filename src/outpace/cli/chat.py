"""`outpace chat`: a conversation, in a terminal or through a pipe."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from outpace.cli.answers import Answer, run_request
from outpace.cli.options import check_stdin, engine_options, open_llm
from outpace.cli.sampling import build_sampling, sampling_options
from outpace.errors import OptionError, OutpaceError
from outpace.outputs import Event
from outpace.params import SamplingParams

if TYPE_CHECKING:
    from outpace import LLM

ACCEPTED_COLOUR = "cyan"
# A conversation has one answer a turn, and shows its text alone.
NOT_IN_A_CHAT = ("n", "logprobs", "prompt_logprobs")
HELP = """\
/reset  forget the conversation
/stats  tokens, speed and acceptance so far
/help   this list
/quit   leave (so does end of input)
Ctrl-C  stop the answer being written"""


@dataclass
class Conversation:
    """The messages so far and the answers given, for /stats."""

    system: str | None = None
    messages: list[dict[str, str]] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.messages = [] if self.system is None else [_message("system", self.system)]

    def stats_line(self) -> str:
        stats = [answer.output.stats for answer in self.answers]
        num_steps = sum(s.num_steps for s in stats)
        num_output = sum(s.num_output_tokens for s in stats)
        length = num_output / num_steps if num_steps else 0.0
        speeds = [a.tokens_per_s for a in self.answers if a.tokens_per_s is not None]
        last = f", last answer {speeds[-1]:.1f} tokens/s" if speeds else ""
        counts = (
            (len(self.answers), "answer"),
            (num_output, "token"),
            (num_steps, "step"),
        )
        answers, tokens, steps = (f"{n} {noun}{'' if n == 1 else 's'}" for n, noun in counts)
        return f"{answers}, {tokens} in {steps}, acceptance length {length:.2f}{last}"


@click.command()
@click.option("--system", metavar="TEXT", help="A system message to begin with.")
@sampling_options(NOT_IN_A_CHAT)
@engine_options
def chat(system: str | None, **values: Any) -> int:
    """Talk with a model. Lines starting with / are commands; /help lists them.

    With standard input from a pipe each line is one message.
    """
    params = build_sampling(values, NOT_IN_A_CHAT)
    check_stdin()
    is_terminal = sys.stdin.isatty()
    num_failed = 0
    with open_llm(values) as llm:
        conversation = Conversation(system)
        if is_terminal:
            click.echo(banner(llm), err=True)
        if llm.lossy and not params.is_greedy:
            click.echo(f"LOSSY: {llm.lossy} changes what the model says.", err=True)
        for line in _read_lines():
            if line.startswith("/"):
                if not _run_command(line, conversation):
                    break
            elif line:
                num_failed += not _answer(llm, conversation, line, params)
    # A script must learn that an answer is missing; a person has seen the message.
    return 1 if num_failed and not is_terminal else 0


def banner(llm: LLM) -> str:
    """The line a terminal shows first."""
    colours = f" Accepted draft tokens look {click.style('like this', fg=ACCEPTED_COLOUR)}."
    shown = "" if llm.method == "none" else colours
    return f"{llm.model_name}, method {llm.method}.{shown} /help lists the commands."


def _run_command(line: str, conversation: Conversation) -> bool:
    """Obey one /command; False for /quit."""
    command = line.split()[0]
    if command == "/quit":
        return False
    if command == "/reset":
        conversation.reset()
        click.echo("The conversation is forgotten.")
    elif command == "/stats":
        click.echo(conversation.stats_line())
    elif command == "/help":
        click.echo(HELP)
    else:
        click.echo(f"error: unknown command {command}; /help lists the commands", err=True)
    return True


def _answer(llm: LLM, conversation: Conversation, text: str, params: SamplingParams) -> bool:
    """Stream one answer; False where there is none, and the history is as it was."""
    messages = [*conversation.messages, _message("user", text)]
    shown: list[str] = []

    def show(event: Event) -> None:
        shown.append(event.text)
        click.echo(styled(llm, event), nl=False)

    try:
        with _interrupt_flag() as interrupted:
            answer = run_request(llm, messages, params, show=show, stopped=interrupted.is_set)
    except OutpaceError as error:
        click.echo(f"error: {' '.join(str(error).split())}", err=True)
        return False
    click.echo("  (stopped)" if interrupted.is_set() else "")
    conversation.messages = [*messages, _message("assistant", "".join(shown))]
    conversation.answers.append(answer)
    return True


def styled(llm: LLM, event: Event) -> str:
    """The event's text with accepted draft tokens in another colour.

    Text is coloured token by token where the tokens' own texts make up the event's text.
    Where they do not (a character or a stop string in the making) one colour serves for all.
    """
    if not any(event.origins):
        return event.text
    pieces = [llm.tokenizer.decode([i], skip_special_tokens=True) for i in event.token_ids]
    if len(pieces) != len(event.origins) or "".join(pieces) != event.text:
        return click.style(event.text, fg=ACCEPTED_COLOUR)
    return "".join(
        click.style(piece, fg=ACCEPTED_COLOUR) if origin else piece
        for piece, origin in zip(pieces, event.origins, strict=True)
    )


def _read_lines() -> Iterator[str]:
    """Lines of input until its end; Ctrl-C at the prompt only clears the line.

    Raises OptionError for piped input that is not UTF-8.
    """
    if not sys.stdin.isatty():
        for line in sys.stdin.buffer:
            try:
                yield line.decode("utf-8").strip()
            except UnicodeDecodeError as error:
                raise OptionError(f"standard input is not valid UTF-8: {error}") from error
        return
    import readline  # noqa: F401  (line editing and history for input())

    while True:
        try:
            yield input("> ").strip()
        except KeyboardInterrupt:
            click.echo("\n/quit leaves.", err=True)
        except UnicodeDecodeError as error:
            click.echo(f"error: the line is not valid UTF-8: {error}", err=True)
        except EOFError:
            click.echo()
            return


@contextmanager
def _interrupt_flag() -> Iterator[threading.Event]:
    """Ctrl-C sets the flag, so that no step is cut in the middle; a second one interrupts."""
    flag = threading.Event()

    def on_interrupt(signum: int, frame: object) -> None:
        if flag.is_set():
            raise KeyboardInterrupt
        flag.set()

    if threading.current_thread() is not threading.main_thread():
        yield flag  # handlers can only be set in the main thread
        return
    previous = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield flag
    finally:
        signal.signal(signal.SIGINT, previous)


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
