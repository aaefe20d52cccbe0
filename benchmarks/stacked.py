"""Language models trained side by side on one GPU: milliseconds for each child and step, optimizer included.

    python benchmarks/stacked.py [--models paper small] [--policies full none] [--out results/stacked-cuda.json]
    python benchmarks/stacked.py --smoke                                       # tiny models, on a CPU too

Two models in bfloat16, under the policy that costs most: a pattern at every site, drawn for every value. Where asked
for, without one as well: what a step takes at least, however cheap masks become.

- paper: Transformer-XL as the paper trains it on Penn Treebank, 16 layers of width 380, 16 rows of 70 words, memory 70.
- small: 4 layers of width 256, 8 heads, inner 1024, 16 rows of 70 words, no memory.
- aligned, if asked for by --models: as paper, but 384 wide, 12 heads of 32, inner 896. Tensor cores read rows of
  multiples of 16 bytes best, which 380, 38 and 900 are not: the difference is what that costs.

A step is all that a training does between two evaluations, averaging of weights aside. "first" is the time from the
call with new policies and seeds to the end of the first step, in a crowd that is warm; "start" what making the crowd
takes: compilation and capture, minutes of it. "average" and "judge" are one averaging and, where asked for since it is
compiled on its own, one reading of the validation text, 5,000 words.
"""

import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import autodropout as ad
from autodropout.models.transformer_xl import TransformerXLSize
from autodropout.recipes.language import RATE, TRANSFORMER_XL, search_training
from autodropout.spaces import TRANSFORMER_SITES
from autodropout.training import Run
from autodropout.training.language import LanguageTraining
from autodropout.training.language_crowd import Crowd
from recording import Table, facts, options, write

VOCABULARY = 10_000
CHILDREN = {"paper": (24,), "small": (40, 64), "aligned": (24,)}  # each is compiled on its own
SMALL = TransformerXLSize(
    layers=4, width=256, heads=8, head_size=32, inner=1024, memory=0, embedding_dropout=0.5, softmax_dropout=0.6
)
TARGETS = {"paper": 1.5, "small": 0.25}  # ms
FULL = ad.TransformerPolicy(
    sites=dict.fromkeys(TRANSFORMER_SITES, ad.SequencePattern(size=20, stride=10, share_t=False, share_c=False))
)
POLICIES: dict[str, ad.Policy | None] = {"full": FULL, "none": None}
COLUMNS = ("ms", "GiB", "first, s", "start, s", "average, ms", "judge, ms")


@dataclass(frozen=True)
class Case:
    """One row: a model, how many children, with or without a policy."""

    model: str
    training: LanguageTraining
    children: int
    policy: ad.Policy | None

    @property
    def label(self) -> str:
        return f"{self.model}, {self.children} children, {'full policy' if self.policy else 'no policy'}"


def write_text(folder: Path, train: int = 100_000, held_out: int = 5_000) -> Path:
    """A text in Penn Treebank's layout, with a vocabulary of its size; which word follows which does not matter."""
    (folder / "ptb").mkdir()
    for part, words in (("train", train), ("valid", held_out), ("test", held_out)):
        lines = [
            " ".join(f"w{(7 * place) % (VOCABULARY - 1)}" for place in range(first, first + 19))
            for first in range(0, words, 19)
        ]
        (folder / "ptb" / f"ptb.{part}.txt").write_text("\n".join(lines) + "\n")
    return folder


def trainings(data: Path, smoke: bool) -> dict[str, LanguageTraining]:
    paper = replace(search_training(), data=data)
    small = replace(paper, size=SMALL)
    aligned = replace(paper, size=replace(TRANSFORMER_XL, width=384, heads=12, head_size=32, inner=896))
    if smoke:
        tiny = {"segment": 10, "batch": 2, "steps": 100}
        paper = replace(
            paper, size=replace(TRANSFORMER_XL, layers=1, width=20, head_size=2, inner=30, memory=10), **tiny
        )
        small = replace(small, size=replace(SMALL, layers=1, width=16, heads=2, head_size=8, inner=32), **tiny)
    return {"paper": paper, "small": small, "aligned": aligned}


def milliseconds(work: Callable[[], object], rounds: int, repeats: int, device: torch.device) -> list[float]:
    """Of one call, in each round; the first round warms up."""
    times = []
    for _ in range(rounds + 1):
        wait(device)
        start = time.perf_counter()
        for _ in range(repeats):
            work()
        wait(device)
        times.append(1e3 * (time.perf_counter() - start) / repeats)
    return times[1:]


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure(case: Case, run: Run, rounds: int, repeats: int, *, judged: bool) -> dict[str, Any]:
    """Time one crowd. It is gone afterwards, and its memory with it."""
    device = run.where
    torch.compiler.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    start = time.perf_counter()
    crowd = Crowd(case.training, run, case.children, dropping=case.policy is not None)
    with crowd.lane.active():
        policies = [case.policy] * case.children
        crowd.begin(policies, RATE, range(case.children))
        crowd.train_step()
        wait(device)
        seconds_to_start = time.perf_counter() - start

        def first_step() -> None:
            crowd.begin(policies, RATE, range(case.children))
            crowd.train_step()

        first = milliseconds(first_step, 1, 1, device)
        steps = [ms / case.children for ms in milliseconds(crowd.train_step, rounds, repeats, device)]
        average = milliseconds(crowd.average, 1, 3, device)
        judge = milliseconds(lambda: crowd.reading.nats(averaged=False), 1, 1, device) if judged else [None]
        crowd.lane.wait()
    peak = torch.cuda.max_memory_reserved(device) / 2**30 if device.type == "cuda" else None
    return {
        "case": case.label,
        "model": case.model,
        "children": case.children,
        "policy": case.policy is not None,
        "rounds": rounds,
        "steps_a_round": repeats,
        "ms_per_child_step": statistics.median(steps),
        "raw_ms_per_child_step": [round(ms, 5) for ms in steps],
        "peak_GiB": peak,
        "seconds_to_first_step_when_warm": first[0] / 1e3,
        "seconds_to_compile_and_capture": seconds_to_start,
        "ms_average": average[0],
        "ms_judge": judge[0],
    }


def show(table: Table, row: dict[str, Any]) -> None:
    values = {
        "ms": f"{row['ms_per_child_step']:.3f}",
        "GiB": None if row["peak_GiB"] is None else f"{row['peak_GiB']:.1f}",
        "first, s": f"{row['seconds_to_first_step_when_warm']:.3f}",
        "start, s": f"{row['seconds_to_compile_and_capture']:.0f}",
        "average, ms": f"{row['ms_average']:.2f}",
        "judge, ms": None if row["ms_judge"] is None else f"{row['ms_judge']:.1f}",
    }
    table.row(row["case"], values)


def measure_all(
    children: Sequence[int] | None,
    models: Sequence[str],
    run: Run,
    *,
    rounds: int,
    smoke: bool,
    policies: Sequence[str],
    judged: bool,
) -> Iterator[dict[str, Any]]:
    """Every case, printed as it comes. One whose children do not fit the GPU's memory is noted as such."""
    table = Table(COLUMNS, label=36, width=12)
    with tempfile.TemporaryDirectory() as folder:
        found = trainings(write_text(Path(folder)), smoke)
        for model in models:
            for count in CHILDREN[model] if children is None else children:
                for policy in policies:
                    case = Case(model, found[model], count, POLICIES[policy])
                    try:
                        row = measure(case, run, rounds, 2 if smoke else 20, judged=judged)
                    except torch.OutOfMemoryError:
                        print(f"{case.label}: out of memory")
                        yield {"case": case.label, "model": model, "children": count, "out_of_memory": True}
                        continue
                    show(table, row)
                    yield row


def main() -> None:
    parser = options(__doc__, "results/stacked-cuda.json", "tiny models, two children, two rounds")
    parser.add_argument("--children", type=int, nargs="+", help="crowds of so many; when left out, what a GPU is for")
    parser.add_argument("--models", nargs="+", choices=tuple(CHILDREN), default=tuple(TARGETS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--policies", nargs="+", choices=tuple(POLICIES), default=["full"])
    parser.add_argument("--judge", action="store_true", help="time an evaluation, too")
    arguments = parser.parse_args()
    run = Run(precision="bfloat16")
    if not arguments.smoke and run.where.type != "cuda":
        parser.error("this measures a CUDA device, and there is none; --smoke runs anywhere")
    machine = torch.cuda.get_device_name() if run.where.type == "cuda" else None
    rows: list[dict[str, Any]] = []
    record = facts("language models trained side by side", ("torch",), machine) | {"targets_ms": TARGETS, "rows": rows}
    for row in measure_all(
        (2,) if arguments.smoke else arguments.children,
        arguments.models,
        run,
        rounds=2 if arguments.smoke else arguments.rounds,
        smoke=arguments.smoke,
        policies=arguments.policies,
        judged=arguments.judge,
    ):
        rows.append(row)
        if not arguments.smoke:
            write(record, arguments.out)  # after each row: a figure that was paid for is not lost
    for model, target in TARGETS.items():
        found = [row["ms_per_child_step"] for row in rows if row["model"] == model and row.get("policy")]
        if found and not arguments.smoke:
            reached = "yes" if min(found) <= target else "NO"
            print(f"{model}: {min(found):.3f} ms, to reach {target}: {reached}")


if __name__ == "__main__":
    main()
