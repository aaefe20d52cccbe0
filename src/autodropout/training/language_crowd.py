"""Many language models on one GPU: their parameters stacked, and a whole step of all of them one CUDA graph.

    training.fit_many(policies, rate, seeds, run, reports)          # the same call again is warm: see 4

    step number, on the device
      |-> the segment that every child reads           (N, T)      words are shared
      |-> the seed of each child's masks               (K,)        from its own seed and the step
      |-> each child's learning rate                   (K,)        from a table
    vmap(Objective) over weights, memory, tokens of policies, rates, seeds  ->  loss (K,), memory (K, layers, N, M, C)
    gradients -> StackedAdam -> averages, in the last fifth -> sums of losses, read by the host at an evaluation

1. A child in a crowd is the child that `fit` trains alone: weights, masks and schedule follow from its seed in the same
   way. The numbers differ by rounding only.
2. A policy is read from tensors where its masks are made, so that one compiled graph serves all policies.
3. A child that diverges, or whose report ends it, is computed on in its slot, and ignored: no value passes from one
   child to another, not even one that is not finite. When all have ended the training ends.
4. The crowd stays in the process for the next job of the same training: policies, seeds and weights are written into
   its tensors, nothing is compiled or captured again. With fewer children than slots the last slots idle along. Only
   the last crowd is kept.
5. Only scores come back: `fit` is for a model to keep.

What bounds a step, of each child. Counted: operations of the matrix products, bytes of Adam (`stacked.py`) and of the
logits, over which or over whose gradient there are six passes in 2 bytes. Estimated: all other bytes, of activations
and probabilities in 2 or 4 bytes and of masks in an eighth.

                                            GFLOP      Adam    logits    the rest
    paper's size (16 x 380, memory 70)        210    0.8 GB   0.13 GB        2 GB
    4 x 256, inner 1024, no memory             37    0.2 GB   0.13 GB      0.4 GB
"""

import gc
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from autodropout.attach import attach
from autodropout.layers import Drop
from autodropout.models.transformer_xl import initialize
from autodropout.patterns.bits import sequence_tokens
from autodropout.patterns.read_back import mend_compiler
from autodropout.spaces import Policy, SequencePattern, TransformerPolicy
from autodropout.training.children import check_crowd, goes_on, rates_of
from autodropout.training.fusing import fuse_attention
from autodropout.training.graphed import Lane, at
from autodropout.training.language import MOST_LEFT_OUT, REWARD, LanguageTraining, example_for
from autodropout.training.language_loss import Objective
from autodropout.training.language_reading import Reading
from autodropout.training.noise import noise_at
from autodropout.training.run import Report, Run
from autodropout.training.stacked import Stack, StackedAdam
from autodropout.training.stacked_language import EMBEDDING, StackedLanguage, cross_entropy
from autodropout.training.streams import Streams
from autodropout.training.word_rows import add_rows, rows_of

LONGEST = 2**15
"""Steps that a crowd has room for, even where its first training is shorter."""


def fit_many(
    training: LanguageTraining,
    policies: Sequence[Policy | None],
    rate: float | Sequence[float],
    seeds: Sequence[int],
    run: Run,
    reports: Sequence[Report] | None,
    test_reports: Sequence[Report] | None,
) -> list[float]:
    """See `LanguageTraining.fit_many`."""
    check_crowd(policies, seeds, run, reports, test_reports)
    rates = rates_of(rate, len(policies))
    for policy in policies:
        if policy is not None and not isinstance(policy, TransformerPolicy):
            raise ValueError(f"a language model is trained under policies for Transformers, got {policy!r:.80}")
    if not policies:
        return []
    dropping = any(policy is not None for policy in policies)
    try:
        with run.settings():
            crowd = warm_crowd(training, run, len(policies), dropping=dropping)
            with crowd.lane.active():
                return crowd.fit(policies, rates, seeds, reports, test_reports)
    except BaseException:
        _warm.clear()  # whatever went wrong, it may have left the crowd half made
        raise


def prepare_many(training: LanguageTraining, children: int, run: Run) -> bool:
    """See `LanguageTraining.prepare_many`."""
    try:
        with run.settings():
            crowd = warm_crowd(training, run, children, dropping=True)
            with crowd.lane.active():
                return crowd.reading.prepare()
    except BaseException:
        _warm.clear()
        raise


class Crowd:
    """Slots for children of one training, on one device.

    Its methods are called inside of `lane.active()`.

    Args:
        training: what they train.
        run: where and how; of it the device, precision, compile and deterministic. On a GPU it is compiled anyway.
        children: how many slots.
        dropping: whether they have policies. Without, models are bare, for a comparison.
    """

    def __init__(self, training: LanguageTraining, run: Run, children: int, *, dropping: bool = True) -> None:
        where, text = run.where, training.text()
        self.training, self.run, self.children = training, run, children
        self.lane = Lane(where)
        with self.lane.active():
            self._streams = Streams(text.train.to(where), training.batch, training.segment)
            model = training.build().to(where)
            sites: list[Drop] = []
            self._roles: list[str] = []
            on = None
            if dropping:
                space = training.space()
                nothing = space.decode((0,) * len(space.tokens))
                on = attach(model, nothing, rate=0.0, example=example_for(model), live=True)
                sites = [bound.drop for bound in on.sites if bound.drop is not None]
                self._roles = [bound.role for bound in on.sites]
                assert len(sites) == len(self._roles), "a live attachment has a drop at every site"
            fuse_attention(model, on)
            objective = Objective(model, training.state_value, training.state_difference, cross_entropy)
            half = run.precision == "bfloat16"
            self.stack = Stack(objective, children, where, half=half)
            self._model = StackedLanguage(objective, sites, training.evaluation_memory)
            self._losses: Callable[..., tuple[Tensor, Tensor, Tensor]] = self._model.losses
            self._noise: Callable[[Tensor, Tensor], Tensor] = noise_at
            if run.compile or where.type == "cuda":
                mend_compiler()
                self._losses = torch.compile(self._losses, fullgraph=True, dynamic=False)
                self._noise = torch.compile(self._noise, dynamic=False)
            self._adam = StackedAdam(self.stack, training.clip)

            # What length and schedule change lies in these two, so that one crowd serves trainings with any of them.
            self.longest = max(training.steps, LONGEST)
            self._lr = torch.zeros(self.longest, dtype=torch.float64, device=where)
            self._averages_from = torch.zeros((), dtype=torch.int64, device=where)
            self._step = torch.zeros(1, dtype=torch.int64, device=where)  # how many are done
            self._seeds = torch.zeros(children, dtype=torch.int64, device=where)
            shape = (len(sites), children, len(SequencePattern.tokens))
            self._tokens = torch.zeros(shape, dtype=torch.int32, device=where)
            self._rates = torch.zeros(len(sites), children, device=where)
            blank = model.blank_memory(training.batch)
            # In bfloat16 what is remembered is only ever read as such.
            self._memory = blank.new_zeros(children, *blank.shape, dtype=torch.bfloat16 if half else None)
            self._sums = torch.zeros(3, children, dtype=torch.float64, device=where)  # loss, penalty, steps left out
            self.reading = Reading(training, text, run, self.lane, self.stack, self._model)
            self.train_step = self.lane.capture(self._train)
            self.average = self.lane.capture(self._average)

    def begin(self, policies: Sequence[Policy | None], rate: float | Sequence[float], seeds: Sequence[int]) -> None:
        """Put new children into the first slots, before their first step; what was there is gone."""
        training, factors = self.training, self.training.schedule()
        schedule = [training.lr * factors(step) for step in range(training.steps)]
        self._lr[: training.steps].copy_(torch.tensor(schedule, dtype=torch.float64))
        self._averages_from.fill_(training.averages_from)
        idle = self.children - len(policies)
        if self._roles:
            nothing = SequencePattern.none()
            chosen = [policy.sites if isinstance(policy, TransformerPolicy) else {} for policy in policies]
            chosen += [{}] * idle
            tokens = [[sequence_tokens(sites.get(role, nothing)) for sites in chosen] for role in self._roles]
            self._tokens.copy_(torch.tensor(tokens))
        self._rates[:, : len(policies)] = torch.tensor(rates_of(rate, len(policies)))
        seeds = [*seeds, *range(idle)]
        self._seeds.copy_(torch.tensor(seeds))
        generator, template = torch.Generator(self.run.where), dict(self._model.objective.named_parameters())
        for number, seed in enumerate(seeds):
            initialize(template.items(), generator.manual_seed(seed))  # as `fit` does it, to the bit
            self.stack.put(number, template.items())
        self._adam.reset()
        for state in (*self.stack.averages.values(), self._step, self._memory, self._sums):
            state.zero_()  # the averages too: what was there may not be finite, and would never go away

    def fit(
        self,
        policies: Sequence[Policy | None],
        rate: float | Sequence[float],
        seeds: Sequence[int],
        reports: Sequence[Report] | None,
        test_reports: Sequence[Report] | None = None,
    ) -> list[float]:
        """Train them to the end, or until all have ended: their rewards, nan for those that have."""
        training = self.training
        self.begin(policies, rate, seeds)
        best = [-math.inf] * len(policies)
        running = set(range(len(policies)))
        judged = 0  # the step of the last evaluation
        for step in range(1, training.steps + 1):
            self.train_step()
            averaged = step > training.averages_from
            if averaged:
                self.average()
            if step % training.evaluate_every and step != training.steps:
                continue
            rewards, means = self.rewards(averaged=averaged), self._means(step - judged)
            judged = step
            if test_reports is not None:
                tested = self.rewards(averaged=averaged, text="test")
                running = {child for child in sorted(running) if goes_on(test_reports, child, step, tested[child])}
            for child in sorted(running):
                best[child] = max(best[child], rewards[child])
                numbers = (rewards[child], *means[child])
                alive = all(map(math.isfinite, numbers)) and goes_on(reports, child, step, rewards[child])
                if not alive or means[child][2] > MOST_LEFT_OUT:
                    running.remove(child)
            if not running:
                break
        return [best[child] if child in running else math.nan for child in range(len(policies))]

    def rewards(self, *, averaged: bool, text: str = "validation") -> list[float]:
        """80 over the perplexity of every slot on a text, nan where that is not finite."""
        found = self.reading.nats(averaged=averaged, text=text)
        return [REWARD * math.exp(-nats) if math.isfinite(nats) else math.nan for nats in found]

    def _train(self) -> None:
        """One step of all children. All of it is captured."""
        self._model.objective.train()
        words, targets = self._streams(self._step)  # (N, T), (N, T)
        noise = self._noise(self._seeds, self._step)  # (K,)
        leaves = self.stack.leaves
        rows = rows_of(self.stack.weights[EMBEDDING], words).requires_grad_()  # (K, N, T, C)
        with self.run.autocast():
            loss, penalty, memory = self._losses(
                leaves, rows, self._memory, self._tokens, self._rates, noise, words, targets
            )  # (K,), (K,), (K, layers, N, M, C)
        *of_leaves, of_rows = torch.autograd.grad((loss + penalty).sum(), (*leaves.values(), rows))
        gradients = dict(zip(leaves, of_leaves, strict=True))
        add_rows(gradients[EMBEDDING], of_rows.flatten(1, 2), words.flatten())
        lr = at(self._lr, self._step.clamp(max=len(self._lr) - 1)).expand(self.children)
        skipped = self._adam.step(gradients, lr)
        self._memory.copy_(memory)
        self._sums.add_(torch.stack((loss.detach(), penalty.detach(), skipped.float())))
        self._step.add_(1)

    def _average(self) -> None:
        """After a step of the last fifth. All of it is captured."""
        self.stack.average((self._step - 1 - self._averages_from).squeeze())

    def _means(self, steps: int) -> list[list[float]]:
        """Of each slot since the last evaluation: loss, penalty, share of steps left out."""
        means: list[list[float]] = (self._sums.T / steps).tolist()
        self._sums.zero_()
        return means


_warm: dict[tuple[LanguageTraining, Run, bool], Crowd] = {}


def warm_crowd(training: LanguageTraining, run: Run, children: int, *, dropping: bool) -> Crowd:
    """The crowd of the last call, where it was the same, but for length and schedule, and had room; else a new one."""
    same = replace(training, steps=1, evaluate_every=1, lr=1.0, lr_after_cosine=1.0, lr_constant=1.0, warmup=0)
    key = (replace(same, cosine_share=1.0), replace(run, report=None), dropping)
    if key not in _warm or _warm[key].children < children or _warm[key].longest < training.steps:
        _warm.clear()
        gc.collect()  # its graphs hold a GPU's memory, and may be part of a cycle
        torch.compiler.reset()  # of what was compiled for the last crowd nothing fits the next
        _warm[key] = Crowd(training, run, children, dropping=dropping)
    _warm[key].training = training
    return _warm[key]
