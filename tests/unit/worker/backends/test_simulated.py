from __future__ import annotations

import pytest

from shared.text.tokenizer import Tokenizer
from tests.unit.worker.engine.harness import answer, drain, make_request, start
from worker.backends.simulated import SimulatedConfig, build_simulated
from worker.backends.simulated_text import SimulatedText, byte_alphabet

FREE = SimulatedConfig(step_us=0, prefill_us_per_token=0)


def make_tokenizer() -> Tokenizer:
    return Tokenizer.from_blob(SimulatedText().blob())


def test_says_readable_words() -> None:
    engine = build_simulated(FREE)
    start(engine, make_request(max_tokens=24))
    words = answer(drain(engine)["r"]).text
    assert words.isascii() and words[0].isupper() and words.count(".") == 2
    assert len(words.split()) == 22


@pytest.mark.parametrize(
    "text", ["", "plain words", "  spaces\n\ttabs ", "é 漢字 🌊", "<|im_start|>user\nhi<|im_end|>"]
)
def test_any_text_survives_the_tokenizer(text: str) -> None:
    tokenizer = make_tokenizer()
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text


def test_a_word_of_the_vocabulary_is_one_token() -> None:
    assert len(make_tokenizer().encode(" river winter")) == 2


def test_alphabet_has_a_character_for_each_byte() -> None:
    assert len(set(byte_alphabet())) == 256
    assert byte_alphabet()[ord(" ")] == "\u0120"


def test_chat_template_renders_chatml() -> None:
    prompt = make_tokenizer().render_chat([{"role": "user", "content": "hi"}])
    assert prompt == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_a_step_costs_what_it_is_told_to() -> None:
    slept: list[float] = []
    config = SimulatedConfig(step_us=1000, step_us_per_seq=100, prefill_us_per_token=10)
    engine = build_simulated(config, sleep=slept.append)
    for name in ("a", "b"):
        start(engine, make_request(name, prompt=[ord(name)] * 20, max_tokens=2))
    drain(engine)
    assert slept == pytest.approx([(1000 + 2 * 100 + 40 * 10) / 1e6, (1000 + 2 * 100) / 1e6])


def test_a_free_step_does_not_sleep() -> None:
    slept: list[float] = []
    engine = build_simulated(FREE, sleep=slept.append)
    start(engine, make_request())
    drain(engine)
    assert slept == []


def test_eos_comes_only_when_asked_for() -> None:
    config = SimulatedConfig(step_us=0, prefill_us_per_token=0, eos_probability=0.2)
    engine = build_simulated(config)
    start(engine, make_request(max_tokens=200))
    choice = answer(drain(engine)["r"])
    assert (choice.finish_reason, choice.token_ids[-1]) == ("stop", engine.card.stop_token_ids[0])
    assert engine.card.revision != build_simulated(FREE).card.revision


def test_every_worker_registers_the_same_card() -> None:
    assert build_simulated(FREE).card == build_simulated(FREE).card
    assert build_simulated(FREE).tokenizer_blob == build_simulated(FREE).tokenizer_blob
