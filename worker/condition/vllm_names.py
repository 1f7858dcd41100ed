"""A worker's figures under vLLM's names, for gateways and dashboards that know those: `/metrics/vllm`, by setting.

The same samples, renamed as they are told; nothing is counted twice. What vLLM has and we do not measure in a worker
(the time to a first token is the gateway's) is left out rather than made up. Names as in vLLM's documentation of its
metrics and in the model server protocol of the Gateway API inference extension.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

# Ours -> vLLM's, and labels that are summed away.
_NAMES = {
    "headrace_requests_running": "vllm:num_requests_running",
    "headrace_requests_waiting": "vllm:num_requests_waiting",
    "headrace_kv_cache_usage_ratio": "vllm:kv_cache_usage_perc",
    "headrace_preemptions": "vllm:num_preemptions",
    "headrace_prefix_cache_queries": "vllm:prefix_cache_queries",
    "headrace_prefix_cache_hits": "vllm:prefix_cache_hits",
    "headrace_prompt_tokens": "vllm:prompt_tokens",
    "headrace_generation_tokens": "vllm:generation_tokens",
    "headrace_draft_tokens": "vllm:spec_decode_num_draft_tokens",
    "headrace_accepted_tokens": "vllm:spec_decode_num_accepted_tokens",
}


class _Renamed(Collector):
    def __init__(self, registry: CollectorRegistry, model: str) -> None:
        self._registry, self._labels = registry, {"model_name": model}

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            name = _NAMES.get(family.name)
            if name is None:
                continue
            ending = "_total" if family.type == "counter" else ""
            renamed = Metric(name, family.documentation, family.type)
            values = [sample.value for sample in family.samples if sample.name == family.name + ending]
            renamed.add_sample(name + ending, self._labels, sum(values))
            yield renamed


def vllm_metrics(registry: CollectorRegistry, model: str) -> bytes:
    """In Prometheus' text format. `model`: as clients name it; '' while it is loaded."""
    renamed = CollectorRegistry()
    renamed.register(_Renamed(registry, model))
    return generate_latest(renamed)
