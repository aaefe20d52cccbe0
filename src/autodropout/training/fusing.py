"""Attention of a Transformer-XL in one kernel, with what a policy says of its probabilities."""

from autodropout.attach import Attachment
from autodropout.attach.transformer.attention import PROBABILITIES
from autodropout.models.transformer_xl import TransformerXL, fuse


def fuse_attention(model: TransformerXL, on: Attachment | None) -> None:
    """Let code compiled for a GPU have no probabilities in memory, unless something acts on them that is not live."""
    bound = on.sites if on is not None else ()
    drops = [site.drop for site in bound if site.role == PROBABILITIES] or [None] * len(model.layers)
    if all(drop is None or drop.live for drop in drops):
        fuse(model, drops)
