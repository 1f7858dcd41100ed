"""The tables of the store, as they are now; how they came to be so stands in migrations/.

Kept to what SQLite and PostgreSQL share: text, integers, JSON as text. Times are milliseconds since 1970. A table whose
rows come to an end by themselves has `expires_at_ms` and stands in EXPIRING; everything a tenant owns has `tenant`.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Index, MetaData, String, Table, Text

ID_CHARS = 128
TENANT_CHARS = 256

metadata = MetaData()

# A stored response. `request` is what it echoes, `input` the whole conversation it was given, `result` what it ended
# with; `status` is the API's. `leased_until_ms` is until when one gateway alone looks after an unfinished one.
responses = Table(
    "responses",
    metadata,
    Column("id", String(ID_CHARS), primary_key=True),
    Column("tenant", String(TENANT_CHARS), nullable=False),
    Column("status", String(16), nullable=False),
    Column("is_background", Boolean, nullable=False),
    Column("request", Text, nullable=False),
    Column("input", Text, nullable=False),
    Column("result", Text, nullable=False, default=""),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("expires_at_ms", BigInteger, nullable=False),
    Column("leased_until_ms", BigInteger, nullable=False, default=0),
    Index("responses_by_expiry", "expires_at_ms"),
    Index("responses_by_status", "status", "leased_until_ms"),
)

# Rows past their `expires_at_ms` are deleted by retention.py.
EXPIRING: tuple[Table, ...] = (responses,)
