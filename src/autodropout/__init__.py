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
ad.confirm(study, child, seeds=5)                                    # its best once more: one score is partly luck

ad.table("study.parquet").trials(steps=2_000)                        # the trials of a study that others ran
"""

import importlib
from typing import TYPE_CHECKING

from autodropout.lazy import lazy

if TYPE_CHECKING:
    from autodropout.attach import Attachment, NoSites, RateSchedule, attach, attached, space
    from autodropout.confirming import confirm
    from autodropout.layers import BASELINES, DropLayer, baseline
    from autodropout.recipes.confirmation import Confirmation
    from autodropout.search.errors import ChildError
    from autodropout.search.halving import Halving
    from autodropout.search.jobs import Stopped
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
    from autodropout.tables import Table, table
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "autodropout.attach": ["Attachment", "NoSites", "RateSchedule", "attach", "attached", "space"],
            "autodropout.confirming": ["confirm"],
            "autodropout.layers": ["BASELINES", "DropLayer", "baseline"],
            "autodropout.search.errors": ["ChildError"],
            "autodropout.search.halving": ["Halving"],
            "autodropout.search.jobs": ["Stopped"],
            "autodropout.spaces": [
                "ConvPattern",
                "ConvPolicy",
                "ConvSpace",
                "Policy",
                "PolicyError",
                "Provenance",
                "SequencePattern",
                "TransformerPolicy",
                "TransformerSpace",
                "load",
            ],
            "autodropout.recipes.confirmation": ["Confirmation"],
            "autodropout.study": ["Study", "search"],
            "autodropout.tables": ["Table", "table"],
        },
    )
    # Two functions have the name of a package. Python binds a package to its name when it is imported for the first
    # time: that happens here, before anybody asks for the functions, and never again.
    for _package in ("attach", "search"):
        importlib.import_module(f"{__name__}.{_package}")
        del globals()[_package]

__version__ = "0.1.0"

__all__ = [
    "BASELINES",
    "Attachment",
    "ChildError",
    "Confirmation",
    "ConvPattern",
    "ConvPolicy",
    "ConvSpace",
    "DropLayer",
    "Halving",
    "NoSites",
    "Policy",
    "PolicyError",
    "Provenance",
    "RateSchedule",
    "SequencePattern",
    "Stopped",
    "Study",
    "Table",
    "TransformerPolicy",
    "TransformerSpace",
    "attach",
    "attached",
    "baseline",
    "confirm",
    "load",
    "search",
    "space",
    "table",
]
