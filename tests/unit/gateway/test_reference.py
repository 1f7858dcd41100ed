"""The OpenAPI document against what is served, and docs/api.md against the document."""

from __future__ import annotations

import inspect
from typing import Any

import httpx
import jsonschema
import pytest

from gateway.http.errors import TABLE, status_and_type
from gateway.reference.failures import failures
from shared import errors
from tests.architecture.api_page import PATH, current_page, document
from tests.unit.gateway.fakes import build_app, chat_body, client_of, completion_body

DOCUMENT: dict[str, Any] = document()
CHAT = "/v1/chat/completions"
CALLS: list[tuple[str, str, str, Any]] = [
    ("post", CHAT, CHAT, chat_body(logprobs=True)),
    ("post", "/v1/completions", "/v1/completions", completion_body(logprobs=1)),
    ("get", "/v1/models", "/v1/models", None),
    ("get", "/v1/models/{name}", "/v1/models/acme/tiny", None),
    ("post", f"{CHAT}/render", f"{CHAT}/render", chat_body()),
    ("post", "/tokenize", "/tokenize", {"prompt": "hi"}),
    ("post", "/detokenize", "/detokenize", {"tokens": [1]}),
    ("get", "/tokenizer_info", "/tokenizer_info", None),
    ("get", "/health/live", "/health/live", None),
    ("get", "/health/ready", "/health/ready", None),
    ("post", CHAT, CHAT, chat_body(temperature="hot")),
    ("get", "/v1/models/{name}", "/v1/models/none", None),
]


def test_the_page_is_the_documents() -> None:
    assert PATH.read_text() == current_page(), "docs/api.md is not what is served: run `make api-page`"


def schema_of(method: str, path: str, response: httpx.Response) -> dict[str, Any]:
    answer = DOCUMENT["paths"][path][method]["responses"][str(response.status_code)]
    if "$ref" in answer:
        answer = DOCUMENT["components"]["responses"][answer["$ref"].rpartition("/")[2]]
    return {**answer["content"]["application/json"]["schema"], "components": DOCUMENT["components"]}


@pytest.mark.parametrize(("method", "path", "url", "body"), CALLS)
async def test_an_answer_is_as_documented(method: str, path: str, url: str, body: Any) -> None:
    async with client_of(build_app()) as client:
        response = await client.request(method, url, json=body)
    jsonschema.validate(response.json(), schema_of(method, path, response))


@pytest.mark.parametrize(("path", "body"), [(CHAT, chat_body()), ("/v1/completions", completion_body())])
async def test_what_the_document_takes_is_taken(path: str, body: dict[str, Any]) -> None:
    """Also each field's null, and no field beside those."""
    schema = DOCUMENT["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    optional = dict.fromkeys(set(schema["properties"]) - set(schema["required"]))
    jsonschema.validate(optional | body, schema)
    assert not jsonschema.Draft202012Validator(schema).is_valid(body | {"colour": "red"})
    async with client_of(build_app()) as client:
        assert (await client.post(path, json=optional | body)).status_code == 200


def test_no_endpoint_promises_a_422() -> None:
    operations = [operation for item in DOCUMENT["paths"].values() for operation in item.values()]
    assert operations and not [operation for operation in operations if "422" in operation["responses"]]


def test_every_error_a_client_may_see_is_a_row() -> None:
    kinds = {kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.HeadraceError)}
    assert {failure.name for failure in failures()} == {kind.__name__ for kind in kinds} - {"ConfigurationError"}
    by_name = {failure.name: failure for failure in failures()}
    for kind in TABLE:
        error = kind.__new__(kind)
        assert status_and_type(error) == (by_name[kind.__name__].status, by_name[kind.__name__].type)
