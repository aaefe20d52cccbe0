"""Language models (paper: section "Language Model and Machine Translation"; appendix, "Language Model").

    training = recipes.language.final_training()
    training.fit(policy, rate=0.2, seed=0, run=Run(folder=Path("ptb"), precision="bfloat16", compile=True, test=True))

A Transformer-XL learns to say the next word. In a step each of `batch` rows of the text reads its next segment, with
what it remembers of those before; then Adam, the gradient's norm clipped. The learning rate falls along a cosine for
four fifths of the training and is constant in the last, over which the weights are averaged. Every `evaluate_every`
steps the validation text is read, by the averaged weights once there are any; the best read the test text in the end.
The reward is 80 over the validation perplexity, as the paper's.

Beside the cross-entropy there are two penalties of AWD-LSTM (Merity, Keskar and Socher 2018) on the last layer's hidden
states h: on their values, `state_value * mean(m(h)^2)`, m being the softmax dropout, and on their differences from word
to word, `state_difference * mean((h_t+1 - h_t)^2)`.

Decided here, since the paper does not say it:
1. The average gives every step of the last fifth the same weight.
2. A text is judged in `evaluation_batch` rows side by side, each from an empty memory on; all its words count but for
   the very first.
3. Gradients are clipped, as in Transformer-XL's code. A step whose gradient is not finite is left out
   (`clipped_adam.py`); where most are, the training has diverged.

On a GPU nothing waits for the host between two evaluations.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from autodropout.attach import attach, space
from autodropout.data import Corpus, Reads, ptb, wikitext2
from autodropout.layers import Baseline
from autodropout.models.transformer_xl import TransformerXL, TransformerXLSize, initialize
from autodropout.spaces import Policy, Space, TransformerPolicy
from autodropout.training.clipped_adam import ClippedAdam
from autodropout.training.distributed import ranks, seed_rank, share, world
from autodropout.training.fusing import fuse_attention
from autodropout.training.language_loss import Objective, log_loss, perplexity
from autodropout.training.loop import Loop, Stateful
from autodropout.training.noise import Noise
from autodropout.training.run import Curve, Regularizer, Report, Run, Scores, identity
from autodropout.training.schedules import Schedule, cosine_then_constant, first_step_after
from autodropout.training.streams import Pages, Streams
from autodropout.training.weights import Average, Best, export

CORPORA: dict[str, Callable[..., Corpus]] = {ptb.NAME: ptb.load, wikitext2.NAME: wikitext2.load}
REWARD = 80.0  # over the perplexity
MOST_LEFT_OUT = 0.5  # of the steps between two evaluations, for want of a finite gradient
WEIGHTS = "model.safetensors"  # the best ones, in the run's folder


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageTraining:
    """One training of a language model, from its text to its reward."""

    corpus: str  # one of CORPORA
    vocabulary: int  # words that the text has
    size: TransformerXLSize
    segment: int  # words a row reads in a step
    batch: int  # rows
    steps: int
    lr: float  # at the first step
    lr_after_cosine: float  # where the cosine ends
    lr_constant: float  # after that
    cosine_share: float  # of the steps; over the others weights are averaged
    clip: float  # the greatest norm of a gradient
    state_value: float  # AWD-LSTM's alpha
    state_difference: float  # AWD-LSTM's beta
    evaluate_every: int  # steps
    evaluation_batch: int  # rows
    evaluation_memory: int  # words
    warmup: int = 0  # steps in which the learning rate rises; the paper has none
    evaluation_words: int | None = None  # of the validation and test texts only so many, from their beginning
    training_words: int | None = None  # of the training text, likewise
    data: Path | None = None  # the folder of datasets

    def __post_init__(self) -> None:
        if self.corpus not in CORPORA:
            raise ValueError(f"corpus must be one of {', '.join(CORPORA)}, got {self.corpus!r}")
        for name in ("vocabulary", "segment", "batch", "steps", "evaluate_every", "evaluation_batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("lr", "clip"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        for name in ("state_value", "state_difference", "evaluation_memory", "warmup"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        for name in ("evaluation_words", "training_words"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        self.schedule()  # says what is wrong with it

    @property
    def reads(self) -> Reads:
        return Reads(self.corpus, self.data)

    def build(self) -> TransformerXL:
        return TransformerXL(self.vocabulary, self.size)

    def space(self) -> Space:
        model = self.build()
        return space(model, example_for(model), kind="transformer")

    def smoke(self) -> Self:
        tiny = replace(self.size, layers=2, width=32, heads=2, head_size=16, inner=64, memory=16)
        return replace(
            self,
            size=tiny,
            segment=16,
            batch=8,
            steps=60,
            lr=10 * self.lr,
            lr_after_cosine=10 * self.lr_after_cosine,
            lr_constant=10 * self.lr_constant,
            evaluate_every=30,
            evaluation_memory=16,
            evaluation_words=4_000,
            warmup=min(self.warmup // 20, 20),
        )

    def fit(self, regularizer: Regularizer, rate: float, seed: int, run: Run = Run()) -> Scores:  # noqa: B008 (frozen)
        """Train one model under a policy or a baseline, and say how well it predicts.

        Raises:
            MissingData: the text is not there.
            ValueError: the text has another vocabulary, or is too short for so many rows and such segments.
            FloatingPointError: the loss is not finite, or most gradients are not.
        """
        with ranks(run.where):
            text = self.text()
            rows = share(self.batch)
            mine = slice(world().rank * rows, (world().rank + 1) * rows)
            streams = Streams(text.train.to(run.where), self.batch, self.segment, mine)
            validation = self.pages(text.validation, "the validation text").to(run.where)
            test = self.pages(text.test, "the test text").to(run.where) if run.test else None

            model = self.build().to(run.where)
            initialize(model.named_parameters(), torch.Generator(run.where).manual_seed(seed))
            on = None
            if regularizer is not None:
                live = run.compile and run.where.type == "cuda" and isinstance(regularizer, TransformerPolicy)
                on = attach(model, regularizer, rate=rate, example=example_for(model), live=live)
            fuse_attention(model, on)
            objective = Objective(model, self.state_value, self.state_difference)
            forward = run.wrap(objective, fixed_shapes=True)
            optimizer = ClippedAdam(model, self.lr, self.clip)
            schedule = LambdaLR(optimizer.adam, self.schedule())
            average = Average(model, self.averages_from)
            best = Best(model)
            carried = Carried(model.blank_memory(rows))
            noise = Noise(model, seed, run.where)
            seed_rank(seed)
            model.train()
            state: dict[str, Stateful] = {
                "model": model,
                "optimizer": optimizer.adam,
                "schedule": schedule,
                "average": average,
                "best": best,
            }
            config = identity(self, regularizer, rate, seed)
            with Loop(run, self.steps, state, config, per_rank={"memory": carried}) as loop:
                for step in loop:
                    noise.at(step)
                    with run.autocast():
                        loss, penalty, memory = forward(*streams(step), carried.memory)
                    carried.memory = memory.clone()  # where CUDA graphs run, the next step overwrites what this gave
                    skipped = optimizer.step(loss + penalty)
                    schedule.step()
                    average.update(step)
                    loop.add(train_loss=loss, penalty=penalty, skipped_steps=skipped)
                    if loop.due(self.evaluate_every):
                        with average.applied():
                            nats = self.judge(model, validation, run)
                            if loop.evaluated(REWARD * math.exp(-nats), validation_perplexity=perplexity(nats)):
                                best.keep()
                        _refuse_divergence(loop)
                assert loop.best is not None, "the last step is evaluated"
                assert loop.last is not None
                metrics = {
                    "validation_perplexity": loop.best.metrics["validation_perplexity"],
                    "train_loss": loop.last.metrics["train_loss"],
                    "steps_per_s": loop.steps_per_s,
                }
                with best.applied():
                    if test is not None:
                        metrics["test_perplexity"] = perplexity(self.judge(model, test, run))
                    if run.folder is not None and world().writes:
                        export(run.folder / WEIGHTS, model)
                return Scores(loop.best.reward, metrics)

    @property
    def crowds(self) -> bool:
        """Whether `fit_many` can do it."""
        return True

    def crowded(self, regularizer: Regularizer) -> bool:
        """Whether `fit_many` can train under it: policies are tokens, which children of one crowd may differ in."""
        return not isinstance(regularizer, Baseline)

    def result_step(self, curve: Curve) -> int:
        """Of which step the weights are the result, by (step, reward) pairs that were reported: the first best."""
        return max(curve, key=lambda reading: reading[1])[0]

    def metrics(self, part: str, reward: float) -> dict[str, float]:
        """What `fit` says of a reward, or of what would be one on the test part."""
        return {f"{part}_perplexity": REWARD / max(reward, REWARD / perplexity(math.inf))}

    def fit_many(
        self,
        policies: Sequence[Policy | None],
        rate: float | Sequence[float],
        seeds: Sequence[int],
        run: Run = Run(),  # noqa: B008 (frozen)
        reports: Sequence[Report] | None = None,
        test_reports: Sequence[Report] | None = None,
    ) -> list[float]:
        """Train several models at once on one device, each as `fit` would alone (`language_crowd.py`).

        Args:
            policies: one for each model.
            rate: at which all of them drop, or one for each.
            seeds: one for each model.
            run: where, and at which precision; nothing is written.
            reports: one for each model, called with its reward. What one raises ends its model alone; it is told unless
                it is `Ended` or FloatingPointError.
            test_reports: the same with the reward on the test text, for a final table; nothing is chosen by it here.

        Returns:
            The rewards; nan for a model that diverged or was ended by its report.
        """
        from autodropout.training.language_crowd import fit_many

        return fit_many(self, policies, rate, seeds, run, reports, test_reports)

    def prepare_many(self, children: int, run: Run = Run()) -> bool:  # noqa: B008 (frozen)
        """Compile and capture for crowds of up to so many now, so that `fit_many` does nothing but train.

        Returns:
            Whether there was anything to do: a crowd of this training, of any length, that has room is kept as it is.
        """
        from autodropout.training.language_crowd import prepare_many

        return prepare_many(self, children, run)

    def schedule(self) -> Schedule:
        """The learning rate over the steps, as a factor of `lr`."""
        return cosine_then_constant(
            self.steps,
            floor=self.lr_after_cosine / self.lr,
            constant=self.lr_constant / self.lr,
            share=self.cosine_share,
            warmup=self.warmup,
        )

    @property
    def averages_from(self) -> int:
        """The first step whose weights are averaged."""
        return first_step_after(self.cosine_share, self.steps)

    def text(self) -> Corpus:
        """The text, once it is known to have the words it should."""
        text = CORPORA[self.corpus](data=self.data)
        if len(text.vocabulary) != self.vocabulary:
            raise ValueError(
                f"{self.corpus} has {len(text.vocabulary):,} different words there, the model knows {self.vocabulary:,}"
            )
        return text if self.training_words is None else replace(text, train=text.train[: self.training_words])

    def pages(self, words: Tensor, name: str) -> Pages:
        """A text to be judged by, (T,)."""
        return Pages.of(words[: self.evaluation_words], self.evaluation_batch, self.segment, name)

    def judge(self, model: TransformerXL, pages: Pages, run: Run) -> float:
        """`log_loss` of the model, with the memory an evaluation has."""
        with run.autocast():
            return log_loss(model, pages, self.evaluation_memory)


@dataclass
class Carried:
    """The memory between two steps, as part of a checkpoint."""

    memory: Tensor  # (layers, N, M, C)

    def state_dict(self) -> dict[str, Any]:
        return {"memory": self.memory}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.memory = state["memory"].to(self.memory.device)


def _refuse_divergence(loop: Loop) -> None:
    """A training of which most steps are left out would go on for nothing."""
    assert loop.last is not None
    left_out = loop.last.metrics["skipped_steps"]
    if left_out > MOST_LEFT_OUT:
        raise FloatingPointError(f"the gradient was not finite in {left_out:.0%} of the steps before step {loop.step}")


def example_for(model: TransformerXL) -> tuple[Tensor, Tensor]:
    """Two words and a full memory, to trace the model by."""
    device = model.embedding.weight.device
    return torch.zeros((1, 2), dtype=torch.int64, device=device), model.blank_memory(1)
