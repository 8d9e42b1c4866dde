"""The page's files: how they are served, and what stands in them. What they do is tested in
tests/browser/."""

from __future__ import annotations

import re
from importlib import resources

import pytest
from servers import RunningServer, serving

from outpace.serving.page.router import HEADERS, STATIC_PATHS

FOLDER = resources.files("outpace.serving.page") / "static"
SOURCES = {file.name: file.read_text(encoding="utf-8") for file in FOLDER.iterdir()}
WAYS_FROM_TEXT_TO_MARKUP = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|"
    r"setHTML|DOMParser|\beval\b|new Function|srcdoc"
)


@pytest.mark.parametrize("path", sorted(STATIC_PATHS))
def test_every_file_has_the_strict_headers(server: RunningServer, path: str) -> None:
    response = server.client.get(path)
    assert response.status_code == 200
    assert {name: response.headers[name] for name in HEADERS} == HEADERS
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["referrer-policy"] == "no-referrer"
    policy = dict(
        directive.split(" ", 1)
        for directive in response.headers["content-security-policy"].split("; ")
    )
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    for name in ("base-uri", "form-action", "frame-ancestors"):
        assert policy[name] == "'none'"
    assert "unsafe" not in response.headers["content-security-policy"]
    assert not [name for name in response.headers if name.startswith("access-control")]


def test_the_files_have_the_types_that_nosniff_demands(server: RunningServer) -> None:
    kinds = {path: server.client.get(path).headers["content-type"] for path in STATIC_PATHS}
    assert kinds["/"] == "text/html; charset=utf-8"
    assert kinds["/page/app.js"] == "text/javascript; charset=utf-8"
    assert kinds["/page/style.css"] == "text/css; charset=utf-8"
    assert kinds["/page/icon.svg"] == "image/svg+xml"


def test_a_file_is_not_sent_again_to_who_has_it(server: RunningServer) -> None:
    first = server.client.get("/page/app.js")
    tag = {"If-None-Match": first.headers["etag"]}
    assert server.client.get("/page/app.js", headers=tag).status_code == 304
    assert server.client.get("/page/style.css", headers=tag).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/page/",
        "/page/router.py",
        "/page/../router.py",
        "/page/%2e%2e/router.py",
        "/page/index.html",
    ],
)
def test_nothing_else_is_served(server: RunningServer, path: str) -> None:
    response = server.client.get(path)
    assert response.status_code == 404
    assert response.json()["error"]["type"] == "not_found_error"


def test_the_files_are_for_everybody_and_what_they_ask_is_not() -> None:
    with serving(api_keys=("right",)) as server:
        for path in STATIC_PATHS:
            assert server.client.get(path).status_code == 200
        assert server.client.get("/page/info").status_code == 401
        allowed = server.client.get("/page/info", headers={"Authorization": "Bearer right"})
        assert allowed.status_code == 200


def test_info_names_the_model_and_the_methods(server: RunningServer) -> None:
    assert server.client.get("/page/info").json() == {
        "model": server.llm.model_name,
        "method": "ngram",
        "methods": {"ngram": 3, "none": 0},
    }


def test_text_never_becomes_markup() -> None:
    found = {name: WAYS_FROM_TEXT_TO_MARKUP.findall(text) for name, text in SOURCES.items()}
    assert not any(found.values()), found
    assert WAYS_FROM_TEXT_TO_MARKUP.search(
        "node.innerHTML = text"
    )  # the search finds what it seeks


def test_the_html_holds_no_script_style_or_handler() -> None:
    html = SOURCES["index.html"]
    assert re.findall(r"<script[^>]*>", html) == ['<script type="module" src="/page/app.js">']
    assert "<style" not in html
    assert not re.search(r"\s(style|on\w+)\s*=", html)


def test_nothing_comes_from_elsewhere() -> None:
    for name, text in SOURCES.items():
        addresses = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+", text))
        assert addresses <= {"http://www.w3.org"}, name  # SVG's name for itself


def test_every_file_that_is_named_exists() -> None:
    named = set(re.findall(r'"(/page/[\w.-]+\.\w+)"', SOURCES["index.html"]))
    for name, text in SOURCES.items():
        if name.endswith(".js"):
            named |= {f"/page/{other}" for other in re.findall(r'from "\./([\w.-]+)"', text)}
    assert named <= STATIC_PATHS
    assert named | {"/"} == STATIC_PATHS  # and none lies there unused


def test_every_field_has_a_label() -> None:
    html = SOURCES["index.html"]
    fields = re.findall(r"<(?:input|select|textarea)([^>]*)>", html)
    labelled = set(re.findall(r'<label[^>]*for="([\w-]+)"', html))
    for attributes in fields:
        if re.search(r'type="(checkbox|radio)"', attributes):
            continue  # inside of its label
        found = re.search(r'id="([\w-]+)"', attributes)
        assert found is not None
        assert found[1] in labelled, attributes
