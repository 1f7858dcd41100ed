# pyright: basic, reportMissingImports=false
# ruff: noqa: PLR0913
"""Attention over a paged KV pool as Triton kernels: storing, row by row, and tiles of a chunk's rows.

    keys, values    [block, kv_head, BLOCK, DIM]    of one layer
    starts, blocks  the block table of row r's sequence is blocks[starts[r]:]
    a row's tokens  |-- split 0: tile tile tile --|-- split 1: tile tile tile --|-- split 2: tile .. position|

A row is summed tile by tile within a split, and its splits in order: where they lie hangs on its position alone, and
which program takes which split changes no sum. So no neighbour, padding or number of `lanes` enters its bits. Tiles of
rows share what they read and sum in another order. Only tokens up to a row's position in its own sequence are loaded,
so what is not finite stays where it is. Sources: FlashAttention 2, flash decoding, vLLM (PagedAttention).
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def store_kernel(
    qkv,  # [rows, HEADS + 2 * KV_HEADS, DIM]
    keys,
    values,
    slots,  # [rows]
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program a row and KV head. Rows of padding write the same slot, in any order: nobody reads it but they."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(slots + row).to(tl.int64)
    dim = tl.arange(0, DIM_PAD)
    source = qkv + (row * (HEADS + 2 * KV_HEADS) + HEADS + head) * DIM + dim
    target = ((slot // BLOCK * KV_HEADS + head) * BLOCK + slot % BLOCK) * DIM + dim
    tl.store(keys + target, tl.load(source, mask=dim < DIM), mask=dim < DIM)
    tl.store(values + target, tl.load(source + KV_HEADS * DIM, mask=dim < DIM), mask=dim < DIM)


@triton.jit
def take_tile(
    state,  # running maximum [M], sum [M] and weighted values [M, DIM_PAD], fp32
    queries,  # [M, DIM_PAD]
    keys,
    values,
    table,  # the sequence's blocks
    token,  # the tile's first token
    last,  # [M], the last token each row sees; `stop` is beyond them all
    stop,
    head,
    SCALE: tl.constexpr,
    WINDOW: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
):
    """The state after the tokens token .. token + TILE. SCALE has log2(e) in it."""
    peak, mass, sums = state
    dim, tokens = tl.arange(0, DIM_PAD), token + tl.arange(0, TILE)
    is_there = tokens < stop
    block = tl.load(table + tokens // BLOCK, mask=is_there, other=0).to(tl.int64)
    place = ((block * KV_HEADS + head) * BLOCK + tokens % BLOCK) * DIM
    key = tl.load(keys + place[None, :] + dim[:, None], mask=is_there[None, :] & (dim < DIM)[:, None], other=0.0)
    value = tl.load(values + place[:, None] + dim[None, :], mask=is_there[:, None] & (dim < DIM)[None, :], other=0.0)
    is_seen = tokens[None, :] <= last[:, None]
    if WINDOW > 0:
        is_seen = is_seen & (tokens[None, :] > last[:, None] - WINDOW)
    scores = tl.dot(queries, key, input_precision="ieee") * SCALE
    scores = tl.where(is_seen, scores, -float("inf"))
    risen = tl.maximum(peak, tl.max(scores, 1))
    zero = tl.where(risen == -float("inf"), 0.0, risen)  # a row that has seen nothing yet
    weights = tl.exp2(scores - zero[:, None])
    kept = tl.exp2(peak - zero)
    mass = mass * kept + tl.sum(weights, 1)
    sums = sums * kept[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
    return risen, mass, sums


@triton.jit
def rows_kernel(
    qkv,
    keys,
    values,
    rows,  # [n], which rows of the step
    positions,  # [rows of the step]
    starts,
    blocks,
    parts,  # [n, HEADS, MAX_SPLITS, DIM] fp32: weighted values of a split
    weights,  # [n, HEADS, MAX_SPLITS, 2] fp32: its maximum and its sum
    SCALE: tl.constexpr,
    WINDOW: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    SPLIT: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
    M: tl.constexpr,
):
    """A program a row, KV head and lane; lanes take turns at the row's splits. M is at least the queries a KV head."""
    index, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = tl.load(rows + index).to(tl.int64)
    position, table = tl.load(positions + row), blocks + tl.load(starts + row)
    GROUP: tl.constexpr = HEADS // KV_HEADS
    member, dim = tl.arange(0, M), tl.arange(0, DIM_PAD)
    is_member = (member < GROUP)[:, None] & (dim < DIM)[None, :]
    query_head = head * GROUP + member
    source = qkv + (row * (HEADS + 2 * KV_HEADS) + query_head[:, None]) * DIM + dim[None, :]
    queries = tl.load(source, mask=is_member, other=0.0)
    last = tl.zeros([M], tl.int32) + position
    first = 0
    if WINDOW > 0:
        first = tl.maximum(position + 1 - WINDOW, 0)
    for split in range(first // SPLIT + tl.program_id(2), position // SPLIT + 1, tl.num_programs(2)):
        peak, mass = tl.full([M], -float("inf"), tl.float32), tl.zeros([M], tl.float32)
        sums = tl.zeros([M, DIM_PAD], tl.float32)
        begin = tl.maximum(split * SPLIT, first // TILE * TILE)
        stop = tl.minimum((split + 1) * SPLIT, position + 1)
        for token in range(begin, stop, TILE):
            peak, mass, sums = take_tile(
                (peak, mass, sums), queries, keys, values, table, token, last, stop, head,
                SCALE, WINDOW, KV_HEADS, DIM, DIM_PAD, BLOCK, TILE,
            )  # fmt: skip
        part = (index * HEADS + query_head) * MAX_SPLITS + split
        tl.store(weights + part * 2, peak, mask=member < GROUP)
        tl.store(weights + part * 2 + 1, mass, mask=member < GROUP)
        tl.store(parts + part[:, None] * DIM + dim[None, :], sums, mask=is_member)


@triton.jit
def merge_kernel(
    parts,
    weights,
    rows,
    positions,
    output,  # [rows of the step, HEADS, DIM]
    WINDOW: tl.constexpr,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    SPLIT: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
):
    """A program a row and query head: the splits of rows_kernel, in order."""
    index, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = tl.load(rows + index).to(tl.int64)
    position = tl.load(positions + row)
    first = 0
    if WINDOW > 0:
        first = tl.maximum(position + 1 - WINDOW, 0)
    dim = tl.arange(0, DIM_PAD)
    part = (index * HEADS + head) * MAX_SPLITS + first // SPLIT
    peak, mass = tl.load(weights + part * 2), tl.load(weights + part * 2 + 1)
    sums = tl.load(parts + part * DIM + dim, mask=dim < DIM, other=0.0)
    for split in range(first // SPLIT + 1, position // SPLIT + 1):
        part = (index * HEADS + head) * MAX_SPLITS + split
        other = tl.load(weights + part * 2)
        risen = tl.maximum(peak, other)
        kept, added = tl.exp2(peak - risen), tl.exp2(other - risen)
        mass = mass * kept + tl.load(weights + part * 2 + 1) * added
        sums = sums * kept + tl.load(parts + part * DIM + dim, mask=dim < DIM, other=0.0) * added
        peak = risen
    target = output + (row * HEADS + head) * DIM + dim
    tl.store(target, (sums / mass).to(output.dtype.element_ty), mask=dim < DIM)


@triton.jit
def tiles_kernel(
    qkv,
    keys,
    values,
    tiles,  # [n, 2]: first row and the one after the last, of one sequence
    positions,
    starts,
    blocks,
    output,
    SCALE: tl.constexpr,
    WINDOW: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    M: tl.constexpr,
    GROUP_PAD: tl.constexpr,
):
    """A program a tile of M / GROUP_PAD rows and KV head."""
    tile, head = tl.program_id(0), tl.program_id(1)
    row0, row1 = tl.load(tiles + tile * 2), tl.load(tiles + tile * 2 + 1)
    GROUP: tl.constexpr = HEADS // KV_HEADS
    member, dim = tl.arange(0, M), tl.arange(0, DIM_PAD)
    row, of_group = (row0 + member // GROUP_PAD).to(tl.int64), member % GROUP_PAD
    is_member = (row < row1) & (of_group < GROUP)
    query_head = head * GROUP + of_group
    source = qkv + (row * (HEADS + 2 * KV_HEADS) + query_head)[:, None] * DIM + dim[None, :]
    queries = tl.load(source, mask=is_member[:, None] & (dim < DIM)[None, :], other=0.0)
    start, stop = tl.load(positions + row0), tl.load(positions + row1 - 1) + 1
    last = tl.load(positions + row, mask=is_member, other=0)
    last = tl.where(is_member, last, start)  # something to see, for nobody
    table = blocks + tl.load(starts + row0)
    begin = 0
    if WINDOW > 0:
        begin = tl.maximum(start + 1 - WINDOW, 0) // TILE * TILE
    peak, mass = tl.full([M], -float("inf"), tl.float32), tl.zeros([M], tl.float32)
    sums = tl.zeros([M, DIM_PAD], tl.float32)
    for token in range(begin, stop, TILE):
        peak, mass, sums = take_tile(
            (peak, mass, sums), queries, keys, values, table, token, last, stop, head,
            SCALE, WINDOW, KV_HEADS, DIM, DIM_PAD, BLOCK, TILE,
        )  # fmt: skip
    target = output + (row * HEADS + query_head)[:, None] * DIM + dim[None, :]
    tl.store(target, (sums / mass[:, None]).to(output.dtype.element_ty), mask=is_member[:, None] & (dim < DIM)[None, :])
