"""v(n) drawn as an SVG file: one panel for each format of weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

Points = Sequence[tuple[int, float]]
Curves = Mapping[int, Points]

_PANEL_WIDTH, _PANEL_HEIGHT = 300, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 40, 12, 34, 34
_LEGEND_HEIGHT = 34
_NUM_COLUMNS = 3
# From short to long contexts; apart in lightness as well, for those who see no hues.
_COLOURS = ("#86b6ef", "#3987e5", "#1c5cab", "#0d366b")
_TEXT, _GRID, _SURFACE = "#52514e", "#e1e0d9", "#fcfcfb"
_DASH = ' stroke-dasharray="4 3"'


def draw(panels: Mapping[str, tuple[Curves, Curves]]) -> str:
    """SVG of the panels. Each: our curves by context, drawn solid, and a peer's, drawn dashed."""
    contexts = sorted({context for pair in panels.values() for part in pair for context in part})
    num_columns = min(_NUM_COLUMNS, len(panels))
    num_lines = math.ceil(len(panels) / num_columns)
    width = num_columns * _PANEL_WIDTH
    height = num_lines * _PANEL_HEIGHT + _LEGEND_HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="11" fill="{_TEXT}">',
        f'<rect width="{width}" height="{height}" fill="{_SURFACE}"/>',
        *_legend(contexts, any(peer for _, peer in panels.values())),
    ]
    for index, (title, (ours, peer)) in enumerate(panels.items()):
        x = index % num_columns * _PANEL_WIDTH
        y = index // num_columns * _PANEL_HEIGHT + _LEGEND_HEIGHT
        parts.append(f'<g transform="translate({x} {y})">')
        parts += _Panel(title, ours, peer).draw(contexts)
        parts.append("</g>")
    return "\n".join([*parts, "</svg>"]) + "\n"


def _legend(contexts: Sequence[int], has_peer: bool) -> list[str]:
    parts, x = [], _LEFT
    entries = [(f"{context} cached", _colour(i), "") for i, context in enumerate(contexts)]
    if has_peer:
        entries += [("native", _TEXT, ""), ("llama.cpp", _TEXT, _DASH)]
    for label, colour, dash in entries:
        parts.append(
            f'<line x1="{x}" y1="18" x2="{x + 22}" y2="18" stroke="{colour}" stroke-width="2"'
            f"{dash}/>"
        )
        parts.append(f'<text x="{x + 28}" y="22">{escape(label)}</text>')
        x += 46 + 7 * len(label)
    return parts


def _colour(index: int) -> str:
    return _COLOURS[min(index, len(_COLOURS) - 1)]


class _Panel:
    """One plot: n across, v(n) up from 0."""

    def __init__(self, title: str, ours: Curves, peer: Curves) -> None:
        self._title, self._ours, self._peer = title, ours, peer
        points = [point for part in (ours, peer) for curve in part.values() for point in curve]
        self._max_n = max((n for n, _ in points), default=2)
        self._max_v = max(2.0, math.ceil(max((v for _, v in points), default=2.0)))

    def draw(self, contexts: Sequence[int]) -> list[str]:
        parts = [f'<text x="{_LEFT}" y="20" font-weight="bold">{escape(self._title)}</text>']
        parts += self._axes()
        for curves, dash in ((self._peer, _DASH), (self._ours, "")):
            for index, context in enumerate(contexts):
                if curves.get(context):
                    path = " ".join(
                        f"{self._x(n):.1f},{self._y(v):.1f}" for n, v in curves[context]
                    )
                    parts.append(
                        f'<polyline points="{path}" fill="none" stroke="{_colour(index)}" '
                        f'stroke-width="2"{dash}/>'
                    )
        return parts

    def _axes(self) -> list[str]:
        parts = []
        for v in _ticks(self._max_v):
            y = self._y(v)
            parts.append(
                f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_PANEL_WIDTH - _RIGHT}" y2="{y:.1f}" '
                f'stroke="{_GRID}"/><text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">'
                f"{v:g}</text>"
            )
        bottom = _PANEL_HEIGHT - _BOTTOM + 16
        for n in (n for n in (1, 2, 4, 8, 16, 32, 64, 128) if n <= self._max_n):
            parts.append(f'<text x="{self._x(n):.1f}" y="{bottom}" text-anchor="middle">{n}</text>')
        middle = (_LEFT + _PANEL_WIDTH - _RIGHT) / 2
        parts.append(f'<text x="{middle}" y="{bottom + 14}" text-anchor="middle">rows n</text>')
        parts.append(f'<text x="{_LEFT - 28}" y="20">v(n)</text>')
        return parts

    def _x(self, n: float) -> float:
        share = (n - 1) / max(self._max_n - 1, 1)
        return _LEFT + share * (_PANEL_WIDTH - _LEFT - _RIGHT)

    def _y(self, v: float) -> float:
        return _PANEL_HEIGHT - _BOTTOM - v / self._max_v * (_PANEL_HEIGHT - _TOP - _BOTTOM)


def _ticks(max_v: float) -> list[float]:
    step = next(step for step in (0.5, 1, 2, 5, 10, 20, 50, 100) if max_v / step <= 6)
    return [step * index for index in range(int(max_v / step) + 1)]
