"""A batch's input looked at as a whole, before any line of it is computed."""

from __future__ import annotations

import contextlib
from typing import Any

from gateway.batches.lines import Checked, LineFault, fault_fields
from gateway.batches.means import Means
from gateway.store.batch_rows import StoredBatch
from shared.errors import ModelNotFound


async def check_file(means: Means, batch: StoredBatch) -> Checked:
    """Every fault of form, and models that do not exist. Raises BlobGone, Unavailable."""
    checked = Checked()
    async with contextlib.aclosing(means.blobs.lines(batch.input_file_id, means.max_line_bytes)) as lines:
        async for number, raw in lines:
            checked.look_at(number, raw, batch.endpoint, means.max_line_bytes)
            if checked.is_hopeless:
                return checked
    if not checked.num_lines:
        checked.blame(LineFault("empty_file", "the file has no lines"), None)
    for model, number in checked.models.items():
        try:
            means.around.check_model(model)
        except ModelNotFound as error:
            checked.blame(LineFault(error.code, error.message, "body.model"), number)
    return checked


def file_gone(batch: StoredBatch) -> dict[str, Any]:
    return fault_fields(LineFault("file_not_found", f"the bytes of {batch.input_file_id} are gone"), None)
