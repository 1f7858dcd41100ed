from __future__ import annotations

import pytest

from gateway.http.options import admission_options, digest_of
from shared.errors import InvalidRequest


def test_a_key_is_kept_as_its_hash() -> None:
    first, same, other = (admission_options({"idempotency-key": key}, 1.0).key_hash for key in ("a", "a", "b"))
    assert first == same != other and first != "a" and len(first) == 32


@pytest.mark.parametrize("value", ["", "a b", "é", "x" * 256, "a\x7f"])
def test_a_key_that_cannot_be_meant(value: str) -> None:
    with pytest.raises(InvalidRequest):
        admission_options({"idempotency-key": value}, 1.0)


def test_detaching_is_true_or_false() -> None:
    asked = [admission_options({"x-headrace-detach": value}, 1.0).detached for value in ("true", "TRUE", "false")]
    assert asked == [True, True, False]
    with pytest.raises(InvalidRequest):
        admission_options({"x-headrace-detach": "1"}, 1.0)


def test_a_body_is_the_same_but_for_spacing_and_order() -> None:
    assert digest_of("chat", b'{"a":1,"b":[2]}') == digest_of("chat", b'{ "b": [2], "a": 1 }')
    assert digest_of("chat", b'{"a":1}') != digest_of("completion", b'{"a":1}') != digest_of("chat", b'{"a":2}')
