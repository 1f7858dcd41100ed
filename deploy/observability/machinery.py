"""What is behind it: queues and their fairness, workers and their KV cache, Redis as our processes see it."""

from __future__ import annotations

from deploy.observability.panels import OF_MODEL, Dashboard, Panel, quantile, quantiles, rate
from deploy.observability.traffic import MODEL

_INSTANCE = "{{instance}}"

QUEUE = Dashboard(
    "headrace-queue",
    "Headrace: queue and fairness",
    [
        Panel("Waiting", [(f"max by (model) (headrace_queue_depth{{{OF_MODEL}}})", "{{model}}")]),
        Panel(
            "Oldest, by class",
            [
                (
                    f"max by (model, class, state) (headrace_queue_oldest_age_seconds{{{OF_MODEL}}})",
                    "{{model}} {{class}} {{state}}",
                )
            ],
            "s",
            "Classes share by weight: flex and batch may be old while others are not.",
        ),
        Panel(
            "Tokens waiting",
            [
                (f"max by (model) (headrace_queue_tokens{{{OF_MODEL}}})", "{{model}} prompts"),
                (f"max by (model) (headrace_queue_expected_tokens{{{OF_MODEL}}})", "{{model}} with answers"),
            ],
        ),
        Panel(
            "Wait by class, p95", [(quantile(0.95, "headrace_queue_wait_seconds", OF_MODEL, "class"), "{{class}}")], "s"
        ),
        Panel(
            "Taken in by class",
            [(rate("headrace_admission_decisions_total", "class, decision", OF_MODEL), "{{class}} {{decision}}")],
            "reqps",
        ),
        Panel(
            "Drained",
            [(f"max by (model) (headrace_queue_drain_requests_per_second{{{OF_MODEL}}})", "{{model}}")],
            "reqps",
        ),
        Panel(
            "Reaped",
            [(rate("headrace_reaped_total", "kind"), "{{kind}}")],
            about="What dead workers, passed deadlines and lost gateways left; only where that happened.",
        ),
        Panel("Dead letters", [(f"max by (model) (headrace_dead_letters{{{OF_MODEL}}})", "{{model}}")]),
        Panel("Paused", [(f"max by (model) (headrace_model_paused{{{OF_MODEL}}})", "{{model}}")]),
        Panel(
            "Batches", [("sum(headrace_batches_running)", "running"), ("sum(headrace_batch_lines_in_flight)", "lines")]
        ),
    ],
    MODEL,
)

WORKERS = Dashboard(
    "headrace-workers",
    "Headrace: workers and KV cache",
    [
        Panel("Phase", [("headrace_worker_phase == 1", _INSTANCE + " {{phase}}")]),
        Panel(
            "Running and held",
            [
                ("headrace_requests_running", _INSTANCE + " runs"),
                ("headrace_requests_waiting", _INSTANCE + " holds"),
            ],
        ),
        Panel("KV cache used", [("headrace_kv_cache_usage_ratio", _INSTANCE)], "percentunit"),
        Panel("KV blocks", [("headrace_kv_blocks", _INSTANCE + " {{state}}")]),
        Panel(
            "Prefix cache hits",
            [
                (
                    "sum by (instance) (rate(headrace_prefix_cache_hits_total[$__rate_interval]))"
                    " / sum by (instance) (rate(headrace_prefix_cache_queries_total[$__rate_interval]))",
                    _INSTANCE,
                )
            ],
            "percentunit",
        ),
        Panel("Preemptions", [(rate("headrace_preemptions_total", "instance, reason"), _INSTANCE + " {{reason}}")]),
        Panel(
            "Tokens made, and made again",
            [
                (rate("headrace_generation_tokens_total", "instance"), _INSTANCE),
                (rate("headrace_recomputed_tokens_total", "instance"), _INSTANCE + " again"),
            ],
        ),
        Panel(
            "A step by part, p95", [(quantile(0.95, "headrace_step_duration_seconds", by="phase"), "{{phase}}")], "s"
        ),
        Panel("Sequences in a step", quantiles("headrace_batch_size")),
        Panel("Emit", quantiles("headrace_emit_seconds"), "s"),
        Panel("Deliveries", [(rate("headrace_deliveries_total", "kind"), "{{kind}}")], "reqps"),
        Panel("Silence", [("max by (model) (headrace_worker_heartbeat_age_seconds)", "{{model}}")], "s"),
    ],
)

REDIS = Dashboard(
    "headrace-redis",
    "Headrace: Redis",
    [
        Panel("Answers", [("headrace_redis_up", "{{job}} " + _INSTANCE)], is_number=True),
        Panel("Scripts", [(rate("headrace_redis_command_duration_seconds_count", "command"), "{{command}}")], "ops"),
        Panel(
            "A script with its round trip, p99",
            [(quantile(0.99, "headrace_redis_command_duration_seconds", by="command"), "{{command}}")],
            "s",
            "Waits in our own event loop are in it: compare with the emits of workers.",
        ),
        Panel("Emit, p99", [(quantile(0.99, "headrace_emit_seconds", by="instance"), _INSTANCE)], "s"),
        Panel("Subscriptions made anew", [(rate("headrace_redis_reconnects_total", "instance"), _INSTANCE)]),
        Panel(
            "Time the server spends for us",
            [(rate("headrace_redis_command_duration_seconds_sum", "command"), "{{command}}")],
            "s",
            "Seconds a second, with round trips: which script costs most.",
        ),
    ],
)
