"""The full configuration of one experiment: what its search trains, what is trained at the end, the paper's figures."""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

from autodropout.search.jobs import Report
from autodropout.spaces import Policy, Space
from autodropout.training.run import Regularizer, Run, Scores
from autodropout.training.threads import threads

RATES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
"""What the paper tunes the final rate over (appendix, "Image Recognition Models")."""


class Training(Protocol):
    """A training with everything that defines it: picklable, so that workers and clusters can have it."""

    def space(self) -> Space:
        """What a policy for its model can choose."""
        ...

    def fit(self, regularizer: Regularizer, rate: float, seed: int, run: Run) -> Scores:
        """Train one model under a policy, a baseline or nothing, and judge it."""
        ...

    def smoke(self) -> Self:
        """The same, at a size that one CPU core trains in well under a minute."""
        ...


@dataclass(frozen=True, slots=True)
class RecipeChild:
    """A search's child: trains under a policy, at one rate; its reward is the score."""

    training: Training
    rate: float
    on_cpu: bool = False  # on one thread there, since as many children run as there are cores

    def __call__(self, policy: Policy, seed: int, report: Report) -> float:
        device = "cpu" if self.on_cpu else None
        with threads(1) if self.on_cpu else nullcontext():
            return self.training.fit(policy, self.rate, seed, Run(device=device, report=report)).reward


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One experiment. Its numbers are defaults that a user may change; those of the search are the paper's."""

    name: str
    what: str  # in one line
    proxy: Training  # what a child of the search trains
    final: Training  # the experiment at its full size
    tuning: Training | None = None  # the same with validation data held out, where the final one trains on everything
    methods: Mapping[str, Training] = field(default_factory=dict)  # the final training with another method, by name
    rate: float = 0.2  # at which children put policies on their models
    rates: tuple[float, ...] = RATES  # for the final training
    trials: int = 16_384  # policies in each of the paper's searches
    workers: int = 1  # whoever has more machines says so
    capacity: int = 64  # the paper: much larger than the minibatch
    minibatch: int = 16
    floor: float = 0.0  # what a child that diverges scores
    reproduces: str = ""  # where it stands in the paper
    paper: Mapping[str, str] = field(default_factory=dict)  # the paper's figures, by method
    cost: str = ""  # of the search and of the final training
    measured: str = ""  # here; the file under results/ that shows it
    policy_from: str = ""  # the recipe whose policy it takes, where the paper searches no own one
    on_cpu: bool = False  # so small that a GPU would only be slower

    def __post_init__(self) -> None:
        for name in ("trials", "workers", "capacity", "minibatch"):
            if getattr(self, name) < 1:
                raise ValueError(f"recipe {self.name!r}: {name} must be at least 1, got {getattr(self, name)}")
        for rate in (self.rate, *self.rates):
            if not 0.0 <= rate <= 1.0:
                raise ValueError(f"recipe {self.name!r}: rate must lie in [0, 1], got {rate}")

    def space(self) -> Space:
        return self.proxy.space()

    @property
    def child(self) -> RecipeChild:
        return RecipeChild(self.proxy, self.rate, self.on_cpu)

    def smoke(self) -> "Recipe":
        """The same experiment, small enough to see that it runs."""
        return replace(
            self,
            proxy=self.proxy.smoke(),
            final=self.final.smoke(),
            tuning=None if self.tuning is None else self.tuning.smoke(),
            methods={name: training.smoke() for name, training in self.methods.items()},
            trials=2,
            capacity=2,
            minibatch=2,
        )
