"""Run by Alembic itself, not imported: on the connection that migrate.py hands over, or with `alembic` by hand.

One transaction for all steps, so that a start that is killed half-way leaves the schema as it was.
"""

from __future__ import annotations

from alembic import context

from gateway.store.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
