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


def test_it_is_under_40_lines() -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 40


def test_it_searches_and_resumes(tmp_path: Path) -> None:
    assert re.match(r"the best of 3 scored 0\.\d{3}\n", run(tmp_path, 3))
    first = [trial.value for trial in ad.Study(f"sqlite:///{tmp_path}/own_data.db", "study").trials]
    run(tmp_path, 4)
    study = ad.Study(f"sqlite:///{tmp_path}/own_data.db", "study")
    assert [trial.value for trial in study.trials][:3] == first
    assert len(study.trials) == 4
    assert all(0.1 < trial.value <= 1.0 for trial in study.trials), "better than naming a digit at random"
    assert ad.load(tmp_path / "own_data.json") == study.best.policy
    assert study.best.policy.recorded_rate == 0.2, "it can be attached without another word"
