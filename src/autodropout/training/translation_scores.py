"""How well a model translates: its loss on pairs, its translations, and their BLEU.

BLEU is sacreBLEU's with its defaults (Post 2018): on text put together again, cased, one reference. Scores computed on
lower-cased or tokenized text, as older papers have them, are other numbers; the signature says which one this is.

Under torchrun the ranks divide the batches among them, and each knows the result.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from autodropout.data.pairs import Pairs
from autodropout.data.subwords import BOS, EOS, PAD, UNK, Subwords
from autodropout.models.transformer import Transformer
from autodropout.training.decoding import Beam, beam_search
from autodropout.training.distributed import total, world
from autodropout.training.run import Run
from autodropout.training.token_batches import TokenBatches, begun, moved, rows

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU


def summed_loss(logits: Tensor, target: Tensor, smoothing: float = 0.0) -> Tensor:
    """Cross-entropy of (N, T, vocabulary) logits, in nats, summed over the tokens (N, T) that are no padding.

    With smoothing e and V tokens a target counts 1 - e + e / V and every other token e / V (Szegedy et al. 2016).
    """
    return F.cross_entropy(
        logits.float().flatten(0, 1), target.flatten(), ignore_index=PAD, reduction="sum", label_smoothing=smoothing
    )


@torch.no_grad()
def mean_loss(model: nn.Module, pairs: Pairs, tokens: int, run: Run) -> float:
    """Nats per target token, EOS among them, in eval mode, in which the model is left; `tokens` make a batch."""
    model.eval()
    loss = torch.zeros((), device=run.where)
    for chosen in TokenBatches(pairs, tokens).in_order()[world().rank :: world().size]:
        source, target = (moved(rows(side, chosen), run.where) for side in (pairs.source, pairs.target))
        with run.autocast():
            loss += summed_loss(model(source, begun(target)), target)
    return total(loss).item() / len(pairs.target.tokens)


def translate(model: Transformer, pairs: Pairs, vocabulary: Subwords, beam: Beam, tokens: int, run: Run) -> list[str]:
    """The sources' translations, in their order; `tokens` of all hypotheses together make a batch."""
    model.eval()
    mine: list[tuple[int, str]] = []
    batches = TokenBatches(pairs, max(1, tokens // beam.size)).in_order()[world().rank :: world().size]
    for chosen in batches:
        source = moved(rows(pairs.source, chosen), run.where)
        limits = (source != PAD).sum(1) + beam.extra
        with run.autocast():
            found, _ = beam_search(model, source, limits, start=BOS, end=EOS, never=(PAD, UNK, BOS), beam=beam)
        mine += zip(chosen.tolist(), map(vocabulary.decode, found), strict=True)
    texts = dict(mine)
    if world().size > 1:
        everyone: list[dict[int, str]] = [{} for _ in range(world().size)]
        dist.all_gather_object(everyone, texts)
        texts = {number: text for part in everyone for number, text in part.items()}
    return [texts[number] for number in range(len(pairs))]


def bleu(translations: Sequence[str], references: Sequence[str]) -> tuple[float, str]:
    """BLEU, from 0 to 100, and the signature that says how it was computed."""
    if len(translations) != len(references) or not references:
        raise ValueError(f"BLEU needs as many references as translations, got {len(references)}, {len(translations)}")
    metric = bleu_metric()
    return metric.corpus_score(translations, [references]).score, str(metric.get_signature())


def bleu_metric() -> "BLEU":
    """sacreBLEU's, with its defaults."""
    try:
        from sacrebleu.metrics.bleu import BLEU
    except ModuleNotFoundError:
        raise ModuleNotFoundError("BLEU is sacreBLEU's: pip install 'autodropout[translation]'") from None
    return BLEU()
