"""Random numbers that are a pure function of one seed: the same on every device, under `torch.compile` and in a
recomputation.

A layer takes one int64 seed from the device's default generator, exactly as `nn.Dropout` takes its noise there. So
`torch.manual_seed`, activation checkpointing and CUDA graphs behave as users know. Site and rank are mixed in, so
that no two sites of a model and no two ranks of a job share a mask. Everything after that is SplitMix64 (Steele, Lea
and Flood 2014) on counters: integer arithmetic, hence identical to the bit wherever it runs.
"""

import torch
import torch.distributed as dist
from torch import Tensor

GOLDEN = 0x9E3779B97F4A7C15 - 2**64  # SplitMix64's odd increment, as a signed 64-bit integer
_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_SECOND = 0x94D049BB133111EB - 2**64


def mix(x: Tensor) -> Tensor:
    """SplitMix64's finalizer: int64 in, 64 well-mixed bits out, as int64. The masks make the shifts logical."""
    x = (x ^ ((x >> 30) & (2**34 - 1))) * _FIRST
    x = (x ^ ((x >> 27) & (2**37 - 1))) * _SECOND
    return x ^ ((x >> 31) & (2**33 - 1))


def _mix_int(x: int) -> int:
    """`mix` for one Python integer, returned signed."""
    x &= 2**64 - 1
    x = (x ^ (x >> 30)) * (_FIRST + 2**64) & (2**64 - 1)
    x = (x ^ (x >> 27)) * (_SECOND + 2**64) & (2**64 - 1)
    x ^= x >> 31
    return x - 2**64 if x >= 2**63 else x


def stream(site: int) -> int:
    """A constant for this site on this rank of a distributed job."""
    rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
    return _mix_int(_mix_int(site + 1) + rank)


def fresh(device: torch.device) -> Tensor:
    """One draw from the device's default generator, a 0-d int64 tensor; `^ stream(site)` makes it a site's seed."""
    return torch.randint(0, 2**62, (), dtype=torch.int64, device=device)


def words(seed: Tensor, units: Tensor, count: int) -> Tensor:
    """`count` draws of 32 bits for each unit, as int64 in [0, 2**32): (units,) -> (units, count)."""
    pairs = torch.arange((count + 1) // 2, device=units.device)
    counters = units[:, None] * len(pairs) + pairs
    bits = mix(mix(seed) + counters * GOLDEN)  # (units, pairs)
    return torch.stack((bits & 0xFFFFFFFF, (bits >> 32) & 0xFFFFFFFF), -1).flatten(1)[:, :count]


def threshold(rate: Tensor) -> Tensor:
    """The int64 `t` such that a 32-bit draw is below `t` with probability `rate`, to within 2**-33."""
    return (rate.double() * 2**32).round().long()


def below(draws: Tensor, limit: int) -> Tensor:
    """Uniform integers in [0, limit) from 32-bit draws."""
    return (draws * limit) >> 32
