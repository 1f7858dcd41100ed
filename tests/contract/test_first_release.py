"""What the first release wrote is read today. Its own code made the files; its API keys came a release later."""

from __future__ import annotations

from pathlib import Path

import msgspec

from shared.access.entries import KeyEntry
from shared.schemas import (
    EndFrame,
    ModelCard,
    Outcome,
    Request,
    SamplingParams,
    ServiceClass,
    TokenizerBlob,
    Usage,
    WorkerInfo,
    decode_frames,
    decode_request,
    encode_frames,
    encode_request,
    prefixes_of,
)
from shared.text.tokenizer import decode_blob
from shared.token_stream import decode_messages

WRITTEN = Path(__file__).parent / "wire" / "first_release"
PARAMS = SamplingParams(
    max_tokens=8, seed=7, temperature=0.5, top_p=0.9, top_k=40, n=2, stop=("END",), stop_token_ids=(2,), ignore_eos=True
)
REQUEST = Request(
    request_id="01a22d3f5ae3f68a775feb7f74fd0436",
    model="tiny@0123456789ab",
    prompt_ids=(1, 2, 3),
    params=PARAMS,
    tenant="t",
    service_class=ServiceClass.PRIORITY,
)


def written(name: str) -> bytes:
    return (WRITTEN / name).read_bytes()


def test_bodies_plain_and_deflated() -> None:
    assert decode_request(written("request.json")) == REQUEST
    long = msgspec.structs.replace(REQUEST, prompt_ids=tuple(range(2000)))
    assert decode_request(written("request_long.bin")) == long


def test_a_request_that_asks_for_nothing_newer_is_written_so_that_the_first_release_reads_it() -> None:
    """Its workers refuse a body with a field they do not know, be it at its default."""
    given = {name: float(name == "repetition_penalty") for name in ("min_p", "presence_penalty", "repetition_penalty")}
    same = msgspec.structs.replace(REQUEST, params=msgspec.structs.replace(PARAMS, **given))
    assert encode_request(same) == written("request.json")


def test_journals() -> None:
    frames = decode_frames(written("journal.txt"))
    assert encode_frames(frames) == written("journal.txt")
    assert frames[-1] == EndFrame(Outcome.FINISHED, Usage(3, 4, 1))
    assert [(p.token_ids, p.text) for p in prefixes_of(frames, 2)] == [((504, 253, 2), "The séa"), ((9,), "")]
    (failed,) = decode_frames(written("journal_failed.txt"))
    assert isinstance(failed, EndFrame) and failed.error is not None and failed.error.code == "server_error"


def test_messages() -> None:
    (message,) = decode_messages(written("message.json"))
    assert (message.request_id, message.owner, message.offset) == ("01a2", "w-1/1/1764500000000", 61)
    assert message.frames == '["t",0,[504],"The"]\n'


def test_cards_and_workers() -> None:
    card = msgspec.json.decode(written("card.json"), type=ModelCard)
    worker = msgspec.json.decode(written("worker.json"), type=WorkerInfo)
    assert (card.revision, card.version, card.tool_format) == ("tiny@0123456789ab", 1, "auto")
    assert (worker.worker_id, worker.version, worker.knows) == ("w-1", 1, 0)


def test_tokenizers() -> None:
    assert decode_blob(written("blob.bin")) == TokenizerBlob(
        tokenizer_json='{"model":{}}', chat_template="{{ messages }}", bos_token="<s>", eos_token="</s>"
    )


def test_an_api_key() -> None:
    fields = msgspec.json.decode(written("key.json")) | {"sha256": "0" * 64}
    entry = msgspec.convert(fields, KeyEntry)
    assert (entry.name, entry.weight, entry.max_concurrency, entry.models) == ("team-a", 2.0, 4, ("tiny",))
