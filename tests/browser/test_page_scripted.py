"""The page over answers that are written down: hostile texts, broken streams, and how it looks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import pytest
import uvicorn
from page_actions import fill, measure, open_table, send, shown_steps, shown_tokens, visible
from playwright.sync_api import Page
from scripted_page import DONE, Piece, chunk, event, scripted_app, step

from outpace.serving.run import open_socket, url_of
from outpace.serving.settings import ServerSettings

Serve = Callable[..., str]
ANSWER = [
    chunk("A", [step([("A", "plain")], ms=50)]),
    chunk(" b\nc", [step([(" b", "accepted"), ("\nc", "bonus")], [" b"], ms=20)]),
    chunk(" d e", [step([(" d", "accepted"), (" e", "recovered")], [" d", " x", " y"], ms=30)]),
    chunk("", finish="stop"),
    DONE,
]


@contextmanager
def _served(answers: Sequence[Sequence[Piece]]) -> Iterator[str]:
    settings = uvicorn.Config(scripted_app(answers), log_level="critical", lifespan="off")
    server = uvicorn.Server(settings)
    sock = open_socket(ServerSettings(port=0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield url_of(sock)
    server.force_exit = server.should_exit = True
    thread.join()


@pytest.fixture
def serve(browser: object) -> Iterator[Serve]:
    """`serve(answer, ...)`: the address of a server whose answers are these, in turn."""
    with ExitStack() as stack:
        yield lambda *answers: stack.enter_context(_served(answers))


def test_a_scripted_answer_is_shown_as_it_was_sent(
    serve: Serve, open_page: Callable[..., Page]
) -> None:
    page = open_page(serve(ANSWER))
    send(page)
    assert shown_tokens(page) == [
        ("A", "plain"),
        (" b", "accepted"),
        ("\nc", "bonus"),
        (" d", "accepted"),
        (" e", "recovered"),
    ]
    assert shown_steps(page) == [
        {"drafted": [], "own": ["A", "plain"]},
        {"drafted": [["␣b", True]], "own": ["↵c", "bonus"]},
        {"drafted": [["␣d", True], ["␣x", False], ["␣y", False]], "own": ["␣e", "recovered"]},
    ]
    assert page.locator(".timeline .step").nth(2).inner_text().split() == [
        *("3", "✓", "␣d", "✗", "␣x", "✗", "␣y", "→", "␣e")
    ]
    # Four tokens in 50 ms; the first step is the reading of the prompt.
    assert measure(page, "speed") == "80.0"
    assert measure(page, "length") == "1.67"
    assert measure(page, "drafted") == "2 of 4 drafted held"


def test_the_table_says_what_the_timeline_says(
    serve: Serve, open_page: Callable[..., Page]
) -> None:
    page = open_page(serve(ANSWER))
    send(page)
    rows = open_table(page)
    assert [rows.nth(i).locator("th, td").all_inner_texts() for i in range(3)] == [
        ["1", "–", "–", "A (plain)", "50.0"],
        ["2", "␣b", "1 of 1", "↵c (bonus)", "20.0"],
        ["3", "␣d ␣x ␣y", "1 of 3", "␣e (recovered)", "30.0"],
    ]


def test_kinds_differ_by_more_than_colour(serve: Serve, open_page: Callable[..., Page]) -> None:
    page = open_page(serve(ANSWER))
    send(page)
    styles = {}
    for kind in ("plain", "accepted", "recovered", "bonus"):
        mark = page.locator(f".answer .token.{kind} > span").first
        styles[kind] = mark.evaluate(
            "e => { const s = getComputedStyle(e);"
            " return s.textDecorationLine + ' ' + s.textDecorationStyle }"
        )
        assert kind in str(page.locator(f".answer .token.{kind}").first.get_attribute("title"))
        assert page.locator(f".legend .{kind}").is_visible()
    assert len(set(styles.values())) == 4, styles


HOSTILE = "<img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script>"


def test_markup_in_an_answer_stays_text(serve: Serve, open_page: Callable[..., Page]) -> None:
    hostile_step = step([(HOSTILE, "recovered")], [HOSTILE, "</div>"])
    error = event({"error": {"message": HOSTILE}})
    url = serve([chunk(HOSTILE, [hostile_step]), chunk("", finish="stop"), DONE], [error])
    page = open_page(url)
    send(page)
    assert shown_tokens(page) == [(HOSTILE, "recovered")]
    assert visible(HOSTILE) in open_table(page).inner_text()
    send(page)
    assert page.inner_text("#error") == HOSTILE
    assert page.locator("main img, main script, body > script").count() == 0
    assert page.title() == "scripted · Outpace"


def test_the_browser_itself_refuses_markup(serve: Serve, open_page: Callable[..., Page]) -> None:
    page = open_page(serve(), noise=("TrustedHTML", "Content Security Policy"))
    refused = page.evaluate(
        "() => { try { document.body.innerHTML = '<b>'; return '' } catch (e) { return e.name } }"
    )
    assert refused == "TypeError"


FIRST = chunk("a", [step([("a", "plain")])])
BROKEN: dict[str, list[Piece]] = {
    "part of an answer": [FIRST, b"data: {no json\n\n"],
    "something that is not": [FIRST, b"data: 5\n\n"],
    "ended before the answer did": [FIRST],
    "the engine failed": [FIRST, event({"error": {"message": "the engine failed"}})],
    "The server reported an error.": [event({"error": "no message"})],
}


def test_what_breaks_a_stream_is_said(serve: Serve, open_page: Callable[..., Page]) -> None:
    page = open_page(serve(*[each for answer in BROKEN.values() for each in (answer, ANSWER)]))
    for message, answer in BROKEN.items():
        send(page)
        assert message in page.inner_text("#error")
        assert "Ended by an error." in page.inner_text(".finish")
        assert len(shown_tokens(page)) == (answer[0] is FIRST)
        send(page)  # and the next one goes well
        assert page.locator("#error").is_hidden()
        assert len(shown_tokens(page)) == 5
    assert page.locator("#error").get_attribute("role") == "alert"


def test_a_stream_may_be_cut_anywhere(serve: Serve, open_page: Callable[..., Page]) -> None:
    text = " über 😀\r\n"
    whole = b"".join((chunk(text, [step([(text, "plain")])]), chunk("", finish="stop"), DONE))
    whole = whole.replace(b"\\u00fc", "ü".encode()).replace(b"\n\n", b"\r\n\r\n")
    pieces: list[Piece] = [b": a comment\n\n"]
    for byte in range(len(whole)):
        pieces += [whole[byte : byte + 1], 0.0005]
    page = open_page(serve(pieces))
    send(page)
    assert page.locator("#error").is_hidden()
    assert page.locator(".answer").evaluate("e => e.textContent") == text


def test_a_comparison_says_where_texts_part(serve: Serve, open_page: Callable[..., Page]) -> None:
    slower = [
        chunk("A", [step([("A", "plain")])]),
        chunk(" b", [step([(" b", "plain")], ms=40)]),
        chunk(" z", [step([(" z", "plain")], ms=60)], finish="stop"),
        DONE,
    ]
    page = open_page(serve(slower, ANSWER))
    page.click("#compare")
    page.wait_for_selector("#verdict:visible")
    assert "Different text, from token 3 on" in page.inner_text("#verdict-same")
    assert "4.00 ×" in page.inner_text("#verdict-speed")  # 80 against 20


def test_a_long_draft_is_cut_short_in_its_column(
    serve: Serve, open_page: Callable[..., Page]
) -> None:
    tree = [f" node{i}" for i in range(60)]
    tokens = [(" node3", "accepted"), (" node40", "accepted"), ("!", "recovered")]
    answer = [chunk(" node3 node40!", [step(tokens, tree)], finish="stop"), DONE]
    page = open_page(serve(answer))
    send(page)
    column = page.locator(".timeline .step")
    assert column.locator(".piece").count() == 10
    assert "52 more" in column.inner_text()
    row = open_table(page).inner_text()
    assert "2 of 60" in row
    assert "node59" in row


LONG = [
    chunk("w" * 300, [step([("w" * 300, "plain")])]),
    *[
        chunk(
            " word",
            [step([(" word", "accepted"), (" ends", "bonus")], [" word"])],
        )
        for _ in range(60)
    ],
    chunk("", finish="length"),
    event(
        {
            "choices": [],
            "usage": {
                "prompt_tokens": 123456,
                "completion_tokens": 121,
                "speculation": {
                    "num_target_passes": 61,
                    "acceptance_length": 1.98,
                    "accepted_per_position": [60000, 3],
                    "drafted_per_position": [60000, 5],
                },
            },
        }
    ),
    DONE,
]


def test_narrow_screens_need_no_sideways_scrolling(
    serve: Serve, open_page: Callable[..., Page]
) -> None:
    page = open_page(serve(LONG, LONG), viewport={"width": 360, "height": 740})
    page.click("#compare")
    page.wait_for_selector("#verdict:visible")
    for summary in page.locator("summary").all():
        summary.click()
    fits = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    for width in (320, 360, 700, 900, 1300):
        page.set_viewport_size({"width": width, "height": 740})
        assert page.evaluate(fits), width
    timeline = page.locator(".timeline").nth(1)
    assert timeline.evaluate("e => e.scrollWidth > e.clientWidth")  # it scrolls by itself
    page.evaluate("document.querySelector('h1').style.minWidth = '2000px'")
    assert not page.evaluate(fits)  # what too wide a page would give


# The least contrast of text with what is behind it (WCAG 2.2), and the text that has it.
WORST_CONTRAST = """() => {
  const parsed = text => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(c => c / 255)
    .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = element => {
    for (let e = element; e; e = e.parentElement) {
      const colour = parsed(getComputedStyle(e).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let worst = [99, "", 0], seen = 0;
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.data.trim() || !element.checkVisibility() || element.closest(":disabled")) continue;
    if (element.closest("template, .hidden, option")) continue;
    seen += 1;
    const [a, b] = [parsed(getComputedStyle(element).color), behind(element)].map(light);
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < worst[0]) worst = [ratio, node.data.trim()];
  }
  return [worst[0], worst[1], seen];
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast(serve: Serve, open_page: Callable[..., Page], scheme: str) -> None:
    url = serve(ANSWER, ANSWER, [event({"error": {"message": "an error"}})])
    page = open_page(url, color_scheme=scheme)
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, background[4:-1].split(","))) < 3 * 128) == (scheme == "dark")
    page.click("#compare")
    page.wait_for_selector("#verdict:visible")
    for summary in page.locator("summary").all():
        summary.click()
    ratio, text, num_seen = page.evaluate(WORST_CONTRAST)
    assert num_seen > 60
    assert ratio >= 4.5, text
    send(page)
    ratio, text, _ = page.evaluate(WORST_CONTRAST)
    assert ratio >= 4.5, text
    page.evaluate("document.querySelector('h1').style.color = '#888'")
    assert page.evaluate(WORST_CONTRAST)[:2] != [ratio, text]  # and a grey heading would be found


def test_nothing_moves_for_those_who_want_stillness(
    serve: Serve, open_page: Callable[..., Page]
) -> None:
    caret = "getComputedStyle(document.querySelector('.answer'), '::after').animationName"
    waiting = [chunk("a", [step([("a", "plain")])]), 30.0]
    url = serve(waiting, waiting)
    for wish, animation in (("no-preference", "blink"), ("reduce", "none")):
        page = open_page(url, reduced_motion=wish)
        page.click("#send")
        page.wait_for_selector(".running .token")
        assert page.evaluate(caret) == animation
        page.keyboard.press("Escape")
        page.wait_for_selector("#send:enabled")


NO_REQUESTS = [
    ("temperature", "warm", "Temperature must be a number or empty, not “warm”.", "0"),
    ("max_tokens", "1.5", "Most tokens must be a whole number or empty, not “1.5”.", "9"),
    ("schema", "{", "The JSON schema is not JSON", ""),
    ("prompt", "", "Write something to be answered first.", "Something."),
]


def test_what_is_no_request_is_not_sent(serve: Serve, open_page: Callable[..., Page]) -> None:
    page = open_page(serve(ANSWER))
    page.click("text=JSON schema for the answer")
    for field, value, message, right in NO_REQUESTS:
        fill(page, **{field: value})
        send(page)
        assert message in page.inner_text("#error")
        named = page.locator(f"#{field.replace('_', '-')}")
        assert named.get_attribute("aria-invalid") == "true"
        assert named.evaluate("e => e === document.activeElement")
        fill(page, **{field: right})
    send(page)  # the first that gets as far as the one answer
    assert page.locator("[aria-invalid]").count() == 0
    assert len(shown_tokens(page)) == 5
