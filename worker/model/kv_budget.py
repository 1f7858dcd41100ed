"""How many KV blocks a runner gets: from a number of bytes, or a share of what is free beside the loaded weights.

free before loading ──▶ reservable_blocks     address space only: pages come when they are written
weights loaded
free now            ──▶ usable_blocks         what the scheduler may use, and the log line that says so
"""

from __future__ import annotations

import logging

from shared.errors import ConfigurationError
from worker.model.cpu.choice import Placement
from worker.model.memory import FreeMemory, free_memory

log = logging.getLogger(__name__)

BLOCK_SIZE = 16  # tokens, of every runner
GPU_SHARE = 0.85  # the rest is for activations, recorded graphs and what the libraries take
CPU_SHARE = 0.5  # the machine is not the worker's own
CPU_MOST_BYTES = 1 << 30


def reservable_blocks(place: Placement, block_bytes: int) -> int:
    """For runners that make their pool before they load: no fewer than `usable_blocks` will say. Raises
    ConfigurationError."""
    return _blocks(_budget(place, free_memory(place.device))[0], block_bytes)


def usable_blocks(place: Placement, block_bytes: int, *, most: int | None = None) -> int:
    """Block 0, which is scratch, counts. To be asked when the weights are loaded. One log line tells what came of it:
    a warning where a request may not be as long as the model allows, or where more is asked for than is free. Raises
    ConfigurationError when there is no room for one block beside the scratch."""
    free = free_memory(place.device)
    num_bytes, why = _budget(place, free)
    blocks = _blocks(num_bytes, block_bytes)
    if most is not None:
        blocks = min(blocks, most)
    tokens = (blocks - 1) * BLOCK_SIZE
    longest = min(place.context_length, tokens)
    is_short = longest < place.context_length
    is_too_much = free is not None and num_bytes > free.num_bytes
    if is_too_much and free is not None:
        why += f", more than the {free.num_bytes >> 20} MiB that {free.limit} has left"
    if is_short:
        why += f"; requests have at most {longest} tokens, not the {place.context_length} that the model allows"
    log.log(
        logging.WARNING if is_short or is_too_much else logging.INFO,
        "kv_cache",
        extra={"mib": blocks * block_bytes >> 20, "blocks": blocks - 1, "tokens": tokens, "why": why},
    )
    return blocks


def _budget(place: Placement, free: FreeMemory | None) -> tuple[int, str]:
    """Bytes, and where they come from."""
    if place.kv_cache_bytes:
        return place.kv_cache_bytes, f"{place.kv_cache_bytes >> 20} MiB asked for"
    if free is None:
        if place.kv_cache_share:
            raise ConfigurationError(
                "a share of the free memory is asked for, and this system does not say what is free"
            )
        return CPU_MOST_BYTES, f"{CPU_MOST_BYTES >> 20} MiB, as this system does not say what is free"
    is_gpu = place.device.startswith("cuda")
    share = place.kv_cache_share or (GPU_SHARE if is_gpu else CPU_SHARE)
    num_bytes, why = (
        int(free.num_bytes * share),
        f"{share:.0%} of {free.num_bytes >> 20} MiB that {free.limit} has left",
    )
    if not is_gpu and not place.kv_cache_share and num_bytes > CPU_MOST_BYTES:
        return CPU_MOST_BYTES, f"{CPU_MOST_BYTES >> 20} MiB, less than {why}"
    return num_bytes, why


def _blocks(num_bytes: int, block_bytes: int) -> int:
    blocks = num_bytes // block_bytes
    if blocks < 2:
        raise ConfigurationError(
            f"a KV cache of {num_bytes} bytes does not hold one block of this model beside the scratch block: "
            f"it takes {2 * block_bytes} bytes"
        )
    return blocks
