"""What a body says its answer must be -> one Constraint, or none.

OpenAI's `response_format`; our `regex`, `grammar` and `choice`; and the two forms vLLM's clients send, `guided_*` and
`structured_outputs`. One at most may be given: two would have to hold together. What it says is checked with the
library the workers use, so nothing that is accepted is ignored later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, cast

import orjson
from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from gateway.openai.messages import StrictModel
from shared.errors import InvalidRequest
from shared.schemas import Constraint, ConstraintKind
from shared.text.grammar import MAX_CONSTRAINT_CHARS, check_constraint, lark_of

MAX_CHOICES = 1024
MAX_CHOICE_CHARS = 1024
# An object may have its optional properties in any combination, which grows too large to hold soon after this.
MAX_PROPERTIES = 400
_ANY_OBJECT = '{"type":"object"}'
_Given = tuple[str, ConstraintKind, str]


def _parsed(schema: Any) -> Any:
    """A schema may come as the text of one."""
    if not isinstance(schema, str):
        return schema
    try:
        return orjson.loads(schema)
    except orjson.JSONDecodeError:
        raise PydanticCustomError("schema", "is not valid JSON") from None


Pattern = Annotated[str, Field(min_length=1, max_length=MAX_CONSTRAINT_CHARS)]
Choices = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=MAX_CHOICE_CHARS)]],
    Field(min_length=1, max_length=MAX_CHOICES),
]
Schema = Annotated[dict[str, Any], BeforeValidator(_parsed, json_schema_input_type=dict[str, Any] | str)]


class JsonSchemaFormat(StrictModel):
    """`strict` or not, the answer is held to the schema."""

    name: str = Field(default="", pattern="^[a-zA-Z0-9_-]{0,64}$")
    description: str = ""
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool = False


class ResponseFormat(StrictModel):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None

    @model_validator(mode="after")
    def _has_its_schema(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise PydanticCustomError("schema", "json_schema goes with type 'json_schema', and only with it")
        return self


class StructuredOutputs(StrictModel):
    """`json_object` false is not given."""

    json_: Schema | None = Field(default=None, alias="json")
    json_object: bool = False
    regex: Pattern | None = None
    grammar: Pattern | None = None
    choice: Choices | None = None


class ConstrainedRequest(StrictModel):
    """The fields that constrain an answer, for both endpoints."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    regex: Pattern | None = None
    grammar: Pattern | None = None
    choice: Choices | None = None
    guided_json: Schema | None = None
    guided_regex: Pattern | None = None
    guided_grammar: Pattern | None = None
    guided_choice: Choices | None = None

    @property
    def is_constrained(self) -> bool:
        return any(True for _ in _given(self))


def constraint_of(body: ConstrainedRequest) -> Constraint | None:
    """Checked. Takes a millisecond, or many: for a thread. Raises InvalidRequest naming the field."""
    given = list(_given(body))
    if not given:
        return None
    if len(given) > 1:
        names = ", ".join(param for param, _, _ in given)
        raise InvalidRequest(f"{names}: only one of them can be given", param=given[1][0])
    param, kind, text = given[0]
    constraint = Constraint(kind, lark_of(text, param) if kind is ConstraintKind.GRAMMAR else text)
    if kind is ConstraintKind.JSON_SCHEMA:
        check_size(orjson.loads(text), param)
    check_constraint(constraint, param)
    return constraint


def _given(body: ConstrainedRequest) -> Iterator[_Given]:
    """Each that is given: where, what, and its text."""
    shape = body.response_format
    if shape is not None and shape.type == "json_object":
        yield "response_format", ConstraintKind.JSON_SCHEMA, _ANY_OBJECT
    if shape is not None and shape.json_schema is not None:
        yield "response_format", ConstraintKind.JSON_SCHEMA, _text(shape.json_schema.schema_)
    if body.guided_json is not None:
        yield "guided_json", ConstraintKind.JSON_SCHEMA, _text(body.guided_json)
    for prefix in ("", "guided_"):
        yield from _plain(body, prefix, prefix)
    outputs = body.structured_outputs
    if outputs is not None:
        if outputs.json_object:
            yield "structured_outputs", ConstraintKind.JSON_SCHEMA, _ANY_OBJECT
        if outputs.json_ is not None:
            yield "structured_outputs", ConstraintKind.JSON_SCHEMA, _text(outputs.json_)
        yield from _plain(outputs, "structured_outputs.", "")


def _plain(fields: StrictModel, path: str, prefix: str) -> Iterator[_Given]:
    for kind in (ConstraintKind.REGEX, ConstraintKind.GRAMMAR, ConstraintKind.CHOICE):
        value: str | list[str] | None = getattr(fields, prefix + kind.value)
        if value is not None:
            yield path + kind.value, kind, value if isinstance(value, str) else _text(value)


def _text(value: Any) -> str:
    return orjson.dumps(value).decode()


def check_size(schema: Any, param: str) -> None:
    if isinstance(schema, dict):
        fields = cast("dict[str, Any]", schema)
        properties = fields.get("properties")
        if isinstance(properties, dict) and len(cast("dict[str, Any]", properties)) > MAX_PROPERTIES:
            raise InvalidRequest(f"{param}: an object may have at most {MAX_PROPERTIES} properties", param=param)
        parts: Iterable[Any] = fields.values()
    else:
        parts = cast("list[Any]", schema) if isinstance(schema, list) else ()
    for part in parts:
        check_size(part, param)
