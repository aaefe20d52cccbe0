"""What new seeds say of a search's best policies: which is best, and whether it is better than no policy at all.

The best of many scores is partly luck: what a policy loses from the search to new seeds. `ad.confirm` and the command
`confirm` train them (`study.top`), each in its own way; here is what they conclude.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from autodropout.recipes.comparison import Row, Summary, Variant, summaries, table
from autodropout.search.study import StudyTrial
from autodropout.spaces import Policy, Provenance

NONE = "none"


@dataclass(frozen=True, repr=False)
class Confirmation:
    """Trials of a study under new seeds. Printed, it is a table and its conclusion."""

    rows: Sequence[Row]  # what was trained, in whatever order
    trials: Mapping[str, StudyTrial]  # of the study, by the names of the variants that they became
    rates: Mapping[str, float | None]  # of the same variants; None where only the child knows
    as_searched: bool = True  # by the training and at the rate of the search: scores can be compared with its own

    @cached_property
    def means(self) -> dict[str, Summary]:
        """Each variant over its seeds, and its differences from no policy."""
        return {summary.variant.name: summary for summary in summaries(self._none_first)}

    @cached_property
    def best(self) -> str | None:
        """The policy with the best mean, of those that diverged with no seed; None where all have."""
        return max(self._steady, key=lambda name: self.means[name].mean, default=None)

    @cached_property
    def policy(self) -> Policy | None:
        """The best one, whose provenance says by what it was chosen; None where it is not better than no policy."""
        if self.best is None or NONE not in self.means:
            return None
        # On the seeds that both were trained with to their end; nan where without a policy all diverged.
        return None if self.means[self.best].difference <= 0 else self._confirmed(self.best)

    def __repr__(self) -> str:
        return f"Confirmation(best={self.best!r}, better than no policy: {self.policy is not None})"

    def __str__(self) -> str:
        rated = any(rate is not None for rate in self.rates.values())
        return "\n".join((table(self._none_first, rated=rated), *self.conclusion()))

    def conclusion(self) -> list[str]:
        """What the search promised, what came of it, and what is best now."""
        if NONE not in self.means or not self.means.keys() & self.trials.keys():
            return ["there is no score yet that policies could be compared by"]
        if self.best is None:
            return [f"each of the {len(self.trials)} policies diverged with one of the new seeds or more"]
        found, none = self.means[self.best], self.means[NONE]
        lines = [self._luck()] if self.as_searched else []
        lines.append(f"best: {self.best}, {found.mean:.4f}, {self.trials[self.best].value:.4f} in the search")
        if self.policy is None:
            without = f"{none.mean:.4f}" + (", where that did not diverge" if none.diverged else "")
            lines.append(f"with new seeds none of them is better than no policy at all, {without}")
        elif found.interval is not None and found.difference <= found.interval:
            apart = f"{found.difference:+.4f} ± {found.interval:.4f}"
            lines.append(f"that it is better than no policy is not shown by so few seeds: {apart}")
        return lines

    def _luck(self) -> str:
        again = [name for name in self.trials if name in self.means and self.means[name].values]
        before = [value for name in again if (value := self.trials[name].value) is not None]
        after = [self.means[name].mean for name in again]
        had = "1 policy had" if len(again) == 1 else f"{len(again)} policies had on average"
        return f"{had} {statistics.fmean(before):.4f} in the search, {statistics.fmean(after):.4f} with new seeds"

    @property
    def _none_first(self) -> list[Row]:
        return sorted(self.rows, key=lambda row: row.variant.name != NONE)

    @property
    def _steady(self) -> list[str]:
        return [name for name in self.trials if name in self.means and not self.means[name].diverged]

    def _confirmed(self, name: str) -> Policy:
        policy, found = self.trials[name].policy, self.means[name]
        assert policy.provenance is not None
        seeds = len(found.values)
        note = (
            f"score: mean of {seeds} new seed{'' if seeds == 1 else 's'}, the best of {len(self._steady)} such means; "
        )
        note += f"{self.trials[name].value:.6g} in the search"
        known = policy.provenance.model_dump() | {"score": found.mean, "rate": self.rates[name], "note": note}
        return policy.model_copy(update={"provenance": Provenance.model_validate(known)})


def variants_of(trials: Mapping[str, StudyTrial], rates: Mapping[str, float]) -> list[Variant]:
    """No policy at all, then those of the trials."""
    return [Variant(NONE, None, 0.0), *(Variant(name, trial.policy, rates[name]) for name, trial in trials.items())]


def nothing_to_confirm(study: str) -> ValueError:
    return ValueError(f"no policy that has a score in study {study!r} drops anything: none is left to confirm")
