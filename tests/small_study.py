"""A small real study, for the tests of what reads studies."""

import autodropout as ad
from autodropout.spaces import ConvPolicy, Policy

SPACE = ad.ConvSpace(groups=((16, 16), (8, 8)), resolution=(16, 16))
ATTRIBUTES = {"who": "a test"}


def score(policy: Policy) -> float:
    """Large rectangles are good, rotation is bad."""
    assert isinstance(policy, ConvPolicy)
    patterns = [group.pattern for group in policy.groups]
    return sum(pattern.size for pattern in patterns) / 8 - sum(pattern.rotate for pattern in patterns) / 1000


def child(policy: Policy, seed: int, report: object) -> float:
    return score(policy)


def search(storage: str) -> None:
    ad.search(SPACE, child, 32, workers=2, storage=storage, name="small", attributes=ATTRIBUTES)
