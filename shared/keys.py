"""Every Redis key: one function or constant each, with its owner, type and end of life.

`m` is a model revision (name@digest). Everything of one model shares the hash tag {m}, so one script can
touch all of it, in one Cluster slot. Ids and tenants are escaped before they become part of a key.

    key                        type    written by        end of life
    hr:{m}:counts              hash    all scripts       with the model
    hr:{m}:q:<class>:<tenant>  stream  admit             deleted when its last entry ends
    hr:{m}:q:retry             stream  reap, release     deleted when its last entry ends
    hr:{m}:q:lane:<worker>     stream  take              deleted when its last entry ends
    hr:{m}:lane:<worker>       zset    admit             when the last of it is for anybody (lane_ms)
    hr:{m}:seen, :seen_before  hash    take              10 min after the last take; forgotten by halves
    hr:{m}:flows:<class>       zset    admit, take       a tenant leaves when it has none waiting
    hr:{m}:tenant:<t>          hash    admit, emit       a day after its last change
    hr:{m}:r:<id>              hash    all scripts       retention_s after the request ended
    hr:{m}:b:<id>              string  admit             when the request ends (a dead letter's: a day)
    hr:{m}:j:<id>              string  emit, events      with r
    hr:{m}:g:<id>              set     attach, detach    with r
    hr:{m}:att:<gateway>       set     attach, detach    emptied as its requests end
    hr:{m}:own:<worker>        zset    take, emit, reap  emptied as its requests end
    hr:{m}:deadlines           zset    admit, emit       an id leaves when it ends
    hr:{m}:w:<worker>          hash    register          unregister or reap
    hr:{m}:lease               zset    register, emit    unregister or reap
    hr:{m}:ctl:<worker>        list    cancel, attach    60 s, or read
    hr:{m}:idle                zset    take              a worker leaves when rung, when it takes, when it is gone
    hr:{m}:woken               zset    ring              a worker leaves when it asks, or is gone
    hr:{m}:bell:<worker>       list    ring              read, or asked again, or 10 s
    hr:{m}:paused              hash    pause             resume
    hr:{m}:quarantine          hash    quarantine        a worker leaves when it is over, or did not speak in time
    hr:{m}:promises            zset    admit             one leaves when let in, or 2 s after it was due
    hr:{m}:promises:<mark>     zset    admit             the same
    hr:{m}:let_in:<mark>       string  admit             10 s
    hr:{m}:dead, :events, :history   streams             capped
    hr:{m}:idem:<t>:<hash>     string  admit             with r
    hr:models                  hash    workers           kept (a model with no worker still queues)
    hr:tok:<digest>            string  workers           kept
    hr:gateways                zset    gateways          a gateway leaves when reaped
    hr:out:{m}:<gateway>       channel emit, events
    hr:starts:<name>           zset    workers           a start leaves when it lived, or ended in order; the window
    hr:keys                    hash    operators         kept (API keys: SHA-256 -> entry)
    hr:routes                  hash    operators         kept (public name -> route)
    hr:routes:log              stream  operators         capped (who changed which route)
    hr:t:{<t>}:buckets         hash    reserve, refund   when both buckets are full again
    hr:t:{<t>}:held            zset    reserve, hold     with its last lease
    hr:t:{<t>}:charge:<id>     hash    reserve, refund   60 s after its request ended, or nobody held it
    hr:t:{<t>}:claim:<hash>    hash    claim             60 s after it was claimed last

`counts` (a tenant's slot: `buckets`) is declared by every script as its one key; a script builds the others from
its slot's prefix.
"""

from __future__ import annotations

from urllib.parse import quote

PREFIX = "hr:"
MODELS = "hr:models"
GATEWAYS = "hr:gateways"
API_KEYS = "hr:keys"
ROUTES = "hr:routes"
ROUTES_LOG = "hr:routes:log"


def escape(part: str) -> str:
    """A tenant, id or name as a safe part of a key: no braces, colons, blanks or control characters."""
    return quote(part, safe="@.-_~")


def base(m: str) -> str:
    """Prefix of all keys of model revision `m`: `hr:{m}:`."""
    return f"hr:{{{escape(m)}}}:"


def counts(m: str) -> str:
    return base(m) + "counts"


def request(m: str, request_id: str) -> str:
    return f"{base(m)}r:{request_id}"


def body(m: str, request_id: str) -> str:
    return f"{base(m)}b:{request_id}"


def idempotency(m: str, tenant: str, key_hash: str) -> str:
    return f"{base(m)}idem:{escape(tenant)}:{key_hash}"


def journal(m: str, request_id: str) -> str:
    return f"{base(m)}j:{request_id}"


def listeners(m: str, request_id: str) -> str:
    return f"{base(m)}g:{request_id}"


def attached(m: str, gateway: str) -> str:
    return f"{base(m)}att:{gateway}"


def owned(m: str, worker: str) -> str:
    return f"{base(m)}own:{worker}"


def worker(m: str, worker_id: str) -> str:
    return f"{base(m)}w:{worker_id}"


def lease(m: str) -> str:
    return base(m) + "lease"


def deadlines(m: str) -> str:
    return base(m) + "deadlines"


def bell(m: str, worker_id: str) -> str:
    return f"{base(m)}bell:{worker_id}"


def idle(m: str) -> str:
    return base(m) + "idle"


def woken(m: str) -> str:
    return base(m) + "woken"


def tenant(m: str, name: str) -> str:
    return f"{base(m)}tenant:{escape(name)}"


def paused(m: str) -> str:
    return base(m) + "paused"


def quarantine(m: str) -> str:
    return base(m) + "quarantine"


def starts(worker_name: str) -> str:
    """Starts of a named worker that may have ended early."""
    return f"hr:starts:{worker_name}"


def promises(m: str) -> str:
    return base(m) + "promises"


def commands(m: str, worker_id: str) -> str:
    return f"{base(m)}ctl:{worker_id}"


def dead(m: str) -> str:
    return base(m) + "dead"


def events(m: str) -> str:
    return base(m) + "events"


def history(m: str) -> str:
    return base(m) + "history"


def queue(m: str, service_class: str, tenant: str) -> str:
    return f"{base(m)}q:{service_class}:{escape(tenant)}"


def flows(m: str, service_class: str) -> str:
    return f"{base(m)}flows:{service_class}"


def lane(m: str, worker_id: str) -> str:
    return f"{base(m)}lane:{worker_id}"


def seen_before(m: str) -> str:
    return base(m) + "seen_before"


def seen(m: str) -> str:
    return base(m) + "seen"


def tokenizer(digest: str) -> str:
    return f"hr:tok:{digest}"


def channel(m: str, gateway: str) -> str:
    """Where a step's messages for one gateway are published."""
    return f"hr:out:{{{escape(m)}}}:{gateway}"


def buckets(tenant: str) -> str:
    """The declared key of a tenant's slot."""
    return f"hr:t:{{{escape(tenant)}}}:buckets"
