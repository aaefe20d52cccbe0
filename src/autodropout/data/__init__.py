"""Datasets: each a module with `load`, and the records they share. `docs/data.md` says where each comes from.

- images in memory: `digits`, `cifar10`; in files, decoded once: `imagenet`, `imagenette`
- text to model: `ptb`, `wikitext2`
- text to translate: `iwslt14`, `wmt14`, `multi30k`, `tatoeba`
"""

from autodropout.data.corpora import Corpus
from autodropout.data.folders import MissingData, Reads
from autodropout.data.pairs import Pairs, Sentences, Translation
from autodropout.data.splits import Labelled, SemiSplits, Splits

__all__ = ["Corpus", "Labelled", "MissingData", "Pairs", "Reads", "SemiSplits", "Sentences", "Splits", "Translation"]
