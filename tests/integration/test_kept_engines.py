"""Engines that are kept: an interruption ends their requests before the event loop is gone."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import pytest
from engine_cases import PROMPT, TARGET

from outpace import SamplingParams
from outpace.measure.kept import KeptEngine

LONG = SamplingParams(max_tokens=200, ignore_eos=True)
SHORT = SamplingParams(max_tokens=4, ignore_eos=True)


@pytest.mark.parametrize("times", [1, 2])
def test_an_interrupted_batch_leaves_nothing_behind(times: int, caplog: Any) -> None:
    engine = KeptEngine(TARGET, {"method": "none"}, name="plain", max_model_len=256, max_num_seqs=2)

    def interrupt() -> None:
        while engine.llm.metrics.num_steps < before + 3:
            time.sleep(0.001)
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGINT)

    try:
        engine.generate_batch([PROMPT], [SHORT])
        before = engine.llm.metrics.num_steps
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            engine.generate_batch([PROMPT, PROMPT], [LONG, LONG])
        thread.join()
        (answer,) = engine.generate_batch([PROMPT], [SHORT]).answers
        assert len(answer.token_ids) == 4
        assert not engine.llm._loop._listeners
    finally:
        engine.close()
    assert not caplog.records
