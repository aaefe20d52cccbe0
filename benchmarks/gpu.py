"""Every figure of docs/performance.md in one command: the masks, crowds of ConvNets, stacked Transformers.

    python benchmarks/gpu.py [--only masks crowd stacked] [--summary] [--out results/gpu]

Each part is a benchmark of its own, run in a fresh process, which writes its raw times beside this one's summary; with
`--summary` nothing is run, and the files that are there are read. A figure that was not reached says so.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from recording import options, write

PARTS = ("masks", "crowd", "stacked")
Figure = tuple[str, float | None, float, str]  # what, reached, asked, unit; reached at most what is asked, but for "x"


def masks(record: dict[str, Any]) -> list[Figure]:
    figures: list[Figure] = []
    for shape, entry in record["shapes"].items():
        ours = [row for name, row in entry["layers"].items() if name.startswith("ours")]
        figures.append((f"worst pattern on {shape}, of nn.Dropout", entry["worst_of_dropout"], 1.0, ""))
        if "faster_than_dropblock" in entry:
            figures.append((f"  faster than DropBlock2d on {shape}", entry["faster_than_dropblock"], 18.0, "x"))
        figures.append((f"  bytes held a value on {shape}", max(row["held"] for row in ours), 2.15, ""))
    return figures


def crowd(record: dict[str, Any]) -> list[Figure]:
    def ms(model: str, policy: str) -> list[float]:
        return [row["ms"] for row in record["rows"] if row["model"] == model and row["policy"] == policy]

    worst = ms("wrn-28-2", "worst")
    figures: list[Figure] = [
        ("WRN-28-2, a child-step under the worst policy", min(worst) if worst else None, 1.6, "ms")
    ]
    for model, name in (("wrn-28-10", "WRN-28-10"), ("resnet50", "ResNet-50")):
        with_policy, without = ms(model, "worst"), ms(model, "none")
        ratio = round(with_policy[0] / without[0], 3) if with_policy and without else None
        figures.append((f"{name}, worst policy against none", ratio, 1.03, ""))
    first = [row["seconds"] for row in record["rows"] if row["policy"] == "new" and row["model"] == "wrn-28-2"]
    figures.append(("WRN-28-2, new policies to the first step", max(first) if first else None, 0.5, "s"))
    return figures


def stacked(record: dict[str, Any]) -> list[Figure]:
    figures: list[Figure] = []
    for model, asked in record["targets_ms"].items():
        rows = [row for row in record["rows"] if row["model"] == model and row.get("policy")]
        best = round(min((row["ms_per_child_step"] for row in rows), default=float("nan")), 3)
        figures.append((f"Transformer-XL, {model}, a child-step under a full policy", best, asked, "ms"))
        first = round(max((row["seconds_to_first_step_when_warm"] for row in rows), default=float("nan")), 3)
        figures.append((f"  new policies to the first step, {model}", first, 0.5, "s"))
    return figures


READERS = {"masks": masks, "crowd": crowd, "stacked": stacked}


def main() -> None:
    parser = options(__doc__, "results/gpu", "small sizes")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--summary", action="store_true", help="run nothing, read what is there")
    given = parser.parse_args()
    here = Path(__file__).parent
    summary: dict[str, Any] = {}
    for part in PARTS:
        file = given.out / f"{part}.json"
        if part in given.only and not given.summary:
            command = [sys.executable, here / f"{part}.py", "--out", file, *(["--smoke"] if given.smoke else [])]
            if subprocess.run(command).returncode:
                print(f"{part} failed; what it had written until then is read")
        if not file.exists():
            print(f"{part}: not measured ({file} is missing)")
            continue
        record = json.loads(file.read_text())
        rows = [
            {"what": what, "reached": reached, "asked": asked, "unit": unit, "holds": holds(reached, asked, unit)}
            for what, reached, asked, unit in READERS[part](record)
        ]
        summary[part] = {key: record[key] for key in ("date", "commit", "machine", "versions")} | {"figures": rows}
        for row in rows:
            verdict = {True: "", False: "NOT REACHED", None: "not measured"}[row["holds"]]
            print(
                f"{row['what']:62}{row['reached']!s:>10}{row['unit']:3}  asked {row['asked']}{row['unit']:3} {verdict}"
            )
    write(summary, given.out / "summary.json")


def holds(reached: float | None, asked: float, unit: str) -> bool | None:
    if reached is None or reached != reached:
        return None
    return reached >= asked if unit == "x" else reached <= asked


if __name__ == "__main__":
    main()
