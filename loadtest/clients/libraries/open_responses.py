"""Every body and event of `/v1/responses` against the models of the Open Responses specification."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openresponses_types as spec
from pydantic import BaseModel

from loadtest.clients.steps import expect, server, step

SERVER = server()
TOOL = {
    "type": "function", "name": "weather", "strict": True,
    "parameters": {
        "type": "object", "properties": {"warm": {"type": "boolean"}}, "required": ["warm"],
        "additionalProperties": False,
    },
}  # fmt: skip
MODELS: dict[str, type[BaseModel]] = {
    next(iter(model.model_fields["type"].annotation)).value: model
    for name, model in vars(spec).items()
    if name.endswith("StreamingEvent") and "type" in model.model_fields
}  # fmt: skip


def body(**more: Any) -> dict[str, Any]:
    return {"model": SERVER.real, "input": "What is the capital of France?", "max_output_tokens": 40, **more}


def events_of(text: str) -> list[dict[str, Any]]:
    """Each frame has its type twice and one line of data."""
    events: list[dict[str, Any]] = []
    for frame in text.strip().split("\n\n"):
        if frame.startswith(":"):
            continue
        name, data = frame.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        expect(name == f"event: {events[-1]['type']}", name)
    return events


def main() -> None:
    with httpx.Client(base_url=SERVER.v1, timeout=120, trust_env=False) as client:

        def made(**more: Any) -> dict[str, Any]:
            reply = client.post("/responses", json=body(**more))
            expect(reply.status_code == 200, reply.text[:300])
            spec.ResponseResource.model_validate(reply.json())
            return reply.json()

        def streamed(**more: Any) -> list[dict[str, Any]]:
            events = events_of(client.post("/responses", json=body(stream=True, **more)).text)
            for event in events:
                MODELS[event["type"]].model_validate(event)
            expect([event["sequence_number"] for event in events] == list(range(len(events))), "numbers")
            return events

        with step("a basic response, and found again"):
            first = made()
            spec.ResponseResource.model_validate(client.get(f"/responses/{first['id']}").json())
        with step("a streamed response: every event"):
            kinds = [event["type"] for event in streamed()]
            expect("response.output_text.done" in kinds and "response.content_part.done" in kinds, str(kinds))
        with step("a system prompt"):
            made(instructions="Answer in French.")
            made(input=[{"role": "system", "content": "Answer in French."}, {"role": "user", "content": "Hello"}])
        with step("a tool call"):
            asked = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}
            call = made(**asked)["output"][0]
            expect(call["type"] == "function_call", str(call))
        with step("a tool call streamed: every event"):
            kinds = [event["type"] for event in streamed(**asked)]
            expect("response.function_call_arguments.done" in kinds, str(kinds))
        with step("several turns, with a call and its result"):
            result = {"type": "function_call_output", "call_id": call["call_id"], "output": "20 degrees"}
            made(input=[{"role": "user", "content": "How warm?"}, call, result], tools=[TOOL], tool_choice="none")
            made(previous_response_id=first["id"])
        with step("an image is refused in the error's shape"):
            image = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
            reply = client.post("/responses", json=body(input=[{"role": "user", "content": [image]}]))
            expect(
                reply.status_code == 400 and set(reply.json()["error"]) == {"message", "type", "param", "code"},
                reply.text,
            )
        with step("a background response, queued"):
            expect(made(background=True)["status"] in ("queued", "in_progress", "completed"), "status")


if __name__ == "__main__":
    main()
