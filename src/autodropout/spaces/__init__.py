"""WHAT can be chosen: tokens, patterns, spaces, and the policy with its JSON file. Needs no torch.

- `records`: the strict, frozen base of every record
- `patterns`: the tokens, and the two patterns they make (the paper's appendix, both tables)
- `policy`: all patterns of a model, with their provenance, and how they are written
- `space`: tokens <-> policy, counting, uniform sampling
- `files`: reading policies, strictly
- `atomic`: writing a file whole or not at all
"""

from autodropout.spaces.files import PolicyError, load, parse
from autodropout.spaces.patterns import (
    CONV_TOKENS,
    SEQUENCE_TOKENS,
    TRANSFORMER_SITES,
    Cells,
    ConvPattern,
    SequencePattern,
    Token,
)
from autodropout.spaces.policy import (
    ConvGroup,
    ConvPolicy,
    Policy,
    Provenance,
    TransformerPolicy,
    software_versions,
)
from autodropout.spaces.space import ConvSpace, Space, TransformerSpace, canonical, effective, space_from_dict

__all__ = [
    "CONV_TOKENS",
    "SEQUENCE_TOKENS",
    "TRANSFORMER_SITES",
    "Cells",
    "ConvGroup",
    "ConvPattern",
    "ConvPolicy",
    "ConvSpace",
    "Policy",
    "PolicyError",
    "Provenance",
    "SequencePattern",
    "Space",
    "Token",
    "TransformerPolicy",
    "TransformerSpace",
    "canonical",
    "effective",
    "load",
    "parse",
    "software_versions",
    "space_from_dict",
]
