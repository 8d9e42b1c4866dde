"""`outpace serve` as a process of its own, on a free port of this machine."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO
from urllib.parse import urlsplit

from harness.serve.options import Options
from outpace.errors import OutpaceError

MODEL_NAME = "served"
"""What requests call the model."""

STOP_S = 10.0
_PROGRAM = "from outpace.cli.main import main; main()"
_URL = re.compile(r"served at (http://\S+)")


def arguments_of(options: Options, max_model_len: int) -> list[str]:
    """What follows the interpreter on the server's command line."""
    given = {
        "--model": options.model,
        "--dtype": options.dtype,
        "--model-impl": options.model_impl,
        "--device": options.device,
        "--threads": options.threads,
        "--method": options.method,
        "--max-num-seqs": options.max_num_seqs,
        "--max-model-len": max_model_len,
        "--served-model-name": MODEL_NAME,
        "--host": "127.0.0.1",
        "--port": 0,
        # No set of requests may be turned away.
        "--max-queue": max(options.clients),
    }
    flags = [(flag, str(value)) for flag, value in given.items() if value is not None]
    return ["-c", _PROGRAM, "serve", *(word for pair in flags for word in pair)]


@contextmanager
def serving(arguments: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Run Python with these arguments, and give the host and port that the server it becomes says
    it listens at; end it when the block is left.

    Raises OutpaceError with the server's last word if it ends before.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8") as log:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            encoding="utf-8",
            # Ctrl-C is for the benchmark, which ends the server in its own time.
            start_new_session=True,
        )
        try:
            yield _address(process, log)
        finally:
            _stop(process)


def _address(process: subprocess.Popen[str], log: IO[str]) -> tuple[str, int]:
    assert process.stdout is not None
    for line in process.stdout:
        found = _URL.search(line)
        if found:
            url = urlsplit(found[1])
            assert url.hostname is not None
            assert url.port is not None
            return url.hostname, url.port
    process.wait()
    log.seek(0)
    said = [line.strip() for line in log if line.strip()]
    reason = (
        re.sub("^error: ", "", said[-1], flags=re.I)
        if said
        else f"exit status {process.returncode}"
    )
    raise OutpaceError(f"outpace serve did not start: {reason}")


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    assert process.stdout is not None
    process.stdout.close()
