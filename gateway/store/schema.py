"""The tables of the store, as they are now; how they came to be so stands in migrations/.

Kept to what SQLite and PostgreSQL share: text, integers, bytes, JSON as text. Times are milliseconds since 1970. A
table whose rows come to an end by themselves has `expires_at_ms` and stands in EXPIRING; what is a tenant's, `tenant`.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, LargeBinary, MetaData, String, Table, Text

ID_CHARS = 128
TENANT_CHARS = 256

metadata = MetaData()

# A stored response. `request` is what it echoes and how its journal is read (gateway/openai/responses/view.py), `input`
# the conversation it was given, `journal` what came of it, deflated, once it has ended: answers and events are made of
# these alone, so they are the same as those that were streamed. `status` is the API's. An unfinished one is looked
# after by one gateway at a time, until `leased_until_ms`; `num_misses`: how often it was not found in the queue.
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

# A file; its bytes are under its id, wherever gateway/files keeps them. `expires_at_ms` NULL: until it is deleted. Not
# in EXPIRING: who deletes its row deletes its bytes.
files = Table(
    "files",
    metadata,
    Column("id", String(ID_CHARS), primary_key=True),
    Column("tenant", String(TENANT_CHARS), nullable=False),
    Column("filename", String(512), nullable=False),
    Column("purpose", String(32), nullable=False),
    Column("num_bytes", BigInteger, nullable=False),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("expires_at_ms", BigInteger, nullable=True),
    Index("files_by_tenant", "tenant", "created_at_ms", "id"),
    Index("files_by_expiry", "expires_at_ms"),
)

# A batch (batch_rows.py) and who computes it (batch_runs.py). `metadata`, `faults`, `times` and `usage` are JSON.
batches = Table(
    "batches",
    metadata,
    Column("id", String(ID_CHARS), primary_key=True),
    Column("tenant", String(TENANT_CHARS), nullable=False),
    Column("key_digest", String(64), nullable=False),
    Column("endpoint", String(64), nullable=False),
    Column("input_file_id", String(ID_CHARS), nullable=False),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("window_ends_ms", BigInteger, nullable=False),
    Column("expires_at_ms", BigInteger, nullable=False),
    Column("status", String(16), nullable=False),
    Column("metadata", Text, nullable=False),
    Column("output_ttl_s", BigInteger, nullable=False),
    Column("output_file_id", String(ID_CHARS), nullable=False),
    Column("error_file_id", String(ID_CHARS), nullable=False),
    Column("faults", Text, nullable=False),
    Column("times", Text, nullable=False),
    Column("num_lines", BigInteger, nullable=False),
    Column("num_completed", BigInteger, nullable=False),
    Column("num_failed", BigInteger, nullable=False),
    Column("num_fed", BigInteger, nullable=False),
    Column("owner", String(64), nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("beat", BigInteger, nullable=False),
    Column("usage", Text, nullable=False, server_default="{}"),
    Index("batches_by_tenant", "tenant", "created_at_ms", "id"),
    Index("batches_by_status", "status", "created_at_ms"),
    Index("batches_by_expiry", "expires_at_ms"),
)

# The answers of a batch under way, one a line at most; moved into its files at its end.
batch_answers = Table(
    "batch_answers",
    metadata,
    Column("batch_id", String(ID_CHARS), primary_key=True),
    Column("line", BigInteger, primary_key=True, autoincrement=False),
    Column("is_ok", Boolean, nullable=False),
    Column("text", Text, nullable=False),
)

# Rows past their `expires_at_ms` are deleted by retention.py.
EXPIRING: tuple[Table, ...] = (responses, batches)
