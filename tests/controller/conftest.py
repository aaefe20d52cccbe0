"""The landscape that proposers are judged on is the benchmark's."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
