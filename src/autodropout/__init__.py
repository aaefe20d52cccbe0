"""AutoDropout: learned shapes of dropout, for any PyTorch model (after Pham and Le, AAAI 2021).

import autodropout as ad

on = ad.attach(model, ad.load("policy.json"), rate=0.3, example=x)   # regularize a model you already have
print(on)                                                            # its sites, patterns and rates
on.set_rate(0.2)
on.detach()

space = ad.space(model, x)                                           # what could be chosen for it
policy = space.sample(seed=0)

def child(policy, seed, report) -> float: ...                        # your training: a validation score
study = ad.search(space, child, trials=512, workers=8)               # learn one; the same call resumes
study.best.policy.save("mine.json")
"""

from autodropout.attach import Attachment, NoSites, RateSchedule, attach, attached, space
from autodropout.layers import BASELINES, DropLayer, baseline
from autodropout.spaces import (
    ConvPattern,
    ConvPolicy,
    ConvSpace,
    Policy,
    PolicyError,
    Provenance,
    SequencePattern,
    TransformerPolicy,
    TransformerSpace,
    load,
)
from autodropout.study import Study, search

__version__ = "0.1.0"

__all__ = [
    "BASELINES",
    "Attachment",
    "ConvPattern",
    "ConvPolicy",
    "ConvSpace",
    "DropLayer",
    "NoSites",
    "Policy",
    "PolicyError",
    "Provenance",
    "RateSchedule",
    "SequencePattern",
    "Study",
    "TransformerPolicy",
    "TransformerSpace",
    "attach",
    "attached",
    "baseline",
    "load",
    "search",
    "space",
]
