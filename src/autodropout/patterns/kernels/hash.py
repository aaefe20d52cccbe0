"""SplitMix64 and what is made of its bits, as `patterns/draws.py` has it, in Triton; and how bits are counted."""

import triton
import triton.language as tl

GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
_FIRST = tl.constexpr(0xBF58476D1CE4E5B9)
_SECOND = tl.constexpr(0x94D049BB133111EB)


@triton.jit
def mix(x):
    """SplitMix64's finalizer on uint64."""
    x = (x ^ (x >> 30)) * _FIRST
    x = (x ^ (x >> 27)) * _SECOND
    return x ^ (x >> 31)


@triton.jit
def threshold(rate):
    """The uint64 below which a 32-bit draw falls with probability `rate`: 2**32 of it, rounded half to even."""
    scaled = rate.to(tl.float64) * 4294967296.0
    whole = scaled.to(tl.int64)
    rest = scaled - whole.to(tl.float64)
    up = (rest > 0.5) | ((rest == 0.5) & (whole % 2 == 1))
    return (whole + up.to(tl.int64)).to(tl.uint64)


@triton.jit
def ones(word):
    """How many bits of a uint32 are set; the compiler knows this form, and makes one instruction of it."""
    word -= (word >> 1) & 0x55555555
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    return (((word + (word >> 4)) & 0x0F0F0F0F) * 0x01010101) >> 24
