"""Tables of final trainings, method by method: what the studies of language models and of translation share."""

from collections.abc import Callable, Sequence
from typing import Any

from autodropout.recipes.comparison import Row, Summary, Variant, summaries, table
from autodropout.tables import Entry
from autodropout.training.run import Scores


def rows_of(entries: Sequence[Entry], first: str, metric: str, shown: Callable[[float], float]) -> list[Row]:
    """The final trainings as a comparison has them, those of one method first; a diverged one has no place there.

    `metric` names a part of the data, validation or test, and what its score is `shown` as: `test BLEU`.
    """
    rows = []
    for trial, test in sorted(entries, key=lambda entry: entry.trial.method != first):
        score = test if metric.startswith("test") else trial.value
        if trial.value is not None and score is not None:
            scores = Scores(trial.value, {metric: shown(score)})
            rows.append(Row(Variant(trial.method, None, trial.rate), trial.seed, scores))
    return rows


def tables(
    entries: Sequence[Entry], firsts: Sequence[str], metrics: Sequence[str], shown: Callable[[float], float]
) -> dict[str, list[dict[str, Any]]]:
    """Printed, and for a file: every metric, with differences from each of some methods."""
    found = {}
    for metric in metrics:
        for first in firsts:
            rows = rows_of(entries, first, metric, shown)
            print(f"\n{metric}, differences from {first}\n{table(rows, metric)}")
            found[f"{metric}, from {first}"] = [_told(summary) for summary in summaries(rows, metric)]
    return found


def _told(summary: Summary) -> dict[str, Any]:
    return {
        "method": summary.variant.name,
        "rate": summary.variant.rate,
        "values": summary.values,
        "mean": summary.mean,
        "standard_error": summary.error,
        "difference": summary.difference,
        "half_interval": summary.interval,
    }
