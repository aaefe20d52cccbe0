"""Translation with a Transformer (paper: "Language Model and Machine Translation"; appendix, "Machine Translation").

    scores = recipe.fit(policy, rate=0.1, seed=0, run=Run(folder=Path("iwslt14"), precision="bfloat16", test=True))

One step: a batch of pairs of like length; cross-entropy with smoothed labels, per token; Adam, its learning rate up in
a line, then along a cosine to 0. The weights of the last step are judged: nothing is averaged, as in the paper.

Decided here, since the paper does not say it:
1. Batches of 25,000 tokens a side, Adam's betas of 0.9 and 0.98, its epsilon, and labels smoothed by 0.1 are Vaswani et
   al.'s; so is the beam (`decoding.py`).
2. The paper searches on Penn Treebank alone and transfers what it finds. Where a translation is a search's child, its
   reward is BLEU / 100 on the validation pairs. Until the last step, which alone is worth decoding, it reports
   exp(-validation loss): the mean probability of a right token.
3. BLEU is sacreBLEU's (`translation_scores.py`); translations and signature are written to the run's folder.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Adam
from torch.optim.lr_scheduler import LambdaLR

from autodropout.attach import attach, space
from autodropout.data import Pairs, Reads, Translation, iwslt14, multi30k, tatoeba, wmt14
from autodropout.data.subwords import EOS, PAD
from autodropout.models.transformer import Transformer, TransformerSize
from autodropout.spaces import Space
from autodropout.spaces.atomic import write_atomically
from autodropout.training.decoding import Beam
from autodropout.training.distributed import ranks, seed_rank, world
from autodropout.training.loop import Loop
from autodropout.training.run import Regularizer, Run, Scores, identity
from autodropout.training.schedules import warmup_cosine
from autodropout.training.token_batches import TokenBatches, announce_shapes, begun, moved, padded, rows
from autodropout.training.translation_scores import bleu, bleu_metric, mean_loss, summed_loss, translate

DATASETS: dict[str, Callable[..., Translation]] = {
    "iwslt14": iwslt14.load,
    "multi30k": multi30k.load,
    "tatoeba": tatoeba.load,
    "wmt14": wmt14.load,
}
LOWERCASED = ("iwslt14",)
POSITIONS = 1024  # of validation and test sentences, which are not filtered


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslationTraining:
    """One training of a translator, from its text to its reward."""

    dataset: str  # one of DATASETS
    source: str  # language
    target: str  # language
    pieces: int  # of the vocabulary
    longest: int  # tokens of a training sentence
    steps: int
    warmup: int  # steps
    lr: float  # after the warm-up
    tokens: int  # of a batch, on each side, padding counted; of all ranks together
    label_smoothing: float
    betas: tuple[float, float]  # Adam's
    epsilon: float  # Adam's
    size: TransformerSize
    beam: Beam
    evaluate_every: int  # steps
    lowercase: bool = False  # all text
    train: int | None = None  # the first so many pairs
    judged: int | None = None  # so many validation and test pairs
    data: Path | None = None  # the folder of datasets

    def __post_init__(self) -> None:
        if self.dataset not in DATASETS:
            raise ValueError(f"dataset must be one of {', '.join(DATASETS)}, got {self.dataset!r}")
        if self.lowercase and self.dataset not in LOWERCASED:
            raise ValueError(f"{self.dataset} is read as it is written: lowercase must be False")
        for name in ("pieces", "longest", "steps", "evaluate_every", "train", "judged"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.warmup < self.steps:
            raise ValueError(f"warmup must lie in [0, {self.steps}), the number of steps, got {self.warmup}")
        if not self.lr > 0:
            raise ValueError(f"lr must be positive, got {self.lr}")
        if not 0.0 <= self.label_smoothing < 1.0:
            raise ValueError(f"label_smoothing must lie in [0, 1), got {self.label_smoothing}")
        if self.tokens < self.longest + 1:
            raise ValueError(
                f"a batch of {self.tokens} tokens has no room for a sentence of {self.longest} and its end"
            )

    @property
    def reads(self) -> Reads:
        if self.dataset == "tatoeba":  # a dataset for each language
            return Reads(tatoeba.name(tatoeba.other_than_english(self.source, self.target)), self.data)
        return Reads(self.dataset, self.data)

    def build(self) -> Transformer:
        longest = padded(max(POSITIONS, self.longest + 1)) + self.beam.extra
        return Transformer(self.pieces, self.size, padding=PAD, longest=longest)

    def space(self) -> Space:
        model = self.build()
        return space(model, _example(model), kind="transformer")

    def smoke(self) -> Self:
        """A small model on the first 200 pairs; of Multi30k where the corpus itself is large or hard to come by."""
        stand_in: dict[str, Any] = {"dataset": "multi30k", "lowercase": False, "pieces": 10_000}
        return replace(
            self,
            **(stand_in if self.dataset in ("iwslt14", "wmt14") else {}),
            train=200,
            judged=20,
            size=replace(self.size, layers=2, width=32, heads=2, inner=64),
            steps=40,
            warmup=10,
            lr=5e-3,
            tokens=max(400, self.longest + 1),
            evaluate_every=20,
            beam=Beam(size=2, extra=5),
        )

    def load(self) -> Translation:
        """The pairs, as subwords.

        Raises:
            MissingData: they are not there.
            ValueError: a file is wrong.
        """
        options: dict[str, Any] = {"lowercase": True} if self.lowercase else {}
        options |= {"train": self.train, "pieces": self.pieces, "longest": self.longest, "data": self.data}
        return DATASETS[self.dataset](self.source, self.target, **options)

    def fit(self, regularizer: Regularizer, rate: float, seed: int, run: Run = Run()) -> Scores:  # noqa: B008 (frozen)
        """Train one model under a policy or a baseline, and say how well it translates.

        Raises:
            MissingData: the text is not there.
            ValueError: the text is not what the model can take.
            FloatingPointError: the loss is not finite.
        """
        return self.fit_on(self.load(), regularizer, rate, seed, run)

    def fit_on(
        self,
        data: Translation,
        regularizer: Regularizer,
        rate: float,
        seed: int,
        run: Run = Run(),  # noqa: B008 (frozen)
    ) -> Scores:
        """`fit`, on other pairs than the dataset's."""
        self.check(data)
        bleu_metric()  # that it is missing is better said now than after the last step
        validation, test = (_head(part, self.judged) for part in (data.validation, data.test))
        with ranks(run.where):
            torch.manual_seed(seed)
            model = self.build().to(run.where)
            if regularizer is not None:
                attach(model, regularizer, rate=rate, example=_example(model))
            objective = Objective(model, self.label_smoothing)
            forward = run.wrap(objective)
            fused = run.where.type == "cuda"
            optimizer = Adam(model.parameters(), self.lr, betas=self.betas, eps=self.epsilon, fused=fused)
            schedule = LambdaLR(optimizer, warmup_cosine(self.warmup, self.steps))
            batches = TokenBatches(data.train, self.tokens, seed)
            config = identity(self, regularizer, rate, seed) | {"pairs": len(data.train), "tokens": _tokens(data.train)}
            seed_rank(seed)
            objective.train()
            with Loop(run, self.steps, {"model": model, "optimizer": optimizer, "schedule": schedule}, config) as loop:
                for step in loop:
                    source, target, counted = batch(data.train, batches(step), run.where)
                    if run.compile:
                        announce_shapes(source, target)
                    with run.autocast():
                        loss = forward(source, target) * (world().size / counted)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    schedule.step()
                    loop.add(train_loss=loss.detach())
                    if loop.due(self.evaluate_every):
                        metrics = self.losses(model, validation, "validation", run)
                        reward = math.exp(-metrics["validation_loss"])
                        if loop.step == self.steps:
                            metrics |= self.bleu(model, validation, data, "validation", run)
                            reward = metrics["validation_bleu"] / 100
                        loop.evaluated(reward, **metrics)
                        objective.train()
                assert loop.last is not None, "the last step is evaluated"
                metrics = {**loop.last.metrics, "steps_per_s": loop.steps_per_s}
                if run.test:
                    metrics |= self.losses(model, test, "test", run) | self.bleu(model, test, data, "test", run)
                return Scores(loop.last.reward, metrics)

    def losses(self, model: Transformer, pairs: Pairs, part: str, run: Run) -> dict[str, float]:
        """Nats a token, and the perplexity, which is kept finite."""
        nats = mean_loss(model, pairs, self.tokens, run)
        return {f"{part}_loss": nats, f"{part}_perplexity": math.exp(min(nats, 700.0))}

    def bleu(self, model: Transformer, pairs: Pairs, data: Translation, part: str, run: Run) -> dict[str, float]:
        """BLEU, from 0 to 100; translations, score and signature are written down where there is a folder."""
        translations = translate(model, pairs, data.vocabulary, self.beam, self.tokens, run)
        score, signature = bleu(translations, pairs.references)
        if run.folder is not None and world().writes:
            written = "".join(f"{line}\n" for line in translations)
            write_atomically(run.folder / f"{part}.{self.target}", written.encode())
            about = json.dumps({"bleu": score, "signature": signature, "pairs": len(pairs)}, indent=2) + "\n"
            write_atomically(run.folder / f"{part}.bleu.json", about.encode())
        return {f"{part}_bleu": score}

    def check(self, data: Translation) -> None:
        """Before anything is trained: that the model can take all pairs.

        Raises:
            ValueError: it cannot.
        """
        if len(data.vocabulary) != self.pieces:
            raise ValueError(f"the vocabulary has {len(data.vocabulary):,} subwords, the model {self.pieces:,}")
        parts = {"training": data.train, "validation": data.validation, "test": data.test}
        for part, pairs in parts.items():
            most = self.longest + 1 if part == "training" else POSITIONS  # tokens, the end among them
            for side, sentences in (("source", pairs.source), ("target", pairs.target)):
                if not len(sentences):
                    raise ValueError(f"there are no {part} pairs")
                if int(sentences.lengths.min()) < 1:
                    raise ValueError(f"{part} pair {int(sentences.lengths.argmin())}: the {side} lacks its end")
                if int(sentences.lengths.max()) > most:
                    number = int(sentences.lengths.argmax())
                    long = f"{int(sentences.lengths[number])} tokens, the limit is {most}"
                    raise ValueError(f"{part} pair {number}: the {side} has {long}")
                least, greatest = sentences.tokens.aminmax()
                if int(least) <= PAD or int(greatest) >= self.pieces:
                    wrong = int(least) if int(least) <= PAD else int(greatest)
                    raise ValueError(f"a {part} {side} holds the token {wrong}: not in 1 to {self.pieces - 1}")
                if not bool((sentences.tokens[sentences.offsets[1:] - 1] == EOS).all()):
                    raise ValueError(f"a {part} {side} does not end with its end token, {EOS}")
            if part != "training" and len(pairs.references) != len(pairs):
                raise ValueError(f"{len(pairs)} {part} pairs have {len(pairs.references)} references")


class Objective(nn.Module):
    """What a step minimizes: cross-entropy in nats, with smoothed labels, summed over tokens."""

    def __init__(self, model: Transformer, smoothing: float) -> None:
        super().__init__()
        self.model = model
        self.smoothing = smoothing

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        return summed_loss(self.model(source, begun(target)), target, self.smoothing)


def batch(pairs: Pairs, chosen: Tensor, device: torch.device) -> tuple[Tensor, Tensor, int]:
    """This rank's share of the chosen pairs, as rows on the device, and the target tokens of all ranks together.

    A rank for which there is no pair left gets one that does not count.
    """
    rank, size = world().rank, world().size
    mine = chosen[rank::size]
    source, target = (rows(side, mine if len(mine) else chosen[:1]) for side in (pairs.source, pairs.target))
    if not len(mine):
        target = torch.full_like(target, PAD)
    counted = pairs.target.offsets[chosen + 1] - pairs.target.offsets[chosen]
    return moved(source, device), moved(target, device), int(counted.sum())


def _head(pairs: Pairs, count: int | None) -> Pairs:
    count = min(count or len(pairs), len(pairs))
    return Pairs(pairs.source.head(count), pairs.target.head(count), pairs.references[:count])


def _tokens(pairs: Pairs) -> int:
    return len(pairs.source.tokens) + len(pairs.target.tokens)


def _example(model: Transformer) -> tuple[Tensor, Tensor]:
    """Two short rows, to trace the model by."""
    device = model.embedding.weight.device
    return torch.full((2, 5), EOS, device=device), torch.full((2, 3), EOS, device=device)
