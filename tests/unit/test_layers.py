"""Who may import whom. The rooms of the package form layers; imports point downwards only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"
PACKAGE = SRC / "outpace"
MODULES = sorted(PACKAGE.rglob("*.py"))

# room: the rooms it may import from, besides itself
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "strict_json": set(),
    "files": {"errors"},
    "params": {"errors"},
    "grammar": {"errors", "params", "strict_json"},
    "types": {"errors", "params", "grammar"},
    "outputs": {"errors", "params", "types"},
    "sampling": {"errors", "params", "types"},
    "verification": {"errors", "params", "types", "sampling"},
    "cache": {"errors", "types"},
    "native": {"errors"},
    "models": {"errors", "types", "cache", "native"},
    "heads": {"errors", "params", "types", "cache", "native", "models"},
    "early_exit": {"errors", "params", "types", "cache", "models"},
    "runner": {"errors", "params", "types", "cache", "models", "early_exit"},
}
ALLOWED["control"] = {*ALLOWED["runner"], "runner"}
ALLOWED["drafters"] = {*ALLOWED["runner"], "sampling", "verification", "runner", "heads", "control"}
ALLOWED["engine"] = {*ALLOWED["drafters"], "drafters", "outputs", "grammar"}
ALLOWED["speculative"] = {"errors", "params", "types", "sampling", "verification"}
_TOP = {*ALLOWED["engine"], "engine", "speculative", "__init__"}
ALLOWED |= {room: set(_TOP) for room in ("serving", "measure", "integrations", "cli", "__init__")}
ALLOWED["measure"] |= {"files", "native", "strict_json", "training"}
ALLOWED["serving"] |= {"strict_json"}
ALLOWED["training"] = {*ALLOWED["drafters"], "drafters", "files"}
ALLOWED["cli"] |= {
    "files",
    "native",
    "serving",
    "measure",
    "integrations",
    "training",
    "strict_json",
}
# `transformers` is an oracle and a fallback, not a dependency.
TRANSFORMERS_HOMES = ("models/hf/adapter.py", "integrations/")


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_modules(path: Path) -> Iterator[str]:
    """Every module a file imports, anywhere in it, type checking included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield _absolute(path, node)
            # `from outpace import engine` names a module, not a value.
            if _absolute(path, node) == "outpace":
                yield from (f"outpace.{alias.name}" for alias in node.names)


def _absolute(path: Path, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = path.relative_to(SRC).parts[: -node.level]
    return ".".join([*package, node.module or ""]).rstrip(".")


def violations(path: Path) -> list[str]:
    """The imports of a file that its room may not make."""
    room, found = room_of(path), []
    for name in imported_modules(path):
        top, *rest = name.split(".")
        if top == "transformers" and not _may_use_transformers(path):
            found.append(name)
        if top == "outpace":
            other = rest[0] if rest and _is_room(rest[0]) else "__init__"
            if other != room and other not in ALLOWED.get(room, set()):
                found.append(name)
    return found


def _is_room(name: str) -> bool:
    return (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").exists()


def _may_use_transformers(path: Path) -> bool:
    return path.relative_to(PACKAGE).as_posix().startswith(TRANSFORMERS_HOMES)


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_downwards(path: Path) -> None:
    assert room_of(path) in ALLOWED, "a new room: say in this test what it may import"
    assert violations(path) == []


def test_rooms_form_layers() -> None:
    """No room may reach itself through others: the table above must not allow a cycle."""
    for room in ALLOWED:
        seen, todo = set(), set(ALLOWED[room])
        while todo:
            other = todo.pop()
            seen.add(other)
            todo |= ALLOWED.get(other, set()) - seen if other != "__init__" else set()
        assert room == "__init__" or room not in seen


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("verification/chain.py", "from outpace.models.decoder import Decoder"),
        ("cache.py", "import outpace.engine.llm"),
        ("drafters/ngram.py", "from outpace import engine"),
        ("drafters/ngram.py", "from ..engine import scheduler"),
        ("drafters/ngram.py", "from outpace import LLM"),
        ("engine/llm.py", "def f():\n    import transformers"),
        ("models/config.py", "from outpace.drafters.base import Drafter"),
        ("sampling/filters.py", "from outpace.verification import chain"),
    ],
)
def test_the_rules_can_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, line: str
) -> None:
    for module in MODULES:  # a copy of the package's shape, with one wrong line in it
        copy = tmp_path / module.relative_to(SRC)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.touch()
    for room in ("engine", "drafters", "models", "verification"):
        (tmp_path / "outpace" / room).mkdir(exist_ok=True)
    monkeypatch.setattr(f"{__name__}.SRC", tmp_path)
    monkeypatch.setattr(f"{__name__}.PACKAGE", tmp_path / "outpace")
    path = tmp_path / "outpace" / file
    path.write_text(line)
    assert violations(path)
