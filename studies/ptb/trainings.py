"""The trainings of the Penn Treebank study, and the classical methods as policies.

The classical baselines are policies here, so that they can be trained in the same crowd: a pattern of 70 words without
gaps covers a segment, hence it is Dropout, WordDropout where channels share a draw, and Variational Dropout where words
do. They differ from the usual ones in two things, as policies do: what is kept is rescaled by its realised share, not
by the expected one; and keys and values, which reach back into the memory, draw anew after 70 words where words share.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from autodropout.layers import baseline
from autodropout.recipes.language import ptb_small, ptb_small_search
from autodropout.spaces import TRANSFORMER_SITES, SequencePattern, TransformerPolicy, TransformerSpace
from autodropout.training.language import LanguageTraining

SPACE = TransformerSpace()

Tokens = tuple[int, ...]


def small(steps: int) -> LanguageTraining:
    """The recipe `ptb-small`."""
    return ptb_small(steps)


def tiny(steps: int) -> LanguageTraining:
    """Half as deep and as wide: cheaper, if it will do."""
    training = ptb_small(steps)
    return replace(training, size=replace(training.size, layers=2, width=128, heads=4, inner=512))


def narrow(steps: int) -> LanguageTraining:
    """As deep, and half as wide."""
    training = ptb_small(steps)
    return replace(training, size=replace(training.size, width=128, heads=4, inner=512))


def narrow_half(steps: int) -> LanguageTraining:
    """As deep, half as wide, with half of the text."""
    return replace(narrow(steps), training_words=464_000)


def tiny_half(steps: int) -> LanguageTraining:
    """Half of all: it overfits in half as many steps."""
    return replace(tiny(steps), training_words=464_000)


def tiny_quarter(steps: int) -> LanguageTraining:
    """As many parameters for each word of its text as the small one has, more or less."""
    return replace(tiny(steps), training_words=232_000)


def half(steps: int) -> LanguageTraining:
    """With half of the text: what a search of the recipe `ptb-small` trains."""
    return ptb_small_search(steps)


def quarter(steps: int) -> LanguageTraining:
    """With a quarter of the text: it overfits after as many words as the whole one does in four times more steps."""
    return replace(ptb_small(steps), training_words=232_000)


def wikitext2(steps: int) -> LanguageTraining:
    """The small one on half of another text, about as long as the whole of Penn Treebank's."""
    return replace(ptb_small(steps), corpus="wikitext-2", vocabulary=33_278, training_words=1_000_000)


TRAININGS: dict[str, Callable[[int], LanguageTraining]] = {
    "small": small,
    "tiny": tiny,
    "narrow": narrow,
    "tiny-half": tiny_half,
    "tiny-quarter": tiny_quarter,
    "narrow-half": narrow_half,
    "half": half,
    "quarter": quarter,
    "wikitext-2": wikitext2,
}

NONE: Tokens = (0,) * len(SPACE.tokens)
KINDS = {"dropout": {}, "variational_dropout": {"share_t": True}, "word_dropout": {"share_c": True}}


def classical(kind: str, sites: Sequence[str]) -> Tokens:
    """A classical method at these sites, as a policy."""
    pattern = {"size": 70, "stride": 0, "share_t": False, "share_c": False} | KINDS[kind]
    nothing = {"size": 0, "stride": 0, "share_t": False, "share_c": False}
    patterns = {
        site: SequencePattern.model_validate(pattern if site in sites else nothing) for site in TRANSFORMER_SITES
    }
    return SPACE.encode(TransformerPolicy(sites=patterns))


def families() -> dict[str, Tokens]:
    """The classical methods at the sites where they are usual, and at all."""
    found = {}
    for kind in KINDS:
        found[kind] = classical(kind, baseline(kind).transformer)
        found[f"{kind}, all sites"] = classical(kind, TRANSFORMER_SITES)
    return found
