"""`outpace chat`: a conversation, in a terminal or through a pipe."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import click

from outpace.cli.chat_local import LocalModel, Partner, Reply
from outpace.cli.given import is_given
from outpace.cli.interrupts import interrupt_flag
from outpace.cli.options import check_stdin, engine_options, flag_of, open_llm
from outpace.cli.sampling import build_sampling, sampling_options
from outpace.errors import OptionError, OutpaceError
from outpace.params import SamplingParams

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
    answers: list[Reply] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.messages = [] if self.system is None else [_message("system", self.system)]

    def stats_line(self) -> str:
        stats = [answer.stats for answer in self.answers]
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
@click.option("--url", metavar="URL", help="Talk with the model of a running `outpace serve`.")
@click.option(
    "--api-key",
    envvar="OUTPACE_API_KEY",
    help="With --url: the server's key.  [default: $OUTPACE_API_KEY, which `ps` does not show]",
)
@sampling_options(NOT_IN_A_CHAT)
@engine_options
def chat(system: str | None, url: str | None, api_key: str | None, **values: Any) -> int:
    """Talk with a model. Lines starting with / are commands; /help lists them.

    With standard input from a pipe each line is one message.
    """
    params = build_sampling(values, NOT_IN_A_CHAT)
    check_stdin()
    if url is not None:
        return _converse(_server(url, api_key, values), Conversation(system), params)
    with open_llm(values) as llm:
        return _converse(LocalModel(llm), Conversation(system), params)


def _server(url: str, api_key: str | None, values: dict[str, Any]) -> Partner:
    """The server at `url`. Raises OptionError for options that are its own to decide."""
    from outpace.cli.chat_remote import RemoteModel

    given = {name for name in values if is_given(name)}
    per_request = {"method", "num_speculative_tokens"}
    sampling = {field.name for field in dataclasses.fields(SamplingParams)}
    others = sorted(given - per_request - sampling - {"model"})
    if others:
        flags = ", ".join(flag_of(name) for name in others)
        raise OptionError(
            f"{flags} concerns a model in this process; the server at --url has its own"
        )
    speculation = {name: values[name] for name in sorted(per_request & given)}
    model = values["model"] if "model" in given else None
    # The variable may hold several keys, as `outpace serve` takes them; any of them will do.
    first_key = next(iter((api_key or "").split()), None)
    return RemoteModel(url, api_key=first_key, model=model, speculation=speculation)


def _converse(partner: Partner, conversation: Conversation, params: SamplingParams) -> int:
    """Answer line after line; returns the exit status."""
    is_terminal = sys.stdin.isatty()
    num_failed = 0
    if is_terminal:
        click.echo(partner.banner(), err=True)
    notice = partner.notice(params)
    if notice is not None:
        click.echo(notice, err=True)
    for line in _read_lines():
        if line.startswith("/"):
            if not _run_command(line, conversation):
                break
        elif line:
            num_failed += not _answer(partner, conversation, line, params)
    # A script must learn that an answer is missing; a person has seen the message.
    return 1 if num_failed and not is_terminal else 0


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


def _answer(
    partner: Partner, conversation: Conversation, text: str, params: SamplingParams
) -> bool:
    """Stream one answer; False where there is none, and the history is as it was."""
    messages = [*conversation.messages, _message("user", text)]

    def show(piece: str) -> None:
        click.echo(piece, nl=False)

    try:
        with interrupt_flag() as interrupted:
            reply = partner.answer(messages, params, show, interrupted.is_set)
    except OutpaceError as error:
        click.echo(f"error: {' '.join(str(error).split())}", err=True)
        return False
    click.echo("  (stopped)" if interrupted.is_set() else "")
    conversation.messages = [*messages, _message("assistant", reply.text)]
    conversation.answers.append(reply)
    return True


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


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
