"""The page in Chromium with the real server behind it and a tiny random model, once with the real
one."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from page_actions import (
    fill,
    measure,
    open_table,
    send,
    shown_steps,
    shown_tokens,
    visible,
    wait_until_done,
)
from playwright.sync_api import Browser, Page
from scripted import scripted
from servers import RunningServer, serving, tiny_llm

from outpace import LLM, SamplingParams
from outpace.models.load import LoadedModel
from outpace.types import Draft, Sequence

OpenPage = Callable[..., Page]
PROMPT = "the fox and the crow"
REFUSED = "Failed to load resource"  # Chromium says so in the console for every status over 399


GREEDY = SamplingParams(temperature=0, max_tokens=60)


class KnowingDrafter:
    """Knows greedy answers that were given before, and is right for none to three tokens of them.

    pause_s: seconds it takes for each draft, to make answers slow.
    """

    def __init__(self) -> None:
        self.answers: dict[tuple[int, ...], list[int]] = {}
        self.pause_s = 0.0

    def learn(self, llm: LLM, prompt: Any) -> None:
        group = llm.prepare(prompt, GREEDY, speculative=False)
        ids = group.output().prompt_token_ids
        (output,) = llm.generate({"prompt_token_ids": ids}, GREEDY, speculative=False)
        self.answers[tuple(ids)] = output.outputs[0].token_ids

    def propose(self, seq: Sequence, budget: int) -> Draft:
        time.sleep(self.pause_s)
        answer = self.answers.get(tuple(seq.tokens[: seq.num_prompt]), [])
        rest = answer[seq.num_output : seq.num_output + budget]
        num_right = seq.num_output % 4
        wrong = [(token + 1) % 96 for token in rest[num_right:]]
        return Draft(tuple(rest[:num_right] + wrong), origin="knowing")


@pytest.fixture(scope="module")
def drafter() -> KnowingDrafter:
    return KnowingDrafter()


@pytest.fixture(scope="module")
def server(browser: Browser, drafter: KnowingDrafter) -> Iterator[RunningServer]:
    method = {"method": scripted(drafter.propose), "num_speculative_tokens": 3}
    llm = tiny_llm(speculative_config=method)
    drafter.learn(llm, PROMPT)
    drafter.learn(llm, [{"role": "user", "content": PROMPT}])
    with serving(llm) as running:
        yield running


@pytest.fixture(autouse=True)
def _quick(drafter: KnowingDrafter) -> None:
    drafter.pause_s = 0.0


def asked_of_api(server: RunningServer, path: str, **fields: Any) -> tuple[str, list[Any], Any]:
    """The greedy answer of 60 tokens: its text as a whole, then its steps and usage as streamed."""
    body = {"model": server.llm.model_name, "temperature": 0, "max_tokens": 60} | fields
    (choice,) = server.post(path, body).json()["choices"]
    options = {"include_usage": True, "include_steps": True}
    lines = server.post(path, body | {"stream": True, "stream_options": options}).text.split("\n\n")
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    steps = [step for chunk in chunks for c in chunk["choices"] for step in c["steps"]]
    text = choice["text"] if "text" in choice else choice["message"]["content"]
    return text, steps, chunks[-1]["usage"]


def as_shown(steps: list[Any]) -> list[dict[str, Any]]:
    """Steps as `shown_steps` reads them off the page, for chains."""
    found = []
    for step in steps:
        kinds = [token["kind"] for token in step["tokens"]]
        drafted = [
            [visible(node["text"]), index < kinds.count("accepted")]
            for index, node in enumerate(step["drafted"])
        ]
        own = [[visible(t["text"]), t["kind"]] for t in step["tokens"] if t["kind"] != "accepted"]
        found.append({"drafted": drafted, "own": own[0] if own else None})
    return found


def set_up(page: Page, kind: str = "chat", **fields: Any) -> None:
    page.check(f"input[value={kind}]", force=True)
    fill(page, **{"prompt": PROMPT, "max_tokens": 60} | fields)


def test_the_page_names_the_model_and_the_methods(
    server: RunningServer, open_page: OpenPage
) -> None:
    page = open_page(server.url)  # and is quiet: see open_page
    assert page.inner_text("#model") == f"{server.llm.model_name} · drafting: scripted"
    assert page.locator("#method option").all_inner_texts() == [
        "scripted (default)",
        "none (plain decoding)",
    ]
    assert page.locator("#draft-length").get_attribute("placeholder") == "up to 3"
    page.select_option("#method", "none")
    assert page.locator("#draft-length").is_disabled()


@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_an_answer_is_what_the_api_says(
    server: RunningServer, open_page: OpenPage, kind: str
) -> None:
    if kind == "chat":
        path, asked = "/v1/chat/completions", {"messages": [{"role": "user", "content": PROMPT}]}
    else:
        path, asked = "/v1/completions", {"prompt": PROMPT}
    text, steps, usage = asked_of_api(server, path, **asked)
    page = open_page(server.url)
    set_up(page, kind)
    send(page)
    tokens = [(token["text"], token["kind"]) for step in steps for token in step["tokens"]]
    assert shown_tokens(page) == tokens
    assert {kind for _, kind in tokens} == {"accepted", "recovered", "bonus", "plain"}
    assert "".join(text for text, _ in shown_tokens(page)) == text
    assert shown_steps(page) == as_shown(steps)
    assert open_table(page).count() == len(steps)

    speculation = usage["speculation"]
    assert measure(page, "tokens") == "60"
    assert measure(page, "passes") == f"{speculation['num_target_passes']}"
    assert measure(page, "length") == f"{speculation['acceptance_length']:.2f}"
    pairs = zip(
        speculation["accepted_per_position"], speculation["drafted_per_position"], strict=True
    )
    bars = page.locator(".bars .bar-words").all_inner_texts()
    assert [bar.split(" (")[0] for bar in bars] == [f"{a} of {b}" for a, b in pairs]


def test_the_whole_form_is_sent(server: RunningServer, open_page: OpenPage) -> None:
    page = open_page(server.url)
    page.click("text=System message")
    page.click("text=JSON schema for the answer")
    set_up(page, system="Be brief.", schema='{"enum": ["yes", "no"]}', temperature="0,7", seed=-3)
    fill(page, top_p=0.9, draft_length=2)
    with page.expect_request("**/v1/chat/completions") as sent:
        send(page)
    assert page.locator("#error").is_hidden(), page.inner_text("#error")
    assert page.locator(".answer").evaluate("e => e.textContent") in ('"yes"', '"no"')
    assert sent.value.post_data_json == {
        "model": server.llm.model_name,
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": PROMPT},
        ],
        "temperature": 0.7,
        "top_p": 0.9,
        "max_completion_tokens": 60,
        "seed": -3,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": {"enum": ["yes", "no"]}, "strict": True},
        },
        "speculative_config": {"num_speculative_tokens": 2},
        "stream": True,
        "stream_options": {"include_usage": True, "include_steps": True},
    }


def test_what_is_left_empty_is_left_to_the_server(
    server: RunningServer, open_page: OpenPage
) -> None:
    page = open_page(server.url)
    set_up(page, "completion", temperature="", top_p="", max_tokens="")
    with page.expect_request("**/v1/completions") as sent:
        send(page)
    assert sorted(sent.value.post_data_json) == ["model", "prompt", "stream", "stream_options"]


@pytest.mark.parametrize("way", ["button", "escape", "leave"])
def test_stopping_frees_the_place_of_the_answer(
    server: RunningServer, open_page: OpenPage, drafter: KnowingDrafter, way: str
) -> None:
    drafter.pause_s = 0.05
    page = open_page(server.url)
    set_up(page, max_tokens=200)
    page.click("#send")
    page.locator(".answer .token").nth(3).wait_for()
    assert server.llm.state().num_running == 1
    assert page.locator(".answer").get_attribute("aria-busy") == "true"
    if way == "leave":
        page.goto("about:blank")
        server.wait_until_idle()
        return
    page.click("#stop") if way == "button" else page.keyboard.press("Escape")
    server.wait_until_idle()
    wait_until_done(page)
    num_tokens = len(shown_tokens(page))
    assert 3 < num_tokens < 200
    assert page.inner_text("#status") == f"Stopped after {num_tokens} tokens."
    assert page.inner_text(".finish") == "Stopped."
    assert page.locator(".answer").get_attribute("aria-busy") is None
    assert page.locator("#error").is_hidden()
    drafter.pause_s = 0.0
    set_up(page)
    send(page)
    assert len(shown_tokens(page)) == 60


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_comparison_finds_equal_answers_and_their_speeds(
    server: RunningServer, open_page: OpenPage, temperature: int
) -> None:
    page = open_page(server.url)
    set_up(page, temperature=temperature)
    page.click("#compare")
    page.wait_for_selector("#verdict:visible")
    same = page.inner_text("#verdict-same")
    how = "with the same seed" if temperature else "decoded greedily"
    assert re.fullmatch(rf"Same text: (\d+) of \1 token ids are equal \({how}\)\.", same)
    assert temperature or "60 of 60" in same
    assert page.locator(".run-title").all_inner_texts() == ["Plain", "Speculative: scripted"]
    assert {kind for _, kind in shown_tokens(page, 0)} == {"plain"}
    assert {kind for _, kind in shown_tokens(page, 1)} > {"plain"} or temperature
    assert [text for text, _ in shown_tokens(page, 0)] == [t for t, _ in shown_tokens(page, 1)]
    seed = page.input_value("#seed")
    assert seed.isdecimal() if temperature else seed == ""
    if temperature:
        return  # with whatever seed, the answer may end with its first token and have no speed
    plain, speculative = (float(measure(page, "speed", run).replace(",", "")) for run in (0, 1))
    ratio = float(page.inner_text("#verdict-speed strong").split()[0].replace(",", ""))
    assert ratio == pytest.approx(speculative / plain, rel=0.02, abs=0.01)
    send(page)  # from now on it is known how fast plain decoding is
    assert "× plain" in measure(page, "against")


def test_what_the_server_refuses_is_said(server: RunningServer, open_page: OpenPage) -> None:
    page = open_page(server.url, noise=(REFUSED,))
    set_up(page, draft_length=99)
    send(page)
    assert "num_speculative_tokens=99 is more than the 3" in page.inner_text("#error")
    set_up(page, draft_length="", temperature=-1)
    send(page)
    assert "temperature" in page.inner_text("#error")
    page.context.set_offline(True)
    send(page)
    assert page.inner_text("#error") == "The server cannot be reached."
    page.context.set_offline(False)
    set_up(page, temperature=0)
    send(page)
    assert page.locator("#error").is_hidden()
    assert len(shown_tokens(page)) == 60


def test_a_key_is_asked_for_and_kept_only_on_demand(open_page: OpenPage) -> None:
    kept = "sessionStorage.length + localStorage.length + document.cookie.length"
    with serving(api_keys=("right",)) as server:
        page = open_page(server.url, noise=(REFUSED,))
        assert "API key" in page.inner_text("#error")
        assert page.locator("#key").evaluate("e => e === document.activeElement")
        page.fill("#key", "wrong")
        page.keyboard.press("Enter")
        wait_until_done(page)
        assert "API key" in page.inner_text("#error")
        page.fill("#key", "right")
        page.keyboard.press("Tab")
        page.wait_for_selector("#model:not(:empty)")
        set_up(page, max_tokens=5)
        send(page)
        assert len(shown_tokens(page)) == 5
        assert page.evaluate(kept) == 0

        page.check("#keep-key")
        page.reload()
        page.wait_for_selector("#model:not(:empty)")
        assert page.input_value("#key") == "right"
        page.uncheck("#keep-key")
        assert page.evaluate(kept) == 0
        page.reload()
        page.wait_for_selector("#error:visible")
        assert page.input_value("#key") == ""


def test_the_keyboard_is_enough(
    server: RunningServer, open_page: OpenPage, drafter: KnowingDrafter
) -> None:
    page = open_page(server.url)
    reached = []
    for _ in range(12):
        page.keyboard.press("Tab")
        name, outline = page.evaluate(
            """() => {
              const e = document.activeElement;
              const shown = e.type === "radio" ? e.nextElementSibling : e;
              return [e.id || e.value || e.textContent, getComputedStyle(shown).outlineStyle];
            }"""
        )
        assert outline == "solid", name
        reached.append(name)
    assert reached == [
        *("chat", "prompt", "temperature", "top-p", "max-tokens", "seed", "method"),
        *("draft-length", "System message", "JSON schema for the answer", "send", "compare"),
    ]
    page.focus("#prompt")
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type(PROMPT)
    drafter.pause_s = 0.02
    page.keyboard.press("Control+Enter")
    page.locator(".answer .token").nth(2).wait_for()
    page.keyboard.press("Escape")
    wait_until_done(page)
    assert page.inner_text(".finish") == "Stopped."
    page.focus(".timeline")
    assert page.locator(".timeline").evaluate("e => getComputedStyle(e).outlineStyle") == "solid"


def test_screen_readers_hear_beginnings_and_ends(
    server: RunningServer, open_page: OpenPage
) -> None:
    page = open_page(server.url)
    page.evaluate(
        """() => {
          window.heard = [];
          const watch = new MutationObserver(() => heard.push(status.textContent));
          const status = document.getElementById("status");
          watch.observe(status, { childList: true, characterData: true, subtree: true });
        }"""
    )
    set_up(page)
    send(page)
    page.wait_for_function("heard.length >= 2")
    heard = page.evaluate("heard")
    assert heard[0] == "Answering."
    assert heard[1].startswith("Done: 60 tokens in ")
    assert len(heard) == 2
    assert page.locator("[aria-live]").count() == 0


@pytest.mark.model
def test_the_default_model_answers(
    browser: Browser, open_page: OpenPage, default_model: Callable[..., LoadedModel]
) -> None:
    method = {"method": "ngram", "num_speculative_tokens": 4}
    llm = LLM(default_model(), speculative_config=method, max_num_seqs=2, max_model_len=1024)
    with serving(llm) as server:
        page = open_page(server.url)
        set_up(page, prompt="Write the numbers from 1 to 30, separated by commas.", max_tokens=48)
        page.click("#compare")
        page.wait_for_selector("#verdict:visible", timeout=60_000)
        assert "Same text: 48 of 48" in page.inner_text("#verdict-same")
        text, _ = zip(*shown_tokens(page, 1), strict=True)
        messages = [{"role": "user", "content": page.input_value("#prompt")}]
        said = asked_of_api(server, "/v1/chat/completions", messages=messages, max_tokens=48)
        assert "".join(text) == said[0]
        assert float(measure(page, "length", 1)) > 1
