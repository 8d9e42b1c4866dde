"""Places for answers: as many as there are, freed as soon as an answer ends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from servers import tiny_llm

from outpace import LLM, SamplingParams
from outpace.engine.request import RequestGroup
from outpace.serving.admission import Admission
from outpace.serving.errors import ApiError


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with tiny_llm() as one:
        yield one


def group(llm: LLM, n: int = 1) -> RequestGroup:
    return llm.prepare({"prompt_token_ids": [5]}, SamplingParams(n=n, temperature=1))


def test_rows_and_queue_are_filled_then_429(llm: LLM) -> None:
    admission = Admission(num_rows=2, max_queue=1)
    with admission.admitted([group(llm, 2)]), admission.admitted([group(llm)]):
        with pytest.raises(ApiError) as caught:
            admission.check()
        assert caught.value.status == 429
        assert int(caught.value.headers["Retry-After"]) >= 1
        assert admission.rejected == {"queue_full": 1}
    assert admission.num_unfinished == 0
    admission.check(3)


def test_an_answer_that_has_ended_frees_its_place(llm: LLM) -> None:
    admission = Admission(num_rows=2, max_queue=0)
    both = group(llm, 2)
    with admission.admitted([both]):
        both.requests[0].fold.finish("stop")
        admission.check(1)
        with pytest.raises(ApiError):
            admission.check(2)


def test_places_are_free_after_an_error(llm: LLM) -> None:
    admission = Admission(num_rows=1, max_queue=0)
    with pytest.raises(ZeroDivisionError), admission.admitted([group(llm)]):
        raise ZeroDivisionError
    admission.check()


def test_what_never_fits_is_told_so(llm: LLM) -> None:
    admission = Admission(num_rows=2, max_queue=1)
    with pytest.raises(ApiError) as caught, admission.admitted([group(llm, 2), group(llm, 2)]):
        pass
    assert caught.value.status == 400
    assert "takes 3 at most" in caught.value.message


def test_nothing_is_admitted_after_close() -> None:
    admission = Admission(num_rows=2, max_queue=1)
    admission.close()
    with pytest.raises(ApiError) as caught:
        admission.check()
    assert caught.value.status == 503
