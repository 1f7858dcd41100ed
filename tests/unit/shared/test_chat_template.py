from __future__ import annotations

import pytest

from shared.errors import ConfigurationError, InvalidRequest
from shared.text.tokenizer import Tokenizer
from tests.unit.shared.tokenizer_samples import CHAT_TEMPLATE, blob_of, byte_level

RAW = byte_level()
MESSAGES = [{"role": "user", "content": "hi"}]


def render(template: str, **variables: object) -> str:
    tokenizer = Tokenizer.from_blob(blob_of(RAW, chat_template=template, bos_token="<s>"))
    return tokenizer.render_chat(MESSAGES, **variables)  # type: ignore[arg-type]


def test_messages_and_generation_prompt() -> None:
    assert render(CHAT_TEMPLATE) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert render(CHAT_TEMPLATE, add_generation_prompt=False) == "<|im_start|>user\nhi<|im_end|>\n"


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ bos_token }}{{ eos_token }}!", "<s>!"),
        ("{{ {'a': '<é>'} | tojson }}", '{"a": "<é>"}'),
        ("{% for x in [1, 2, 3] %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}", "1"),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}", "hi"),
        ("{{ tools is none and documents is none }}", "True"),
        ("  {% if true %}\nx\n  {% endif %}\n", "x\n"),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("{{ mood }}", "calm"),
    ],
)
def test_what_templates_expect(template: str, text: str) -> None:
    assert render(template, mood="calm") == text


def test_variables_cannot_replace_special_tokens() -> None:
    assert render("{{ bos_token }}", bos_token="</s>") == "<s>"


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[5].content + 'x' }}", "refused"),
        ("{{ 1 + 'x' }}", "refused"),
        ("{{ messages.append(1) }}", "refused"),
        ("{{ ''.__class__.__mro__ }}", "refused"),
        ("{% for a in range(99999) %}{% for b in range(99999) %}{{ 'x' * 1000 }}{% endfor %}{% endfor %}", "exceeds"),
    ],
)
def test_a_template_that_fails_is_an_invalid_request(template: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as caught:
        render(template)
    assert caught.value.param == "messages"


def test_no_template_is_an_invalid_request() -> None:
    with pytest.raises(InvalidRequest, match="no chat template"):
        Tokenizer.from_blob(blob_of(RAW)).render_chat(MESSAGES)


def test_a_template_that_does_not_compile_is_refused_at_once() -> None:
    with pytest.raises(ConfigurationError, match="cannot be compiled"):
        render("{% if %}")
