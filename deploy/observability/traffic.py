"""What clients feel: the overview, readable from across the room, and one class of requests in depth."""

from __future__ import annotations

from deploy.observability.panels import OF_MODEL, Dashboard, Panel, quantiles, rate

MODEL = {"model": "label_values(headrace_queue_depth, model)"}
_CLASS = MODEL | {"class": "label_values(headrace_queue_oldest_age_seconds, class)"}
_WAITS = 'state=~"waiting|returned"'
_BOTH = OF_MODEL + ',class=~"$class"'

OVERVIEW = Dashboard(
    "headrace-overview",
    "Headrace: overview",
    [
        Panel(
            "Oldest request",
            [(f"max by (model) (headrace_queue_oldest_age_seconds{{{OF_MODEL},{_WAITS}}})", "{{model}}")],
            "s",
            "The best single signal: how long the request waits that has waited longest.",
            is_number=True,
        ),
        Panel(
            "Waiting and running",
            [
                (f"max by (model) (headrace_queue_depth{{{OF_MODEL}}})", "{{model}} waits"),
                (f"max by (model) (headrace_queue_in_flight{{{OF_MODEL}}})", "{{model}} runs"),
            ],
            is_number=True,
        ),
        Panel("Time to first token", quantiles("headrace_time_to_first_token_seconds", OF_MODEL), "s"),
        Panel("Gap between tokens", quantiles("headrace_inter_token_latency_seconds", OF_MODEL), "s"),
        Panel(
            "Requests that end, by outcome",
            [(rate("headrace_requests_total", "outcome", OF_MODEL), "{{outcome}}")],
            "reqps",
            "failed, dead and expired are ours; cancelled is a client that left.",
        ),
        Panel("Tokens made", [("sum(rate(headrace_generation_tokens_total[$__rate_interval]))", "tokens")], "short"),
        Panel(
            "Limits missed",
            [(f"headrace:slo_missed:ratio5m{{{OF_MODEL}}}", "{{model}} {{slo}}")],
            "percentunit",
            "Share of requests that came later than HEADRACE_SLO_TTFT_S, or slower than HEADRACE_SLO_TPOT_S.",
        ),
        Panel(
            "Workers",
            [
                (f"max by (model) (headrace_workers{{{OF_MODEL}}})", "{{model}} live"),
                (f"max by (model) (headrace_workers_wanted{{{OF_MODEL}}})", "{{model}} wanted"),
            ],
        ),
        Panel(
            "HTTP by code",
            [(rate("headrace_http_requests_total", "route, code"), "{{route}} {{code}}")],
            "reqps",
            "499: the client left before it had an answer.",
        ),
        Panel(
            "Streams open",
            [("sum(headrace_sse_subscribers)", "streams")],
            about="Each is a client that reads.",
        ),
    ],
    MODEL,
)

ONE_CLASS = Dashboard(
    "headrace-class",
    "Headrace: one class in depth",
    [
        Panel("Time to first token", quantiles("headrace_time_to_first_token_seconds", _BOTH), "s"),
        Panel("Whole request", quantiles("headrace_request_duration_seconds", _BOTH), "s"),
        Panel(
            "Wait in the queue",
            quantiles("headrace_queue_wait_seconds", _BOTH),
            "s",
            "Long: more workers, or a heavier class.",
        ),
        Panel(
            "Prefill",
            quantiles("headrace_prefill_seconds", _BOTH),
            "s",
            "From being taken to the first token: long prompts, or a full batch.",
        ),
        Panel("Decode", quantiles("headrace_decode_seconds", _BOTH), "s"),
        Panel("Mean time of a token", quantiles("headrace_time_per_output_token_seconds", OF_MODEL), "s"),
        Panel(
            "Limits met and missed",
            [(rate("headrace_slo_requests_total", "slo, result", _BOTH), "{{slo}} {{result}}")],
            "reqps",
        ),
        Panel(
            "Admission",
            [(rate("headrace_admission_decisions_total", "decision", _BOTH), "{{decision}}")],
            "reqps",
            "Everything but accepted, duplicate and same is a refusal.",
        ),
        Panel("Ends", [(rate("headrace_requests_total", "outcome", _BOTH), "{{outcome}}")], "reqps"),
        Panel(
            "Oldest",
            [
                (
                    f"max by (state) (headrace_queue_oldest_age_seconds{{{_BOTH}}})",
                    "{{state}}",
                )
            ],
            "s",
        ),
    ],
    _CLASS,
)
