"""Tables, pictures and the HTML report of a study.

- `masks`: a policy's masks as a picture
- `history`: a study's trials as arrays
- `html`, `sections`, `charts`, `report.css`: the report, one self-contained page
- `plots`: several studies on one plot
- `display`: the progress of a search in a terminal
- `export`: a study's trials as a Parquet file or an Optuna study
- `suffixes`: what the files of all these may be called
"""

from typing import TYPE_CHECKING

from autodropout.lazy import lazy

if TYPE_CHECKING:
    from autodropout.report.masks import draw_masks
else:
    __getattr__, __dir__ = lazy(__name__, {"autodropout.report.masks": ["draw_masks"]})

__all__ = ["draw_masks"]
