"""API keys and limits as clients of the official SDK meet them: 401, 403, 429 and when it passes again."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import (
    AuthenticationError,
    BadRequestError,
    InternalServerError,
    NotFoundError,
    OpenAI,
    RateLimitError,
)

from loadtest.fairness.served import Fleet, Load, serve
from loadtest.fairness.tenants import Sizes, two_tenants
from loadtest.stack import Stack
from shared.access.entries import KeyEntry, entry_as_toml, sha256_of
from tests.e2e.conftest import SIMULATED

pytestmark = pytest.mark.e2e
MESSAGES: list[Any] = [{"role": "user", "content": "hi"}]
KEYS = [
    KeyEntry(sha256=sha256_of("free"), name="free"),
    KeyEntry(sha256=sha256_of("slow"), name="slow", requests_per_min=40),
    KeyEntry(sha256=sha256_of("tokens"), name="tokens", tokens_per_min=3000),
    KeyEntry(sha256=sha256_of("one"), name="one", max_concurrency=1),
    KeyEntry(sha256=sha256_of("small"), name="small", max_output_tokens=5, models=("simulated",)),
    KeyEntry(sha256=sha256_of("other"), name="other", models=("another-model",)),
]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("tenants")
    file = directory / "keys.toml"
    file.write_text("\n".join(map(entry_as_toml, KEYS)))
    with Stack(directory, env={**SIMULATED, "keys_file": file}) as stack:
        yield stack


def client_of(stack: Stack, key: str) -> OpenAI:
    return OpenAI(base_url=f"{stack.base_url}/v1", api_key=key, max_retries=0)


def ask(client: OpenAI, *, max_tokens: int = 2, **fields: Any) -> Any:
    """The raw reply: its headers, and `parse()`."""
    create = client.chat.completions.with_raw_response.create
    return create(model="simulated", messages=MESSAGES, max_tokens=max_tokens, **fields)


def test_an_unknown_key_is_401_for_all_but_probes(stack: Stack) -> None:
    with client_of(stack, "wrong") as client:
        with pytest.raises(AuthenticationError) as refused:
            ask(client)
        with pytest.raises(AuthenticationError):
            client.models.list()
    assert refused.value.code == "invalid_api_key"
    assert refused.value.response.headers["www-authenticate"] == "Bearer"


def test_a_model_that_is_not_allowed_is_not_found_and_not_listed(stack: Stack) -> None:
    with client_of(stack, "other") as client:
        with pytest.raises(NotFoundError, match=r"does not exist\. Available models: none"):
            ask(client)
        assert list(client.models.list()) == []


def test_an_answer_longer_than_allowed_is_400_and_names_the_limit(stack: Stack) -> None:
    with client_of(stack, "small") as client:
        with pytest.raises(BadRequestError, match="max_output_tokens 5"):
            ask(client, max_tokens=6)
        reply = client.chat.completions.create(model="simulated", messages=MESSAGES, extra_body={"ignore_eos": True})
    assert reply.usage is not None and reply.usage.completion_tokens == 5


def test_a_key_without_limits_has_no_figures(stack: Stack) -> None:
    with client_of(stack, "free") as client:
        assert not [name for name in ask(client).headers if name.startswith("x-ratelimit")]


def test_requests_a_minute_are_counted_and_the_wait_told_is_the_wait(stack: Stack) -> None:
    """Refused until the time told has passed, and then not."""
    with client_of(stack, "slow") as client:
        first = ask(client, stream=True).headers
        assert (first["x-ratelimit-limit-requests"], first["x-ratelimit-remaining-requests"]) == ("40", "39")
        assert first["x-ratelimit-reset-requests"] == "1.5s"
        with pytest.raises(RateLimitError) as refused:
            while True:
                ask(client)
        error = refused.value
        wait_s = float(error.response.headers["retry-after-ms"]) / 1000
        assert error.code == "rate_limit_exceeded" and 0 < wait_s <= 1.5
        assert error.response.headers["x-ratelimit-remaining-requests"] == "0"
        with pytest.raises(RateLimitError):
            ask(client)
        time.sleep(wait_s)
        assert ask(client).status_code == 200


def test_tokens_are_charged_as_the_answer_turned_out(stack: Stack) -> None:
    """Two of these at once would not fit; one after the other they do, since the rest goes back."""
    with client_of(stack, "tokens") as client:
        for _ in range(3):
            reply = ask(client, max_tokens=2000, stop=["e"])
            assert reply.status_code == 200
            assert int(reply.headers["x-ratelimit-remaining-tokens"]) < 1000
            assert reply.parse().usage.completion_tokens < 200
        with pytest.raises(BadRequestError, match="tokens_per_min 3000"):
            ask(client, max_tokens=3001)


def test_places_are_freed_with_the_end_of_an_answer(stack: Stack) -> None:
    with client_of(stack, "one") as client:
        for _ in range(5):  # streamed to their ends, one after the other
            stream = client.chat.completions.create(
                model="simulated", messages=MESSAGES, max_tokens=3, stream=True, extra_body={"ignore_eos": True}
            )
            assert len(list(stream)) >= 3
        long = client.chat.completions.create(
            model="simulated", messages=MESSAGES, max_tokens=2000, stream=True, extra_body={"ignore_eos": True}
        )
        next(long)
        with pytest.raises(RateLimitError, match="the limit is 1"):
            ask(client)
        long.close()
        _until_served(client)


def test_a_gateway_killed_with_requests_running_leaks_no_place(stack: Stack) -> None:
    with client_of(stack, "one") as client:
        _until_served(client)
        cut = threading.Event()

        def read() -> None:
            try:
                stream = client.chat.completions.create(
                    model="simulated", messages=MESSAGES, max_tokens=2000, stream=True, extra_body={"ignore_eos": True}
                )
                next(stream)
                cut.set()
                list(stream)
            except Exception:
                cut.set()

        reader = threading.Thread(target=read)
        reader.start()
        cut.wait()
        stack.restart_gateway()
        reader.join()
        _until_served(client)


def test_with_redis_away_nobody_is_let_through_uncounted(tmp_path: Path) -> None:
    (tmp_path / "keys.toml").write_text("\n".join(map(entry_as_toml, KEYS)))
    settings = {**SIMULATED, "keys_file": tmp_path / "keys.toml", "redis_timeout_s": 0.5}
    with Stack(tmp_path, env=settings) as stack, client_of(stack, "slow") as client:
        stack.valkey.kill()
        with pytest.raises(InternalServerError) as refused:
            ask(client)
        with client_of(stack, "wrong") as stranger, pytest.raises(AuthenticationError):
            ask(stranger)
        stack.valkey.start()
        stack.wait_ready(1)
        assert ask(client).headers["x-ratelimit-remaining-requests"] == "39"
    assert (refused.value.status_code, refused.value.code) == (503, "server_is_overloaded")
    assert float(refused.value.response.headers["retry-after"]) >= 1


def test_tenants_are_served_by_weight_though_one_comes_in_by_one_gateway_only(tmp_path: Path) -> None:
    """The fairness run of loadtest, short: weights of 4 and 1 from a keys file, two gateways, tokens as they arrive."""
    fleet = Fleet(slots=12, step_ms=50, num_workers=1)
    load = Load(Sizes((4, 12), (2.0, 0.4), 16), fleet, warm_up_s=0, num_windows=1)
    clients = serve(tmp_path, two_tenants(24, 12), load, window_s=4)
    (served,) = clients.ledger.windows(clients.steady_s, 1, 4)
    assert 3 < served["A"] / served["B"] < 5


def _until_served(client: OpenAI) -> None:
    """The test's own timeout bounds the wait."""
    while True:
        try:
            ask(client)
            return
        except RateLimitError:
            time.sleep(0.05)
