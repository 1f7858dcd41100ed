"""The redis-cli lines behind each view and action, so that an operator sees what was asked and can ask it alone.

Pure. An action is a script; its line names the script by its digest, which the server knows once one of our
processes has run it. Quoted for a shell; the server's URL (it may hold a password) is left to the reader.
"""

from __future__ import annotations

import hashlib
import shlex

from shared import keys


def line(*words: str | int) -> str:
    return "redis-cli " + shlex.join(str(word) for word in words)


def script(text: str, model: str, *args: str | int) -> str:
    """`text`: the script as the server got it."""
    digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    return line("EVALSHA", digest, 1, keys.counts(model), *args)


def overview(model: str) -> list[str]:
    return [
        line("HGETALL", keys.counts(model)),
        line("ZRANGE", keys.flows(model, "default"), 0, -1, "WITHSCORES"),
        line("HGETALL", keys.paused(model)),
    ]


def scaling(model: str) -> list[str]:
    return [
        line("HMGET", keys.counts(model), "waiting", "waiting_tokens", "running"),
        line("ZRANGE", keys.lease(model), 0, -1, "WITHSCORES"),
        line("XREVRANGE", keys.history(model), "+", "-", "COUNT", 20),
    ]


def workers(model: str) -> list[str]:
    return [line("ZRANGE", keys.lease(model), 0, -1, "WITHSCORES"), line("ZRANGE", keys.GATEWAYS, 0, -1, "WITHSCORES")]


def worker(model: str, worker_id: str) -> list[str]:
    return [
        line("HGETALL", keys.worker(model, worker_id)),
        line("ZRANGE", keys.owned(model, worker_id), 0, -1, "WITHSCORES"),
    ]


def request(model: str, request_id: str) -> list[str]:
    return [line("HGETALL", keys.request(model, request_id)), line("--raw", "GET", keys.journal(model, request_id))]


def dead_letters(model: str, count: int) -> list[str]:
    return [line("XREVRANGE", keys.dead(model), "+", "-", "COUNT", count)]


def routes_log(count: int = 20) -> str:
    return line("XREVRANGE", keys.ROUTES_LOG, "+", "-", "COUNT", count)


def audit(model: str, count: int = 20) -> str:
    return line("XREVRANGE", keys.events(model), "+", "-", "COUNT", count)
