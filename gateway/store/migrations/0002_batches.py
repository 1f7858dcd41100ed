"""The tables of files, batches, and the answers of batches under way."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "files",
        sa.Column("id", sa.String(128), primary_key=True),
        sa.Column("tenant", sa.String(256), nullable=False),
        sa.Column("filename", sa.String(512), nullable=False),
        sa.Column("purpose", sa.String(32), nullable=False),
        sa.Column("num_bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("expires_at_ms", sa.BigInteger(), nullable=True),
    )
    op.create_index("files_by_tenant", "files", ["tenant", "created_at_ms", "id"])
    op.create_index("files_by_expiry", "files", ["expires_at_ms"])
    op.create_table(
        "batches",
        sa.Column("id", sa.String(128), primary_key=True),
        sa.Column("tenant", sa.String(256), nullable=False),
        sa.Column("key_digest", sa.String(64), nullable=False),
        sa.Column("endpoint", sa.String(64), nullable=False),
        sa.Column("input_file_id", sa.String(128), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("window_ends_ms", sa.BigInteger(), nullable=False),
        sa.Column("expires_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("metadata", sa.Text(), nullable=False),
        sa.Column("output_ttl_s", sa.BigInteger(), nullable=False),
        sa.Column("output_file_id", sa.String(128), nullable=False),
        sa.Column("error_file_id", sa.String(128), nullable=False),
        sa.Column("faults", sa.Text(), nullable=False),
        sa.Column("times", sa.Text(), nullable=False),
        sa.Column("num_lines", sa.BigInteger(), nullable=False),
        sa.Column("num_completed", sa.BigInteger(), nullable=False),
        sa.Column("num_failed", sa.BigInteger(), nullable=False),
        sa.Column("num_fed", sa.BigInteger(), nullable=False),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("beat", sa.BigInteger(), nullable=False),
    )
    op.create_index("batches_by_tenant", "batches", ["tenant", "created_at_ms", "id"])
    op.create_index("batches_by_status", "batches", ["status", "created_at_ms"])
    op.create_index("batches_by_expiry", "batches", ["expires_at_ms"])
    op.create_table(
        "batch_answers",
        sa.Column("batch_id", sa.String(128), primary_key=True),
        sa.Column("line", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("is_ok", sa.Boolean(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("batch_answers")
    op.drop_table("batches")
    op.drop_table("files")
