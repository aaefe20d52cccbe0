"""Random numbers that are a function of their name: a hash of purpose, seed and trial number, no generator.

So a proposal depends on nothing that happened before it but the state of its proposer: not on which trials were asked
for together, nor on how many were asked for since the study was resumed.
"""

import hashlib
import struct


def words(purpose: str, seed: int, number: int, count: int) -> tuple[int, ...]:
    """`count` uniform 64-bit integers: SHAKE-256 of the ASCII text "autodropout {purpose} 1, seed .., number ..",
    cut into big-endian words."""
    text = f"autodropout {purpose} 1, seed {seed}, number {number}"
    return struct.unpack(f">{count}Q", hashlib.shake_256(text.encode("ascii")).digest(8 * count))


def uniforms(purpose: str, seed: int, number: int, count: int) -> list[float]:
    """`count` numbers in [0, 1), multiples of 2^-53."""
    return [(word >> 11) * 2.0**-53 for word in words(purpose, seed, number, count)]


def indices(draws: list[float], choices: list[int]) -> tuple[int, ...]:
    """One index below each number of choices, uniform where the draws are."""
    return tuple(int(draw * count) for draw, count in zip(draws, choices, strict=True))
