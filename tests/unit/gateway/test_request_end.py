"""The line a gateway writes at a request's end."""

from __future__ import annotations

from gateway.attendance import _end_line
from gateway.subscription import Subscription
from shared.request_queue import Ticket
from shared.schemas import EndFrame, ErrorInfo, Outcome, Usage

TRACE = "0af7651916cd43dd8448eb211c80319c"


def test_the_line_says_whose_trace_which_class_and_how_long_the_first_token_took() -> None:
    ticket = Ticket("r1", "flex", "t", 7, 8, 1, traceparent=f"00-{TRACE}-b7ad6b7169203331-01")
    s = Subscription("m", ticket, b"body", first_token_s=0.25)
    line = _end_line(s, EndFrame(Outcome.FINISHED, Usage(7, 3, 4)), 1.5)
    assert (line["trace_id"], line["class"], line["reason"]) == (TRACE, "flex", None)
    assert (line["dur_ms"], line["ttft_ms"]) == (1500, 250)
    assert (line["prompt_tokens"], line["cached_tokens"], line["output_tokens"]) == (7, 4, 3)


def test_what_never_gave_a_token_says_why_and_leaves_the_rest_empty() -> None:
    s = Subscription("m", Ticket("r1", "default", "t", 7, 8, 1), b"body")
    line = _end_line(s, EndFrame(Outcome.FAILED, error=ErrorInfo("dead_letter", "words")), 1.5)
    assert (line["reason"], line["trace_id"], line["ttft_ms"], line["output_tokens"]) == (
        "dead_letter",
        None,
        None,
        None,
    )
