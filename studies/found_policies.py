"""The policies of a final table as files that come with the package, each with where it is from and what it is worth.

    python -m studies.found_policies ptb|cifar [--folder results/ptb] [--to src/autodropout/policies]

`ad.load("ptb-controller")` then gives what our controller found, `ad.load("ptb-controller-paper")` what the paper's
setting of it did, `ad.load("ptb-random")` random search. The rate in a file is the one that was tuned for it in the
study: for another model or other data it is a first guess. Rate and score are those of the last of `TABLES` that has
the policy; what it is worth at other lengths (`ptb/lengths.py`, `ptb/longer.py`) is told beside. Where all of the best
policies of a search were trained once more, that found one of them to be the best by new seeds, that one is taken
(`ptb/race.py`).
"""

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from autodropout.spaces import Provenance, Space
from autodropout.tables import Journal
from autodropout.training.language import REWARD
from benchmarks.recording import unit_of
from studies.cifar.study import SPACE as CIFAR_SPACE
from studies.ptb.trainings import SPACE as PTB_SPACE

SEARCHED = "policy of "  # what methods of the table begin with that a search has found
CHOICE = "race.json"  # has other policies than all tables before it
TABLES = (CHOICE, "bracketed.json", "retuned.json", "honest.json")  # the last first
AT_LENGTHS = ("lengths.json", "longer.json")  # of the policies before the choice, and of those that were chosen


class Study(NamedTuple):
    """What its policies say of where they are from."""

    name: str
    space: Space
    model: str | None  # None: what the final table calls its training
    data: str
    reward: Callable[[float], float]  # of a score, as tables show it


STUDIES = {
    "ptb": Study(
        name="ptb-txl",
        space=PTB_SPACE,
        model="Transformer-XL of 4 layers of 256, the recipe ptb-small",
        data="Penn Treebank",
        reward=lambda perplexity: REWARD / perplexity,
    ),
    "cifar": Study(
        name="cifar-4k",
        space=CIFAR_SPACE,
        model=None,
        data="4,000 images of CIFAR-10",
        reward=lambda error: 1 - error / 100,
    ),
}


def number_of(folder: Path, searcher: str, tokens: tuple[int, ...]) -> tuple[str, int]:
    """The search, and the trial of it, that a finalist comes from."""
    for entry in Journal(folder / "search.jsonl").entries:
        if entry.trial.method == searcher and entry.trial.tokens == tokens:
            return entry.trial.phase, entry.trial.number
    raise SystemExit(f"{folder / 'search.jsonl'} has no trial of {searcher} with the tokens {tokens}")


def rows_of(record: dict[str, Any], part: str) -> dict[str, dict[str, Any]]:
    """By method, of the validation or the test part of the data."""
    table = next(rows for name, rows in record["tables"].items() if name.startswith(part))
    return {row["method"]: row for row in table}


def finalists(folder: Path) -> tuple[dict[str, tuple[int, ...]], set[str]]:
    """The tokens of each method's policy, and the methods of which another was chosen after the final table."""
    source, choice = folder / "honest.json", folder / CHOICE
    if not source.exists():
        raise SystemExit(f"{source} is not there, which has the policies: run the study's stage honest first")
    found = {method: tuple(of) for method, of in json.loads(source.read_text())["policies"].items()}
    chosen = json.loads(choice.read_text())["chosen"] if choice.exists() else []
    newer = {SEARCHED + one["method"]: tuple(one["tokens"]) for one in chosen}
    exchanged = {method for method, tokens in newer.items() if tokens != found[method]}
    return {method: of for method, of in (found | newer).items() if method.startswith(SEARCHED)}, exchanged


def last_table(folder: Path, method: str) -> tuple[dict[str, Any], bool]:
    """Where it was tested last, and whether others were after that."""
    records = [json.loads(path.read_text()) for path in map(folder.joinpath, TABLES) if path.exists()]
    found = next(record for record in records if method in rows_of(record, "test"))
    return found, found is not records[0]


def worth(record: dict[str, Any], method: str) -> str:
    """What it is worth, beside those of the same table and length."""
    told = []
    for part in ("test", "validation"):
        rows = rows_of(record, part)
        peer = record.get("best_classical")
        beside = [name for name in rows if name in (peer, "none") or (peer is None and not name.startswith(SEARCHED))]
        others = "; ".join(f"{name} {rows[name]['mean']:.2f}" for name in beside)
        own = f"{part} {unit_of(record)} {rows[method]['mean']:.2f} over {len(rows[method]['values'])} seeds"
        told.append(f"{own} ({others})" if others else own)
    return "; ".join(told)


def told(folder: Path, record: dict[str, Any], method: str, exchanged: bool) -> str:
    """At every length that all were trained for, where there is such a table of it, and at that of its last table."""
    known: dict[str, dict[str, Any]] = {}
    for path in map(folder.joinpath, AT_LENGTHS[1:] if exchanged else AT_LENGTHS):
        by_length = json.loads(path.read_text())["by_length"] if path.exists() else {}
        known |= {steps: of for steps, of in by_length.items() if of["tables"] and method in rows_of(of, "test")}
    if not known or "chosen" in record:
        known[f"{record['lengths'][method]:,}"] = record
    lines = (
        f"After {steps} steps at {rows_of(of, 'test')[method]['rate']:g}: {worth(of, method)}"
        for steps, of in sorted(known.items(), key=lambda item: int(item[0].replace(",", "")))
    )
    return ". ".join(lines) + ". See docs/results.md"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--folder", type=Path, default=None, help="journals and tables; results/STUDY if not given")
    parser.add_argument("--to", type=Path, default=Path("src/autodropout/policies"))
    args = parser.parse_args(argv)
    study, folder = STUDIES[args.study], args.folder or Path("results") / args.study
    policies, exchanged = finalists(folder)
    args.to.mkdir(parents=True, exist_ok=True)
    for method, tokens in policies.items():
        searcher = method.removeprefix(SEARCHED)
        search, number = number_of(folder, searcher, tokens)
        record, older = last_table(folder, method)
        row = rows_of(record, "validation")[method]
        provenance = Provenance(
            space=study.space.describe(),
            study=f"{study.name}, {search}, {searcher}",
            trial=number,
            score=statistics.fmean(map(study.reward, row["values"])),
            model=study.model or record["training"],
            data=study.data,
            rate=row["rate"],
            date=record["date"],
            software=record["trained"][-1]["versions"],
            note=("By an older table than others. " if older else "")
            + told(folder, record, method, method in exchanged),
        )
        path = args.to / f"{args.study}-{searcher}.json"
        study.space.decode(tokens, provenance).save(path)
        print(f"{path}: {provenance.note}")


if __name__ == "__main__":
    main()
