"""What the server allows, and where it listens."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from outpace.errors import OptionError

_LIMITS = (
    "max_body_bytes",
    "max_n",
    "max_prompts",
    "max_stop",
    "max_schema_bytes",
    "max_regex_chars",
    "max_choices",
    "max_connections",
)
_NOT_NEGATIVE = ("max_queue", "max_logprobs", "max_logit_bias")
_DURATIONS = ("grammar_timeout_s", "body_timeout_s", "keep_alive_s", "send_timeout_s")


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Where the server listens, whom it answers, and how much one request may ask for.

    host: the address to listen on; a name or an IP address.
    port: 0 takes a free one.
    api_keys: keys that requests may bring as "Authorization: Bearer KEY"; without any, everybody
        who reaches the port is answered.
    allowed_hosts: names in the Host header that are answered besides the loopback ones and `host`;
        "*" answers all.
    served_model_names: what requests call the model (default: its name as given).
    max_queue: most answers that wait for a place; beyond it requests get 429.
    max_connections: most requests that are read or answered at once.
    max_body_bytes: most bytes of a request's body.
    max_n: most answers to one prompt.
    max_prompts: most prompts in one completions request.
    max_stop: most stop strings.
    max_logprobs: most log-probabilities for one token.
    max_logit_bias: most entries of logit_bias.
    max_schema_bytes: most bytes of a JSON schema or a grammar.
    max_regex_chars: most characters of a regular expression.
    max_choices: most texts in a choice.
    grammar_timeout_s: most seconds to compile a grammar.
    body_timeout_s: seconds in which a request must have arrived as a whole.
    send_timeout_s: seconds in which a client may read nothing of an answer that waits for it.
    keep_alive_s: seconds that a connection may stay open between requests.
    shutdown_grace_s: seconds in which running answers may end after a signal to stop.

    Raises OptionError for values that make no sense.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    allowed_hosts: tuple[str, ...] = ()
    served_model_names: tuple[str, ...] = ()
    max_queue: int = 64
    max_connections: int = 512
    max_body_bytes: int = 2 * 2**20
    max_n: int = 16
    max_prompts: int = 64
    max_stop: int = 16
    max_logprobs: int = 20
    max_logit_bias: int = 1024
    max_schema_bytes: int = 64 * 2**10
    max_regex_chars: int = 4096
    max_choices: int = 1024
    grammar_timeout_s: float = 5.0
    body_timeout_s: float = 30.0
    send_timeout_s: float = 60.0
    keep_alive_s: float = 15.0
    shutdown_grace_s: float = 30.0

    def __post_init__(self) -> None:
        for names, low, high, wanted in (
            (_LIMITS, 1, math.inf, "at least 1"),
            (_NOT_NEGATIVE, 0, math.inf, "0 or more"),
            (_DURATIONS, 0.001, 86_400, "between 0.001 and 86400 seconds"),
            (("shutdown_grace_s",), 0, 86_400, "between 0 and 86400 seconds"),
            (("port",), 0, 65_535, "between 0 and 65535"),
        ):
            for name in names:
                value: float = getattr(self, name)
                if not low <= value <= high:
                    raise OptionError(f"{name} must be {wanted}, got {value!r}")
        for key in self.api_keys:
            if not re.fullmatch(r"[!-~]+", key):
                raise OptionError(
                    "an API key is empty, or holds spaces or characters that are not ASCII; "
                    "clients could not send it in a header"
                )
        for name in ("allowed_hosts", "served_model_names"):
            if any(not text.strip() for text in getattr(self, name)):
                raise OptionError(f"{name} holds an empty name")
