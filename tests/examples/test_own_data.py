"""The example that users copy: short, and a whole search when run as a script."""

import re
import subprocess
import sys
from pathlib import Path

import autodropout as ad

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_data.py"


def run(folder: Path, trials: int) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLE), str(trials)],
        cwd=folder,
        check=True,
        timeout=280,
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.stdout


def test_it_is_short() -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= 42


def test_it_searches_and_resumes(tmp_path: Path) -> None:
    said = run(tmp_path, 3)
    assert re.match(r"the best of 3 scored 0\.\d{3}; with new seeds:\n", said)
    assert re.search(r"^none +0 +0\.\d{4} ± ", said, re.M)
    first = [trial.value for trial in ad.Study(f"sqlite:///{tmp_path}/own_data.db", "study").trials]
    (left := tmp_path / "own_data.json").unlink(missing_ok=True)
    said = run(tmp_path, 4)
    study = ad.Study(f"sqlite:///{tmp_path}/own_data.db", "study")
    assert [trial.value for trial in study.trials][:3] == first
    assert len(study.trials) == 4
    assert all(0.1 < trial.value <= 1.0 for trial in study.trials), "better than naming a digit at random"
    assert study.best.policy.recorded_rate == 0.2, "it can be attached without another word"
    better = "none of them is better than no policy" not in said
    assert left.exists() == better
    if better:
        assert ad.load(left).recorded_rate == 0.2
