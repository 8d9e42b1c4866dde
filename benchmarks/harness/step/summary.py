"""From raw figures to the rows of tables. Pure: the same figures give the same rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

from harness.step.results import Engine, Results

Row = dict[str, Any]
OURS = "native"


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and quartiles (both the median where there are fewer than two values)."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        middle = median(values)
        if len(values) < 2:
            return cls(middle, middle, middle)
        low, _, high = quantiles(values, n=4, method="inclusive")
        return cls(middle, low, high)


def summarise(results: Results) -> dict[str, list[Row]]:
    """Everything that the tables show."""
    return {
        "passes": pass_rows(results),
        "limits": limit_rows(results),
        "ratios": ratio_rows(results),
        "prefills": prefill_rows(results),
    }


def pass_rows(results: Results) -> list[Row]:
    """Milliseconds, and v(n): the median of ratios to one row within rounds."""
    single = {(p.engine, p.context_len): p for p in results.passes if p.num_rows == 1}
    return [
        {
            "engine": passes.engine,
            "context_len": passes.context_len,
            "num_rows": passes.num_rows,
            "ms": _ms(passes.seconds),
            "v": _ratios(passes.seconds, single[passes.engine, passes.context_len].seconds),
        }
        for passes in results.passes
        if passes.seconds
    ]


def limit_rows(results: Results) -> list[Row]:
    """How near passes over one row come to the rate at which memory was read around them."""
    engines = {engine.label: engine for engine in results.engines}
    probes = {p.context_len: p.bytes_per_s for p in results.probes if p.num_rows == 1}
    rows = []
    for passes in results.passes:
        if passes.num_rows != 1 or not passes.seconds:
            continue
        num_bytes = bytes_read(engines[passes.engine], passes.context_len)
        limits = probes[passes.context_len]
        pairs = list(zip(passes.seconds, limits, strict=False))
        rows.append(
            {
                "engine": passes.engine,
                "context_len": passes.context_len,
                "bytes": num_bytes,
                "gb_per_s": Spread.of([num_bytes / s / 1e9 for s in passes.seconds]),
                "limit_gb_per_s": Spread.of([limit / 1e9 for limit in limits]),
                "fraction": Spread.of([num_bytes / s / limit for s, limit in pairs]),
            }
        )
    return rows


def bytes_read(engine: Engine, context_len: int) -> float:
    """Of weights and cache, by a pass over one row after `context_len` tokens."""
    return engine.weight_bytes + engine.kv_bytes_per_token * context_len


def ratio_rows(results: Results) -> list[Row]:
    """How many times faster ours is than each other engine with the same weights, by pass."""
    by_place = {(p.engine, p.context_len, p.num_rows): p.seconds for p in results.passes}
    rows = []
    for ours, peer in pairs(results.engines):
        for (engine, context_len, num_rows), seconds in by_place.items():
            theirs = by_place.get((peer.label, context_len, num_rows), [])
            if engine == ours.label and seconds and theirs:
                rows.append(
                    {
                        "ours": ours.label,
                        "peer": peer.label,
                        "context_len": context_len,
                        "num_rows": num_rows,
                        "speedup": _ratios(theirs, seconds),
                    }
                )
    return rows


def prefill_rows(results: Results) -> list[Row]:
    """Milliseconds, tokens per second, and how many times faster ours is than each peer."""
    measured = [p for p in results.prefills if p.seconds]
    by_place = {(p.engine, p.num_tokens): p.seconds for p in measured}
    others: dict[str, list[Engine]] = {}
    for ours, peer in pairs(results.engines):
        others.setdefault(ours.label, []).append(peer)
    return [
        {
            "engine": p.engine,
            "num_tokens": p.num_tokens,
            "ms": _ms(p.seconds),
            "tokens_per_s": p.num_tokens / median(p.seconds),
            "speedups": {
                peer.label: _ratios(by_place[peer.label, p.num_tokens], p.seconds)
                for peer in others.get(p.engine, [])
                if (peer.label, p.num_tokens) in by_place
            },
        }
        for p in measured
    ]


def pairs(engines: Sequence[Engine]) -> list[tuple[Engine, Engine]]:
    """Each of ours with each other engine on the same weights."""
    return [
        (ours, peer)
        for ours in engines
        for peer in engines
        if ours.kind == OURS and peer.kind != OURS and ours.format == peer.format
    ]


def curves(rows: Sequence[Mapping[str, Any]], engine: str) -> dict[int, list[tuple[int, float]]]:
    """v(n) of one engine from the rows of `pass_rows`, by context: (n, v) in order of n."""
    found: dict[int, list[tuple[int, float]]] = {}
    for row in rows:
        if row["engine"] == engine:
            found.setdefault(row["context_len"], []).append((row["num_rows"], row["v"].median))
    return {context: sorted(points) for context, points in sorted(found.items())}


def _ms(seconds: Sequence[float]) -> Spread:
    return Spread.of([1e3 * value for value in seconds])


def _ratios(dividends: Sequence[float], divisors: Sequence[float]) -> Spread:
    """Within rounds; a round that was interrupted may lack one of the two."""
    return Spread.of([a / b for a, b in zip(dividends, divisors, strict=False)])
