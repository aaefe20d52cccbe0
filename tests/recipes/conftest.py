"""Small trainings of other tests, which these compare."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "training"))
