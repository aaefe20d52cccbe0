"""Tables of trials: what every child of a study came to, to be asked and searched again without training anything.

- `trials`: one trial, and the journal a study writes; `parquet`: the file, with its version and checksum
- `query`: `ad.table(name)` and its queries, validation and test apart
- `statistics`: rank correlation, bootstrap intervals, the spread between seeds
- `surrogate`: a regression on a table's rows, with its held-out error
- `simulator`: searches replayed on the rows themselves, or on the surrogate

Tables that come with the package are Parquet files in this folder. Needs no torch; pyarrow to read a file, scikit-learn
to fit a surrogate.
"""

from typing import TYPE_CHECKING

from autodropout.lazy import lazy

if TYPE_CHECKING:
    from autodropout.tables.query import Table, table
    from autodropout.tables.simulator import Rows, Simulated, Smooth, World, confirm, replay_stopping, simulate
    from autodropout.tables.surrogate import Surrogate
    from autodropout.tables.trials import Entry, Journal, TableError, TableTrial, from_ledger
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "autodropout.tables.simulator": [
                "Rows",
                "Simulated",
                "Smooth",
                "World",
                "confirm",
                "replay_stopping",
                "simulate",
            ],
            "autodropout.tables.surrogate": ["Surrogate"],
            "autodropout.tables.query": ["Table", "table"],
            "autodropout.tables.trials": ["Entry", "Journal", "TableError", "TableTrial", "from_ledger"],
        },
    )

__all__ = [
    "Entry",
    "Journal",
    "Rows",
    "Simulated",
    "Smooth",
    "Surrogate",
    "Table",
    "TableError",
    "TableTrial",
    "World",
    "confirm",
    "from_ledger",
    "replay_stopping",
    "simulate",
    "table",
]
