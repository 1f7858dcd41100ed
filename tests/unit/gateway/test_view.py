from __future__ import annotations

from gateway.openai.identity import new_request_id
from gateway.openai.view import View, decode_view, encode_view
from gateway.routes.delivery import Numbers
from shared.schemas import ChoiceEndFrame, EndFrame, Outcome, TokensFrame, Usage

FRAMES = [TokensFrame(0, [1], "Hi"), ChoiceEndFrame(0, "stop"), EndFrame(Outcome.FINISHED, Usage(1, 1))]
REVISION = "acme/tiny@0123456789abcdef"


def test_a_view_stored_and_read_gives_the_same_chunks() -> None:
    view = View(endpoint="chat", model="acme/tiny", include_usage=True, service_tier="flex")
    read, request_id = decode_view(encode_view(view)), new_request_id()
    assert read == view and read is not None
    streams = view.chunks(request_id, REVISION), read.chunks(request_id, REVISION)
    first, second = ([chunk for frame in FRAMES for chunk in stream.convert(frame)] for stream in streams)
    assert first == second and len(first) == 5
    assert b'"service_tier":"flex"' in first[0]


def test_a_plain_answer_says_the_class_that_was_used() -> None:
    reply = View(endpoint="completion", model="m", service_tier="priority").reply(new_request_id(), REVISION)
    reply.add(FRAMES)
    assert b'"service_tier":"priority"' in reply.body()


def test_a_stored_view_is_still_read() -> None:
    stored = '{"endpoint":"completion","model":"acme/tiny","n":2,"include_usage":true,"service_tier":"flex"}'
    view = View(endpoint="completion", model="acme/tiny", n=2, include_usage=True, service_tier="flex")
    assert (decode_view(stored), encode_view(view)) == (view, stored)
    assert decode_view('{"endpoint":"chat","model":"m"}') == View(endpoint="chat", model="m")


def test_what_no_client_made_has_no_view() -> None:
    assert decode_view("") is None
    assert decode_view('{"endpoint":"batch","model":"m"}') is None


def test_numbers_count_from_one_and_leave_out_what_a_client_has() -> None:
    numbers = Numbers(after=2)
    assert [numbers.event(b"x") for _ in range(4)] == [b"", b"", b"id: 3\ndata: x\n\n", b"id: 4\ndata: x\n\n"]
