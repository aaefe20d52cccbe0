"""`put_by_head` in Triton: a packed mask that lies head by head, put on values that lie token by token.

A program has some tokens of one sample and some of their channels. As many neighbouring channels as share a byte of the
mask wherever they stand, 2 in heads of 38, are one access of a thread, which reads their byte once. A thread has the
same channels of several tokens: which head and which bit they are is found once, and the way from token to token is a
constant. In bfloat16 a value takes 13 instructions of compute capability 9.0 with heads of 38, 6 with heads of 32.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

TOKENS = 8  # of a program, and of each of its threads: of 70 or 140 none is far from a multiple
GROUPS = 64  # of neighbouring channels, that a program has at most: one a thread


def put_by_head(h: Tensor, bits: Tensor, scale: Tensor, heads: int) -> Tensor:
    """`by_head.put_by_head` on a GPU."""
    out = torch.empty(h.shape, dtype=h.dtype, device=h.device)
    if h.numel() == 0:
        return out
    *_, samples, length, channels = h.shape
    assert length * channels < 2**31, "a sample of more than 2 billion values"
    stacked = h.reshape(-1, samples, length, channels)
    if stacked.stride(-1) != 1:
        stacked = stacked.contiguous()
    of_child, of_sample, of_token, _ = stacked.stride()
    group = math.gcd(8, channels // heads, of_child, of_sample, of_token, stacked.data_ptr() // h.element_size())
    groups = channels // group
    # Of the widths whose memory traffic is good, the one that leaves the fewest threads idle behind the last channel.
    wide = min((GROUPS, GROUPS // 2), key=lambda width: triton.cdiv(groups, width) * width)
    tiles = triton.cdiv(length, TOKENS) * triton.cdiv(groups, wide)
    with torch.cuda.device_of(h):  # Triton launches on the current device
        _put_by_head[(tiles * samples, len(stacked))](
            stacked, bits.contiguous(), scale.contiguous(), out, of_child, of_sample,
            HEADS=heads, SIZE=channels // heads, LENGTH=length, OF_TOKEN=of_token, TOKENS=TOKENS, GROUP=group,
            WIDE=wide, num_warps=wide // 32,
        )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["of_child", "of_sample"])
def _put_by_head(
    h, bits, scale, out, of_child: tl.int64, of_sample: tl.int64,
    HEADS: tl.constexpr, SIZE: tl.constexpr, LENGTH: tl.constexpr, OF_TOKEN: tl.constexpr, TOKENS: tl.constexpr,
    GROUP: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """A tile is TOKENS by WIDE groups of GROUP channels. Strides `of_...` count values, and are multiples of GROUP."""
    channels: tl.constexpr = HEADS * SIZE
    blocks: tl.constexpr = (channels // GROUP + WIDE - 1) // WIDE
    tiles: tl.constexpr = (LENGTH + TOKENS - 1) // TOKENS
    row_bytes: tl.constexpr = (SIZE + 7) // 8
    block = tl.program_id(0) % blocks  # neighbours in memory are neighbours in time
    tile = tl.program_id(0) // blocks % tiles
    sample = tl.program_id(0) // (blocks * tiles)
    child = tl.program_id(1)
    number = child.to(tl.int64) * (tl.num_programs(0) // (blocks * tiles)) + sample  # of all children's samples
    factor = tl.load(scale + child)

    # Channels first: where all else is equal, Triton lays the threads of a warp along the first axis. What is constant
    # in a thread comes last in an address: the compiler finds that it need not be added.
    first = ((block * WIDE + tl.arange(0, WIDE)[:, None, None]) * GROUP).to(tl.uint32)
    ahead = tl.arange(0, TOKENS)[None, :, None]
    inside = tl.arange(0, GROUP)[None, None, :]
    head = first // SIZE
    place = first - head * SIZE  # of a group's first channel in its head
    here = (first < channels) & (ahead < LENGTH - tile * TOKENS)
    mask = bits + (number * (HEADS * LENGTH) + tile * TOKENS) * row_bytes
    packed = tl.load(mask + (head * (LENGTH * row_bytes) + (place >> 3)) + ahead * row_bytes, mask=here, other=0)
    start = child * of_child + sample * of_sample + tile.to(tl.int64) * (TOKENS * OF_TOKEN)
    value = tl.load(h + tl.multiple_of(start, GROUP) + (first + inside) + ahead * OF_TOKEN, mask=here, other=0)
    kept = (packed.to(tl.uint32) & (1 << ((place & 7) + inside))) == 0
    # Chosen before it is multiplied: afterwards the compiler would choose among halves of words, and put them together.
    masked = (tl.where(kept, value.to(tl.float32), 0.0) * factor).to(value.dtype)
    lines = out + (number * LENGTH + tile * TOKENS) * channels
    tl.store(lines + (first + inside) + ahead * channels, masked, mask=here)
