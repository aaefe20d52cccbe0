"""What a policy costs in training: whole steps with nothing, with nn.Dropout, with a full policy at the same sites.

    python benchmarks/training.py [--smoke] [--rounds 12] [--out results/training-cpu.json]
    python benchmarks/training.py --cuda [--only data]    # also, or only, what data and augmentation take on a GPU
    python benchmarks/training.py --cuda --only data --cases wrn-28-2 wrn-28-10-randaugment

A step is forward, backward and SGD on random data. Rounds are interleaved over the variants, so that a slow moment of
the machine hits all; the overhead of a variant is its time less that of "nothing" in the same round. "nn.Dropout" is
torch's own function at exactly the sites of the policy: main branches and shortcuts of a ConvNet, all eleven sites of a
Transformer layer. The policy has a pattern at each of them, drawn per channel, rotated and sheared: none costs more.
"""

import gc
import itertools
import platform
import statistics
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import autodropout as ad
from autodropout.data import Labelled, Splits
from autodropout.layers import Baseline
from autodropout.models import image_model
from autodropout.models.transformer_xl import TransformerXL, TransformerXLSize
from autodropout.recipes import images as recipes
from autodropout.spaces import TRANSFORMER_SITES, ConvGroup
from autodropout.training import Run
from autodropout.training.augment import NoMix
from autodropout.training.image_learner import Learner, Objective
from autodropout.training.images import ImageTraining
from recording import facts, options, write

RATE = 0.2
LIMIT = 1.5  # of a policy's overhead to nn.Dropout's
CONVNET_ROLES = ("main", "shortcut", "identity")
POLICY_CASES = ("wrn-28-2", "resnet50", "transformer-xl")
DATA_CASES = ("wrn-28-2", "wrn-28-10", "wrn-28-10-randaugment", "resnet50", "resnet50-randaugment")
Step = Callable[[], None]


@dataclass(frozen=True)
class NnDropout:
    """torch's own as a rule. Its rate is a Python float, so all sites have one; the cost does not depend on it."""

    def __call__(self, h: Tensor, rate: Tensor, seed: Tensor) -> Tensor:
        return F.dropout(h, RATE)


NN_DROPOUT = Baseline("nn.Dropout", NnDropout(), CONVNET_ROLES, TRANSFORMER_SITES)


def full_policy(space: ad.ConvSpace | ad.TransformerSpace) -> ad.Policy:
    """A pattern at every site."""
    if isinstance(space, ad.ConvSpace):
        pattern = ad.ConvPattern(
            size=2, stride=2, repeat=4, share_c=False, residual=True, rotate=75, shear_x=0.55, shear_y=0.55
        )
        groups = tuple(ConvGroup(searched_at=size, pattern=pattern) for size in space.groups)
        return ad.ConvPolicy(groups=groups, resolution=space.resolution)
    pattern = ad.SequencePattern(size=20, stride=10, share_t=False, share_c=False)
    return ad.TransformerPolicy(sites=dict.fromkeys(space.sites, pattern))


def image_step(name: str, batch: int, size: int, regularizer: str, device: torch.device) -> Step:
    torch.manual_seed(0)
    model = image_model(name, classes=10 if size < 64 else 1000).to(device)
    images = torch.randn(batch, 3, size, size, device=device)
    labels = torch.arange(batch, device=device) % 10
    put(model, regularizer, images[:1])
    return stepping(model, lambda: F.cross_entropy(model(images), labels))


def language_step(layers: int, batch: int, segment: int, regularizer: str, device: torch.device) -> Step:
    """The paper's model for Penn Treebank: width 380, 10 heads of 38, inner 900, segments and memory of 70."""
    torch.manual_seed(0)
    size = TransformerXLSize(layers=layers, width=380, heads=10, head_size=38, inner=900, memory=segment)
    model = TransformerXL(10_000, size).to(device)
    words = torch.randint(10_000, (batch, segment), device=device)
    memory = model.blank_memory(batch)
    put(model, regularizer, (words, memory))
    return stepping(
        model, lambda: F.cross_entropy(model.logits(model(words, memory)[0]).flatten(0, 1), words.flatten())
    )


def put(model: nn.Module, regularizer: str, example: object) -> None:
    if regularizer == "nothing":
        return
    space = ad.space(model, example)
    everywhere = CONVNET_ROLES if isinstance(space, ad.ConvSpace) else space.sites
    chosen = {
        "nn.Dropout": NN_DROPOUT,
        "our Dropout": ad.baseline("dropout", sites=everywhere),
        "policy": full_policy(space),
    }[regularizer]
    ad.attach(model, chosen, rate=RATE, example=example)


def stepping(model: nn.Module, loss: Callable[[], Tensor]) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    model.train()

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return step


def interleaved(steps: dict[str, Step], rounds: int, repeats: int, device: torch.device) -> dict[str, list[float]]:
    """Seconds a step, of each variant in each round."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(rounds + 1):
        for name, step in steps.items():
            start = time.perf_counter()
            for _ in range(repeats):
                step()
            if device.type == "cuda":
                torch.cuda.synchronize()
            if turn:  # the first round warms up
                times[name].append((time.perf_counter() - start) / repeats)
    return times


def quartiles(values: list[float]) -> list[float]:
    return [round(value, 5) for value in statistics.quantiles(values, n=4)]


def overheads(times: dict[str, list[float]]) -> dict[str, object]:
    """Of each variant: steps a second, its overhead in ms with quartiles, and that as a multiple of nn.Dropout's."""
    nothing = times["nothing"]
    over = {name: [t - n for t, n in zip(times[name], nothing, strict=True)] for name in times}
    dropout = statistics.median(over["nn.Dropout"])
    return {
        name: {
            "steps_per_s": round(1 / statistics.median(values), 3),
            "ms": quartiles([1e3 * t for t in values]),
            "overhead_ms": quartiles([1e3 * t for t in over[name]]),
            "overhead_of_nn_dropout": round(statistics.median(over[name]) / dropout, 3),
            "raw_ms": [round(1e3 * t, 3) for t in values],
        }
        for name, values in times.items()
    }


def cost_of_policies(
    smoke: bool, rounds: int, device: torch.device, chosen: Collection[str]
) -> Iterator[dict[str, object]]:
    on_gpu = device.type == "cuda"
    repeats = 20 if on_gpu else 1
    variants = ("nothing", "nn.Dropout", "our Dropout", "policy")
    small, large, texts = (128, 64, 16) if on_gpu else (32, 8, 4)
    cases: list[tuple[str, Callable[[str], Step]]] = [
        (f"WRN-28-2, batch {small}, 32x32", lambda v: image_step("wrn-28-2", small, 32, v, device)),
        (f"ResNet-50, batch {large}, 224x224", lambda v: image_step("resnet50", large, 224, v, device)),
        (f"Transformer-XL, 16 layers, batch {texts} x 70", lambda v: language_step(16, texts, 70, v, device)),
    ]
    cases = [case for key, case in zip(POLICY_CASES, cases, strict=True) if key in chosen]
    if smoke:
        cases = [
            ("WRN-10-1, batch 4, 20x20", lambda v: image_step("wrn-10-1", 4, 20, v, device)),
            ("Transformer-XL, 1 layer, batch 2 x 20", lambda v: language_step(1, 2, 20, v, device)),
        ]
    for case, make in cases:
        rows = overheads(interleaved({name: make(name) for name in variants}, rounds, repeats, device))
        result = {"case": case, "rounds": rounds, "variants": rows}
        show(result)
        yield result


def show(result: dict) -> None:
    print(f"\n{result['case']}, {result['rounds']} rounds, medians")
    print(f"{'':14}{'steps/s':>9}{'ms':>9}{'overhead ms':>13}{'of nn.Dropout':>15}")
    for name, row in result["variants"].items():
        ratio = f"{row['overhead_of_nn_dropout']:.2f}" if name != "nothing" else ""
        print(f"{name:14}{row['steps_per_s']:>9.2f}{row['ms'][1]:>9.1f}{row['overhead_ms'][1]:>13.1f}{ratio:>15}")
    kept = result["variants"]["policy"]["overhead_of_nn_dropout"] <= LIMIT
    print(f"the policy's overhead is to be at most {LIMIT} times that of nn.Dropout: {'yes' if kept else 'NO'}")


def cost_of_data(smoke: bool, rounds: int, chosen: Collection[str]) -> Iterator[dict[str, object]]:
    """On the GPU: whole steps of a training, with its images and with one batch made beforehand."""
    device = torch.device("cuda")
    for name, training, stored in data_cases(smoke, chosen):
        for compiled in (False, True):
            start = time.perf_counter()
            run = Run(device=device, precision="bfloat16", compile=compiled)
            times = interleaved(data_steps(training, stored, run), rounds, 3 if smoke else 30, device)
            shares = [1 - fixed / real for real, fixed in zip(times["with data"], times["one batch"], strict=True)]
            row: dict[str, object] = {"case": name, "compiled": compiled, "rounds": rounds, "share": quartiles(shares)}
            row |= {f"{label}, ms": quartiles([1e3 * t for t in values]) for label, values in times.items()}
            row["all_s"] = round(time.perf_counter() - start, 1)  # compilation included
            step, share = 1e3 * statistics.median(times["with data"]), statistics.median(shares)
            how = "compiled" if compiled else "eager"
            print(f"{name}, {how}: {step:.2f} ms a step, {share:.1%} for data; {row['all_s']} s in all", flush=True)
            yield row
            torch.compiler.reset()  # nothing of it fits the next case, and its graphs hold memory
            gc.collect()
            torch.cuda.empty_cache()


def data_cases(smoke: bool, chosen: Collection[str]) -> list[tuple[str, ImageTraining, int]]:
    """A name, a training, and the size of its stored images."""
    cifar, imagenet = recipes.cifar10_search(), recipes.resnet50_search()
    wide = replace(recipes.cifar10_final("randaugment"), batch=128)
    imagenet = replace(imagenet, model="resnet50")
    randaugment = replace(imagenet, augmentation="imagenet_randaugment")
    cases = [
        ("WRN-28-2, batch 128, standard", replace(cifar, batch=128), 32),
        ("WRN-28-10, batch 128, standard", replace(wide, augmentation="standard"), 32),
        ("WRN-28-10, batch 128, RandAugment", wide, 32),
        ("ResNet-50, batch 256, resized crop", imagenet, 256),
        ("ResNet-50, batch 256, RandAugment", randaugment, 256),
    ]
    return cases[:1] if smoke else [case for key, case in zip(DATA_CASES, cases, strict=True) if key in chosen]


def random_splits(training: ImageTraining, stored: int) -> Splits:
    count = (100 if stored < 64 else 8) * training.batch  # an epoch begins as rarely as in a training
    images = torch.randint(256, (count, 3, stored, stored), dtype=torch.uint8)
    part = Labelled(images, torch.arange(count) % training.pictures.kind.classes)
    return Splits(part, part[:1], part[:1])


def data_steps(training: ImageTraining, stored: int, run: Run) -> dict[str, Step]:
    """Steps of one learner: on its own images, and on a batch that lies ready, compiled alike."""
    learner = Learner(training, random_splits(training, stored), None, 0.0, 0, run, ExitStack())
    images = torch.randn(training.batch, 3, training.resolution, training.resolution, device=run.where)
    labels = torch.arange(training.batch, device=run.where) % 10
    objective, numbers = learner.objective, itertools.count()
    loss, mix, as_it_is = run.compiled(training.loss), NoMix(training.pictures.kind.classes), nn.Identity()

    def losses(forward: nn.Module, step: int) -> dict[str, Tensor]:
        return {"train_loss": loss(forward, mix, as_it_is, images, labels)}

    def stepping_on(chosen: Objective) -> Step:
        def step() -> None:
            learner.objective = chosen
            if run.compile:
                torch.compiler.cudagraph_mark_step_begin()  # as a `Loop` does
            learner.step(next(numbers))

        return step

    return {"with data": stepping_on(objective), "one batch": stepping_on(losses)}


def main() -> None:
    parser = options(__doc__, None, smoke="small models and few rounds")
    parser.add_argument("--cuda", action="store_true", help="on the GPU, and what data and augmentation take there")
    parser.add_argument("--only", choices=("policies", "data"), help="one half of what --cuda measures")
    every = tuple(dict.fromkeys((*POLICY_CASES, *DATA_CASES)))
    parser.add_argument(
        "--cases", nargs="+", choices=every, default=every, metavar="NAME", help=f"of {', '.join(every)}"
    )
    parser.add_argument("--rounds", type=int, default=12)
    args = parser.parse_args()
    if args.only and not args.cuda:
        parser.error(f"--only {args.only} chooses among what --cuda measures")
    device = torch.device("cuda" if args.cuda else "cpu")
    out = args.out or Path(f"results/training-{device.type}.json")
    rounds = 2 if args.smoke else args.rounds
    machine = torch.cuda.get_device_name() if args.cuda else f"{platform.machine()}, {torch.get_num_threads()} threads"
    what = f"whole training steps, rate {RATE}, interleaved rounds; quartiles over rounds"
    record = facts(what, ("torch",), machine)
    parts: dict[str, Iterator[dict[str, object]]] = {}
    if args.only != "data":
        parts["policies"] = cost_of_policies(args.smoke, rounds, device, args.cases)
    if args.cuda and args.only != "policies":
        parts["data"] = cost_of_data(args.smoke, rounds, args.cases)
    for part, results in parts.items():
        record[part] = []
        for result in results:
            record[part].append(result)
            write(record, out)  # after each case: a figure that was paid for is not lost
    print(f"\nraw times: {out}")


if __name__ == "__main__":
    main()
