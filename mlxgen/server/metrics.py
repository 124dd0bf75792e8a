"""The server's figures, for Prometheus.

Owns their names and the registry that holds them. Must never know how a request is answered.
Invariant: an engine's figures come from its scheduler's last snapshot, so that reading them never
touches its thread; nothing is global, and every server has its own counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from ..engine import Stats, all_drafts
from ..loading.memory import device_name, held_bytes

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_PER_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2)

# The metric's name, the attribute of the scheduler's figures, and its description.
_GAUGES = (
    ("batch_size", "running", "Sequences that are generating now"),
    ("prefilling", "prefilling", "Sequences whose prompt is being run now"),
    ("queue_size", "queued", "Sequences that are waiting"),
    ("prefix_cache_bytes", "cache_bytes", "Bytes in the prefix cache"),
    ("disk_bytes", "disk_bytes", "Bytes of prefixes on disk"),
    ("disk_limit_bytes", "disk_limit", "Bytes of prefixes that may be on disk"),
    ("kv_bytes", "kv_bytes", "Bytes in the KV caches of running sequences"),
    ("cache_limit_bytes", "byte_limit", "Bytes that all KV caches together may use"),
    ("device_limit_bytes", "device_bytes", "Bytes of the device that may be used"),
    ("weights_bytes", "weight_bytes", "Bytes of weights, and of what else was held at the start"),
    ("activations_limit_bytes", "activation_bytes", "Bytes that a piece of a prompt may use"),
    ("reserve_bytes", "reserve_bytes", "Bytes that are left for the rest"),
    ("wired_limit_bytes", "wired_bytes", "Maximum bytes that are kept from being paged out"),
)
_COUNTERS = (
    ("prompt_tokens", "prompt_tokens", "Tokens of prompts"),
    ("cached_tokens", "cached_tokens", "Tokens of prompts that came from the prefix cache"),
    ("completion_tokens", "completion_tokens", "Tokens generated"),
    ("forced_tokens", "forced_tokens", "Tokens that a filter forced without sampling"),
    ("rewound_tokens", "rewound_tokens", "Tokens that were taken back"),
    ("redraws", "redraws", "Draws that were declined and repeated"),
    ("forward_passes", "forward_passes", "Forward passes of the model"),
    ("steps", "steps", "Steps of the scheduler"),
    ("faults", "faults", "Failures of the model, with one sequence or with several"),
    ("prefix_cache_hits", "cache_hits", "Prompts that the prefix cache held a part of"),
    ("prefix_cache_misses", "cache_misses", "Prompts that the prefix cache held nothing of"),
    ("pieces_written", "pieces_written", "Pieces of prefixes that were written to disk"),
    ("restored_tokens", "restored_tokens", "Tokens of prefixes that were restored from disk"),
)


_OF_ALL = {
    "device_bytes",
    "weight_bytes",
    "reserve_bytes",
    "wired_bytes",
    "disk_bytes",
    "disk_limit",
}
"""Figures that each of several models reports for all of them, as they share device and folder."""


def added(each: Iterable[Stats | None]) -> Stats | None:
    """The figures of several models, added up; ``None`` if there are none."""
    known = [stats for stats in each if stats is not None]
    if not known:
        return None
    plain = [one.name for one in fields(Stats) if one.name != "drafts"]
    return Stats(
        drafts=all_drafts(stats.drafts for stats in known),
        **{
            name: (max if name in _OF_ALL else sum)(getattr(s, name) for s in known)
            for name in plain
        },
    )


def finished(stats: Stats | None) -> Stats | None:
    """The figures of an unloaded model that stay: its counters, without its gauges."""
    nothing: dict[str, Any] = dict.fromkeys((name for _, name, _ in _GAUGES), 0)
    return None if stats is None else replace(stats, **nothing)


class Metrics(Collector):
    """All figures. ``stats`` returns the schedulers', or ``None`` while there are none; ``loaded``,
    whether each model is loaded; ``slow`` counts the operator's slow calls. Both are by name."""

    def __init__(
        self,
        *,
        stats: Callable[[], Stats | None],
        is_ready: Callable[[], bool],
        loaded: Callable[[], Mapping[str, bool]],
        slow: Mapping[str, int],
    ) -> None:
        self._stats, self._loaded, self._slow = stats, loaded, slow
        self.registry = registry = CollectorRegistry(auto_describe=True)
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        seconds = partial(Histogram, buckets=_SECONDS, registry=registry)
        self.requests = counter(
            "mlxgen_requests", "Requests that have ended", ["endpoint", "outcome"]
        )
        self.model_requests = counter(
            "mlxgen_model_requests", "Requests that have ended, by their models", ["model"]
        )
        self.in_progress = gauge("mlxgen_requests_in_progress", "Requests being answered")
        self.request_seconds = seconds(
            "mlxgen_request_seconds",
            "Seconds from a request's headers to the last byte of its answer",
            ["endpoint"],
        )
        self.first_token_seconds = seconds(
            "mlxgen_time_to_first_token_seconds",
            "Seconds from a request's headers to its first token",
        )
        self.token_seconds = seconds(
            "mlxgen_time_per_token_seconds",
            "Seconds between the tokens of a sequence, averaged over each request",
            buckets=_PER_TOKEN,
        )
        ready = gauge("mlxgen_ready", "Whether the server answers requests")
        ready.set_function(lambda: float(is_ready()))
        registry.register(self)
        ProcessCollector(registry=registry)

    def page(self) -> bytes:
        """All figures as text."""
        return generate_latest(self.registry)

    def collect(self) -> Iterable[Metric]:
        """The schedulers' current figures, and which models are loaded."""
        yield _labelled(
            GaugeMetricFamily,
            ("model_loaded", "Whether a model is loaded", "model"),
            self._loaded(),
        )
        yield _labelled(
            CounterMetricFamily,
            ("slow_calls", "Calls of the operator's code that held others up", "name"),
            dict(self._slow),
        )
        yield InfoMetricFamily("mlxgen_device", "The device", value={"name": device_name()})
        yield GaugeMetricFamily("mlxgen_held_bytes", "Bytes that MLX holds", value=held_bytes())
        stats = self._stats()
        if stats is None:
            return
        for family, rows in ((GaugeMetricFamily, _GAUGES), (CounterMetricFamily, _COUNTERS)):
            for name, attribute, help in rows:
                value = float(getattr(stats, attribute) or 0)
                yield family(f"mlxgen_{name}", help, value=value)
        yield _labelled(
            CounterMetricFamily,
            ("drafted_tokens", "Drafted tokens that were verified", "drafter"),
            {name: count.proposed for name, count in stats.drafts.items()},
        )
        yield _labelled(
            CounterMetricFamily,
            ("accepted_draft_tokens", "Drafted tokens that were accepted", "drafter"),
            {name: count.accepted for name, count in stats.drafts.items()},
        )


def _labelled(family: Any, about: tuple[str, str, str], values: Mapping[str, float]) -> Metric:
    """One figure per value of a label; ``about``: its name, its description, and the label."""
    name, help, label = about
    metric: Any = family(f"mlxgen_{name}", help, labels=[label])
    for each, value in values.items():
        metric.add_metric([each], float(value))
    found: Metric = metric
    return found
