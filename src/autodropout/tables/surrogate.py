"""A regression on the rows of a table: what a policy that nobody tried would probably score.

    surrogate = Surrogate.fit(table.space, table.trials(steps=2_000))
    print(surrogate)                                        # held-out error and rank correlation of each regression
    surrogate.predict([tokens], rate=0.1)                   # (N,)

Features: for each token its value as one of several and as a number, zeros where it has no effect; and the rate. Three
regressions are cross-validated and the one with the smallest held-out error is taken. Trials of one policy, whatever
their seeds, their rates and their tokens without effect, are never divided between fitting and holding out. The
held-out error contains the noise of single seeds: no surrogate can come below `noise`, the deviation between the seeds
of one policy.

Needs `pip install scikit-learn`, imported on first use.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from autodropout.spaces import Space, canonical, effective
from autodropout.tables.statistics import Floats, seed_spread, spearman
from autodropout.tables.trials import TableError, TableTrial

FOLDS = 5


@dataclass(frozen=True, slots=True)
class HeldOut:
    """How well a regression told what it had not seen."""

    error: float  # root mean square
    correlation: float  # Spearman's, with the values


@dataclass(frozen=True)
class Surrogate:
    """A fitted regression; make one by `fit`."""

    space: Space
    kind: str  # the regression that was chosen
    held_out: dict[str, HeldOut]  # by regression
    noise: float  # deviation between seeds of one policy
    deviation: float  # of all values: what predicting their mean would err by
    rows: int
    rates: tuple[float, ...]  # that the rows have
    _model: Any

    @classmethod
    def fit(cls, space: Space, trials: Sequence[TableTrial], noise: float | None = None, seed: int = 0) -> "Surrogate":
        """Fit to trials of one training and length; those that failed or were stopped are left out.

        Args:
            space: what the tokens are of.
            trials: the rows, as `Table.trials` gives them.
            noise: the deviation between seeds; taken from policies with several seeds when left out. One that was
                trained twice with a seed says nothing of that: the first score counts.
            seed: of the folds and the regressions.
        """
        kept = [trial for trial in trials if trial.value is not None and not trial.stopped]
        if len({(trial.training, trial.steps) for trial in kept}) > 1:
            raise TableError("a surrogate is of one training and one length, these trials are of several")
        policies = [canonical(space, trial.tokens) for trial in kept]
        number_of = {policy: number for number, policy in enumerate(dict.fromkeys(policies))}
        if len(number_of) < 2 * FOLDS:
            raise TableError(f"a surrogate needs {2 * FOLDS} policies or more, got {len(number_of)}")
        if noise is None:
            seeds: dict[tuple[tuple[int, ...], float], dict[int, float]] = {}
            for policy, trial in zip(policies, kept, strict=True):
                assert trial.value is not None, "those without are left out"
                seeds.setdefault((policy, trial.rate), {}).setdefault(trial.seed, trial.value)
            noise = seed_spread([list(values.values()) for values in seeds.values()]).deviation
        features = _features(space, [t.tokens for t in kept], np.array([t.rate for t in kept]))
        values = np.array([trial.value for trial in kept])
        which = np.array([number_of[policy] for policy in policies])
        fold = np.random.default_rng(seed).permutation(len(number_of))[which] % FOLDS
        held_out = {}
        for kind, model in _regressions(seed).items():
            guessed = np.empty(len(values))
            for part in range(FOLDS):
                model.fit(features[fold != part], values[fold != part])
                guessed[fold == part] = model.predict(features[fold == part])
            error = float(np.sqrt(np.mean((guessed - values) ** 2)))
            held_out[kind] = HeldOut(error, spearman(guessed, values))
        chosen = min(held_out, key=lambda kind: held_out[kind].error)
        model = _regressions(seed)[chosen].fit(features, values)
        rates = tuple(sorted({trial.rate for trial in kept}))
        return cls(space, chosen, held_out, noise, float(values.std()), len(values), rates, model)

    def predict(self, tokens: Sequence[tuple[int, ...]], rate: float) -> Floats:
        """The score to be expected of each string at a rate, (N,); a rate beyond those of the rows is a guess."""
        found: Floats = self._model.predict(_features(self.space, tokens, np.full(len(tokens), rate)))
        return found

    def __str__(self) -> str:
        lines = [
            f"{self.rows} rows, deviation {self.deviation:.5f}, between seeds of one policy {self.noise:.5f}",
            f"{'':10}{'held-out error':>15}{'rank correlation':>18}",
        ]
        for kind, judged in self.held_out.items():
            mark = "  taken" if kind == self.kind else ""
            lines.append(f"{kind:10}{judged.error:>15.5f}{judged.correlation:>18.3f}{mark}")
        return "\n".join(lines)


def active(space: Space, tokens: Sequence[tuple[int, ...]]) -> npt.NDArray[np.bool_]:
    """(N, T): whether each token has an effect."""
    return np.array([effective(space, one) for one in tokens], dtype=bool).reshape(-1, len(space.tokens))


def _features(space: Space, tokens: Sequence[tuple[int, ...]], rates: Floats) -> Floats:
    """(N, features)."""
    strings = np.asarray(tokens, dtype=int).reshape(-1, len(space.tokens))
    works = active(space, tokens)
    columns: list[Floats] = [rates.astype(float)]
    for position, token in enumerate(space.tokens):
        chosen = np.eye(len(token.values))[strings[:, position]] * works[:, position, None]
        columns.extend(chosen[:, 1:].T)  # the first value is what is left when it is none of the others
        if len(token.values) > 2:
            numbers = np.array(token.values, dtype=float)
            columns.append((numbers / numbers.max())[strings[:, position]] * works[:, position])
    return np.stack(columns, axis=1)


def _regressions(seed: int) -> dict[str, Any]:
    try:
        from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
        from sklearn.linear_model import RidgeCV
    except ModuleNotFoundError:
        raise ModuleNotFoundError("a surrogate needs scikit-learn: pip install scikit-learn") from None
    return {
        "ridge": RidgeCV(alphas=np.logspace(-2, 4, 13)),
        "boosting": HistGradientBoostingRegressor(
            learning_rate=0.05, max_iter=200, max_leaf_nodes=8, min_samples_leaf=10, random_state=seed
        ),
        "forest": RandomForestRegressor(200, min_samples_leaf=3, max_features=0.3, random_state=seed),
    }
