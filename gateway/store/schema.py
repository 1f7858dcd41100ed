"""The tables of the store, as they are now; how they came to be so stands in migrations/.

Kept to what SQLite and PostgreSQL share: text, integers, bytes, JSON as text. Times are milliseconds since 1970. A table whose
rows come to an end by themselves has `expires_at_ms` and stands in EXPIRING; everything a tenant owns has `tenant`.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, LargeBinary, MetaData, String, Table, Text

ID_CHARS = 128
TENANT_CHARS = 256

metadata = MetaData()

# A stored response. `request` is what it echoes and how its journal is read (gateway/openai/responses/view.py), `input`
# the conversation it was given, `journal` what came of it, deflated, once it has ended: answers and events are made of
# these alone, so they are the same as those that were streamed. `status` is the API's. An unfinished one is looked after
# by one gateway at a time, until `leased_until_ms`; `num_misses` counts the times it was not found in the queue.
responses = Table(
    "responses",
    metadata,
    Column("id", String(ID_CHARS), primary_key=True),
    Column("tenant", String(TENANT_CHARS), nullable=False),
    Column("request_id", String(ID_CHARS), nullable=False),
    Column("revision", String(TENANT_CHARS), nullable=False),
    Column("status", String(16), nullable=False),
    Column("is_background", Boolean, nullable=False),
    Column("request", Text, nullable=False),
    Column("input", Text, nullable=False),
    Column("journal", LargeBinary, nullable=True),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("ended_at_ms", BigInteger, nullable=False, default=0),
    Column("expires_at_ms", BigInteger, nullable=False),
    Column("leased_until_ms", BigInteger, nullable=False, default=0),
    Column("num_misses", Integer, nullable=False, default=0),
    Index("responses_by_expiry", "expires_at_ms"),
    Index("responses_by_status", "status", "leased_until_ms"),
)

# Rows past their `expires_at_ms` are deleted by retention.py.
EXPIRING: tuple[Table, ...] = (responses,)
