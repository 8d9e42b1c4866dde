"""/metrics for Prometheus, under vLLM's names with our prefix."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from starlette.responses import Response

from outpace.engine.request import RequestGroup

if TYPE_CHECKING:
    from outpace.serving.service import Service

router = APIRouter()

_SHORT_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_LONG_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class ServerMetrics:
    """Counters and histograms of one server, in a registry of its own."""

    def __init__(self, service: Service) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_EngineCollector(service))
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of ended requests.")
        self._success = Counter(
            "outpace:request_success",
            "Answers that have ended, by what ended them.",
            ["finished_reason"],
            registry=self._registry,
        )
        self._queue_s = self._histogram(
            "request_queue_time_seconds", "Seconds until a request got a place.", _LONG_S
        )
        self._ttft_s = self._histogram(
            "time_to_first_token_seconds", "Seconds until the first token of a request.", _LONG_S
        )
        self._per_token_s = self._histogram(
            "time_per_output_token_seconds", "Seconds per token after an answer's first.", _SHORT_S
        )
        self._total_s = self._histogram(
            "e2e_request_latency_seconds", "Seconds until a request had ended.", _LONG_S
        )

    def record(self, group: RequestGroup) -> None:
        """Count a request that has ended, and each of its answers."""
        output = group.output()
        times = output.metrics
        self._prompt_tokens.inc(len(output.prompt_token_ids))
        for answer in output.outputs:
            self._success.labels(answer.finish_reason or "abort").inc()
        if any(request.admitted_at is not None for request in group.requests):
            self._queue_s.observe(times.queued_s)
        if any(request.first_token_at is not None for request in group.requests):
            self._ttft_s.observe(times.ttft_s)
        self._total_s.observe(times.total_s)
        for request in group.requests:
            began, ended, num_later = (
                request.first_token_at,
                request.finished_at,
                request.seq.num_output - 1,
            )
            if began is not None and ended is not None and num_later > 0:
                self._per_token_s.observe((ended - began) / num_later)

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"outpace:{name}", text, registry=self._registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"outpace:{name}", text, buckets=buckets, registry=self._registry)


class _EngineCollector:
    """What the engine counts itself, read at the moment of the question."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        yield from self._gauges()
        yield from self._times()
        yield from self._speculation()
        rejected = CounterMetricFamily(
            "outpace:requests_rejected", "Requests turned away, by reason.", labels=["reason"]
        )
        for reason, count in sorted(self._service.admission.rejected.items()):
            rejected.add_metric([reason], count)
        yield rejected

    def _gauges(self) -> Iterator[Metric]:
        state = self._service.llm.state()
        used = state.num_cached_tokens / max(1, state.cache_capacity_tokens)
        for name, text, value in (
            ("num_requests_running", "Answers that have a cache row.", state.num_running),
            ("num_requests_waiting", "Answers that wait for one.", state.num_waiting),
            ("num_cache_rows", "Answers that can run together.", state.num_rows),
            ("kv_cache_usage_perc", "Share of the cache in use, from 0 to 1.", used),
            ("engine_alive", "1 while the engine's thread lives.", int(state.is_alive)),
        ):
            yield GaugeMetricFamily(f"outpace:{name}", text, value=value)
        yield _total("num_failed_steps", "Steps that raised an error.", state.num_failed_steps)

    def _times(self) -> Iterator[Metric]:
        metrics = self._service.llm.metrics
        overhead_s = max(0.0, metrics.step_s - metrics.draft_s - metrics.target_s)
        yield _total("engine_steps", "Steps of the engine.", metrics.num_steps)
        yield _total("draft_seconds", "Seconds spent drafting.", metrics.draft_s)
        yield _total("verify_seconds", "Seconds spent in target passes.", metrics.target_s)
        yield _total("overhead_seconds", "Seconds of steps besides these two.", overhead_s)

    def _speculation(self) -> Iterator[Metric]:
        stats = self._service.llm.speculation
        for name, text, value in (
            ("generation_tokens", "Tokens generated.", stats.num_output_tokens),
            ("spec_decode_num_drafts", "Drafts verified.", stats.num_drafts),
            ("spec_decode_num_draft_tokens", "Draft tokens verified.", stats.num_draft_tokens),
            ("spec_decode_num_accepted_tokens", "Those accepted.", stats.num_accepted_tokens),
        ):
            yield _total(name, text, value)
        for name, text, counts in (
            ("accepted", "Draft tokens accepted, by position.", stats.accepted_per_position),
            ("draft", "Draft tokens verified, by position.", stats.drafted_per_position),
        ):
            yield _by_position(f"spec_decode_num_{name}_tokens_per_pos", text, counts)


def _total(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"outpace:{name}", text, value=value)


def _by_position(name: str, text: str, counts: Iterable[int]) -> Metric:
    """Positions count from 0, as vLLM's do."""
    family = CounterMetricFamily(f"outpace:{name}", text, labels=["position"])
    for position, count in enumerate(list(counts)):
        family.add_metric([str(position)], count)
    return family


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Counters, gauges and histograms in Prometheus' text format."""
    service: Service = request.app.state.service
    return Response(
        service.metrics.exposition(), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4}
    )
