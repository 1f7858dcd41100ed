"""What a batch has used, as JSON; '{}' of one that is not over, or was before there was this column."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("batches", sa.Column("usage", sa.Text(), nullable=False, server_default="{}"))


def downgrade() -> None:
    op.drop_column("batches", "usage")
