"""GGUF files made here: refusals, and tokenizers rebuilt from their vocabularies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from shared.errors import ConfigurationError
from shared.text.tokenizer import Tokenizer
from tests.model.conftest import Load
from worker.model.checkpoints.gguf import GGUFCheckpoint

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
PIECES = ["▁", "a", "b", "c", "▁a", "ab", "▁ab", "abc"]


def write_gguf(
    path: Path, tokenizer: dict[str, Any], architecture: str = "llama", embedding: np.ndarray | None = None
) -> Path:
    """Metadata and a tensor or two: enough to open, not to run."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(8)
    writer.add_feed_forward_length(8)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model(tokenizer["model"])
    writer.add_token_list(tokenizer["tokens"])
    writer.add_token_types(tokenizer["types"])
    writer.add_add_space_prefix(tokenizer.get("space_prefix", True))
    if "scores" in tokenizer:
        writer.add_token_scores(tokenizer["scores"])
    if "merges" in tokenizer:
        writer.add_token_merges(tokenizer["merges"])
        writer.add_tokenizer_pre(tokenizer["pre"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_tensor("output_norm.weight", np.ones(8, np.float32))
    if embedding is not None:
        writer.add_tensor("token_embd.weight", embedding)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def sentencepiece() -> dict[str, Any]:
    tokens = ["<unk>", "<s>", "</s>", *BYTES, *PIECES]
    scores = [0.0] * (3 + 256) + [-float(rank) for rank in range(len(PIECES), 0, -1)]
    return {"model": "llama", "tokens": tokens, "types": [2, 3, 3] + [6] * 256 + [1] * len(PIECES), "scores": scores}


def byte_level(pre: str) -> dict[str, Any]:
    """Merges that could join digits: what keeps them apart is the pre-tokenizer."""
    tokens = ["<|x|>", "<|im_start|>", "<|im_end|>", *"0123456789aĠ", "12", "34", "123", "1234", "Ġa"]
    types = [3, 3, 3] + [1] * (len(tokens) - 3)
    merges = ["1 2", "3 4", "12 3", "123 4", "12 34", "Ġ a"]
    return {"model": "gpt2", "tokens": tokens, "types": types, "merges": merges, "pre": pre}


def opened(path: Path) -> tuple[GGUFCheckpoint, Tokenizer]:
    checkpoint = GGUFCheckpoint(path)
    return checkpoint, Tokenizer.from_blob(checkpoint.tokenizer_blob)


@pytest.mark.parametrize("text", ["ab abc", " a  b", "é ab", "</s>"])
def test_sentencepiece_vocabularies_round_trip(tmp_path: Path, text: str) -> None:
    _, tokenizer = opened(write_gguf(tmp_path / "m.gguf", sentencepiece()))
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_sentencepiece_merges_follow_the_scores_and_bytes_stand_in(tmp_path: Path) -> None:
    checkpoint, tokenizer = opened(write_gguf(tmp_path / "m.gguf", sentencepiece()))
    pieces = [checkpoint.tokenizer_blob.bos_token, "▁ab", "▁", "<0xC3>", "<0xA9>"]
    tokens = sentencepiece()["tokens"]
    assert [tokens[i] for i in tokenizer.encode("ab é", add_special_tokens=True)] == pieces


@pytest.mark.parametrize(
    ("pre", "pieces"), [("smollm", 5), ("llama-bpe", 3), ("gpt-2", 2), ("qwen2", 5), ("tekken", 5)]
)
def test_pre_tokenizers_split_digits_each_their_way(tmp_path: Path, pre: str, pieces: int) -> None:
    checkpoint, tokenizer = opened(write_gguf(tmp_path / "m.gguf", byte_level(pre)))
    ids = tokenizer.encode("1234 a")
    assert len(ids) == pieces and tokenizer.decode(ids) == "1234 a"
    assert checkpoint.stop_token_ids == (2,)


def test_published_names_of_end_tokens_stop_beside_the_stated_one(tmp_path: Path) -> None:
    """Qwen's files name one of their two."""
    tokenizer = byte_level("qwen2")
    tokenizer["tokens"][0] = "<|endoftext|>"
    assert opened(write_gguf(tmp_path / "m.gguf", tokenizer))[0].stop_token_ids == (0, 2)


def test_user_defined_runs_of_spaces_are_pieces(tmp_path: Path) -> None:
    """As Gemma's files have them: spelled as spaces, in a vocabulary that writes a space as a mark."""
    tokenizer: dict[str, Any] = sentencepiece() | {"space_prefix": False}
    tokenizer["tokens"], tokenizer["types"] = [*tokenizer["tokens"], "  "], [*tokenizer["types"], 4]
    tokenizer["scores"] = [*tokenizer["scores"], -1000.0]
    _, built = opened(write_gguf(tmp_path / "m.gguf", tokenizer))
    assert [tokenizer["tokens"][i] for i in built.encode("ab  c a")] == ["ab", "  ", "c", "▁a"]
    assert built.decode(built.encode("ab  c a")) == "ab  c a"


@pytest.mark.parametrize(
    ("tokenizer", "architecture", "words"),
    [
        (byte_level("smollm"), "mamba", "'mamba' is not supported; supported in GGUF are llama, qwen2, qwen3, gemma3"),
        (byte_level("dbrx"), "llama", "dbrx"),
        (byte_level("smollm") | {"model": "t5"}, "llama", "t5"),
    ],
)
def test_what_is_not_supported_is_named(
    load: Load, tmp_path: Path, tokenizer: dict[str, Any], architecture: str, words: str
) -> None:
    path = write_gguf(tmp_path / "m.gguf", tokenizer, architecture)
    with pytest.raises(ConfigurationError, match=words):
        load(path)


def test_a_file_without_its_weights_is_refused(load: Load, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"token_embd\.weight"):
        load(write_gguf(tmp_path / "m.gguf", byte_level("smollm")))


def test_a_file_that_is_not_gguf_is_refused(load: Load, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"not a model at all")
    with pytest.raises(ConfigurationError, match="cannot be read as a GGUF file"):
        load(path)
