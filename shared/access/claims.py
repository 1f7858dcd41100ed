"""Claims on idempotency keys: which model's queue a key's request is on its way to, in the tenant's slot.

A key belongs to a tenant, a queue to a model, and each has a slot of its own: without a claim, one key posted to two
models at one instant would find no run in either queue and start two. The claim only covers that way (look, then
admit): afterwards the run itself is found. It runs out by the server's clock, and nothing is admitted under it then.
"""

from __future__ import annotations

from dataclasses import dataclass

from shared import keys
from shared.redis_client import Scripts

CLAIM_MS = 60_000
# The queue's server may be another one than the claim's, with a clock a little behind.
_CLOCKS_DIFFER_MS = 5_000


@dataclass(frozen=True, slots=True)
class Claim:
    """`until_ms` (server's clock): how long a request may be admitted under it; 0: the key is on its way to `model`,
    with a body of this digest."""

    until_ms: int
    model: str = ""
    body_digest: str = ""


async def claim_key(
    scripts: Scripts, tenant: str, key_hash: str, model: str, body_digest: str, *, keep_ms: int = CLAIM_MS
) -> Claim:
    """Before looking for the key's run, and admitting one. Idempotent. Raises RedisError.

    `model` is the claimant: who says the same claims the same again. `keep_ms` 0 gives a claim back.
    """
    reply = await scripts.run("claim", keys.buckets(tenant), key_hash, model, body_digest, keep_ms)
    if reply[0] == b"mine":
        return Claim(int(reply[1]) - _CLOCKS_DIFFER_MS)
    return Claim(0, reply[1].decode(), reply[2].decode())
