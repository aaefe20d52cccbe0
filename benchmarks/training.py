"""What a policy costs in a whole training step: forward, backward, optimizer.

    python benchmarks/training.py [--device cuda] [--smoke] [--out results/training-cpu.json]

Three models, each without anything, with torch's own dropout at every site a policy can reach, and with a policy that
uses every one of them with the costliest pattern. Rounds are interleaved, so that a slow moment of the machine hits
all; a ratio is the median over rounds. The goal: the policy adds at most 1.5 times what dropout adds.

On CUDA (bfloat16, channels_last; eager, and compiled) also what data and augmentation take of a step, at most 5%:
uint8 images on the device, indexed and augmented, against the whole step that follows.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import autodropout as ad
from autodropout.data import Labelled
from autodropout.layers.baselines import Baseline
from autodropout.models import image_model
from autodropout.models.transformer_xl import TransformerXL
from autodropout.recipes.language import TRANSFORMER_XL
from autodropout.spaces import TRANSFORMER_SITES, ConvPattern, SequencePattern
from autodropout.training.feed import Feed
from autodropout.training.pictures import Pictures

RATE = 0.2
CONV_PATTERN = ConvPattern(
    size=2, stride=2, repeat=4, share_c=False, residual=True, rotate=75, shear_x=0.55, shear_y=0.55
)
TEXT_PATTERN = SequencePattern(size=20, stride=10, share_t=False, share_c=False)
VOCABULARY, SEGMENT = 10_000, 70


@dataclass(frozen=True)
class TorchDropout:
    """What `nn.Dropout` does, as a rule; its rate is a plain number."""

    def __call__(self, h: Tensor, rate: Tensor, seed: Tensor) -> Tensor:
        return F.dropout(h, RATE)


EVERYWHERE = Baseline("torch dropout", TorchDropout(), ("main", "shortcut", "identity"), TRANSFORMER_SITES)


@dataclass(frozen=True)
class Case:
    name: str
    build: Callable[[], nn.Module]
    example: Callable[[int], Tensor]  # of so many samples
    batch: int
    cuda_batch: int


def cases(smoke: bool) -> list[Case]:
    wide = Case("WRN-28-2, 32x32", lambda: image_model("wrn-28-2", 10), lambda n: torch.randn(n, 3, 32, 32), 32, 128)
    if smoke:
        return [Case("WRN-10-1, 16x16", lambda: image_model("wrn-10-1", 10), lambda n: torch.randn(n, 3, 16, 16), 4, 4)]
    return [
        wide,
        Case(
            "ResNet-50, 224x224", lambda: image_model("resnet50", 1000), lambda n: torch.randn(n, 3, 224, 224), 8, 256
        ),
        Case("Transformer-XL of PTB's size", lambda: Language(), words, 4, 16),
    ]


class Language(nn.Module):
    """Transformer-XL on a segment with a full memory, down to the scores of the next words."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = TransformerXL(VOCABULARY, TRANSFORMER_XL)

    def forward(self, tokens: Tensor) -> Tensor:
        memory = self.inner.blank_memory(len(tokens))
        hidden, _ = self.inner(tokens, memory)
        return self.inner.logits(self.inner.softmax_dropout(hidden)).flatten(0, 1)  # (N T, words)


def words(samples: int) -> Tensor:
    return torch.randint(VOCABULARY, (samples, SEGMENT))


def worst_policy(model: nn.Module, example: Tensor) -> ad.Policy:
    space = ad.space(model, example)
    if isinstance(space, ad.ConvSpace):
        return space.decode(CONV_PATTERN.encode() * len(space.groups))
    return space.decode(TEXT_PATTERN.encode() * len(space.sites))


class Trained:
    """A model with its optimizer; `step()` is one step on a batch that stays."""

    def __init__(self, case: Case, variant: str, device: torch.device, compiled: bool) -> None:
        torch.manual_seed(0)
        cuda = device.type == "cuda"
        model = case.build()
        example = case.example(2)
        if variant != "none":
            regularizer = EVERYWHERE if variant == "dropout" else worst_policy(model, example)
            ad.attach(model, regularizer, rate=RATE, example=example)
        model.to(device)
        self.x = case.example(case.cuda_batch if cuda else case.batch).to(device)
        if cuda and self.x.dim() == 4:
            model.to(memory_format=torch.channels_last)
            self.x = self.x.to(memory_format=torch.channels_last)
        self.model = torch.compile(model) if compiled else model
        self.optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9, fused=cuda)
        self.cuda, self.device = cuda, device
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=cuda):
            rows, classes = self.model(self.x).shape
        self.labels = torch.randint(classes, (rows,), device=device)

    def step(self) -> None:
        self.optimizer.zero_grad()
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.cuda):
            loss = F.cross_entropy(self.model(self.x), self.labels)
        loss.backward()
        self.optimizer.step()


def seconds(function: Callable[[], object], times: int, device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(times):
        function()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / times


def interleaved(
    functions: dict[str, Callable[[], object]], rounds: int, times: int, device: torch.device
) -> dict[str, list[float]]:
    for function in functions.values():
        for _ in range(3):
            function()
    found: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            found[name].append(seconds(function, times, device))
    return found


def overhead(case: Case, device: torch.device, compiled: bool, rounds: int, times: int) -> dict[str, object]:
    """Steps per second of the three variants, and what two of them add to the first."""
    variants = ("none", "dropout", "policy")
    steps = {variant: Trained(case, variant, device, compiled).step for variant in variants}
    found = interleaved(steps, rounds, times, device)
    added = [(p - n) / (d - n) for n, d, p in zip(*(found[name] for name in variants), strict=True) if d > n]
    medians = {name: statistics.median(values) for name, values in found.items()}
    return {
        "model": case.name,
        "batch": case.cuda_batch if device.type == "cuda" else case.batch,
        "compiled": compiled,
        "n": rounds,
        "steps_per_s": {name: round(1 / value, 3) for name, value in medians.items()},
        "step_ms": {name: [round(1e3 * value, 3) for value in values] for name, values in found.items()},
        "dropout_over_none": round(
            statistics.median(d / n for n, d in zip(found["none"], found["dropout"], strict=True)), 4
        ),
        "policy_over_none": round(
            statistics.median(p / n for n, p in zip(found["none"], found["policy"], strict=True)), 4
        ),
        "policy_adds_to_dropout_adds": round(statistics.median(added), 3) if added else None,
    }


def data_share(
    name: str, augmentation: str, model: str, batch: int, resolution: int, compiled: bool, rounds: int
) -> dict[str, object]:
    """Indexing and augmenting, against a step that does so and trains."""
    device = torch.device("cuda")
    pictures = Pictures(name=name, train=None, validation=0)
    kind = pictures.kind
    images = torch.randint(256, (4096, kind.channels, kind.size, kind.size), dtype=torch.uint8)
    feed = Feed(Labelled(images, torch.arange(4096) % kind.classes), batch, 0, device)
    view = pictures.view(augmentation, resolution).to(device)
    seen = torch.compile(view) if compiled else view
    case = Case(
        model,
        lambda: image_model(model, kind.classes),
        lambda n: torch.randn(n, 3, resolution, resolution),
        batch,
        batch,
    )
    trained = Trained(case, "none", device, compiled)
    counter = iter(range(10**9))

    def prepare() -> tuple[Tensor, Tensor]:
        chosen, labels = feed(next(counter))
        return seen(chosen), labels

    def whole() -> None:
        shown, trained.labels = prepare()
        trained.x = shown.contiguous(memory_format=torch.channels_last)
        trained.step()

    found = interleaved({"data": prepare, "step": whole}, rounds, 20, device)
    share = statistics.median(d / s for d, s in zip(found["data"], found["step"], strict=True))
    times = {part: round(1e3 * statistics.median(values), 3) for part, values in found.items()}
    return {
        "data": name,
        "augmentation": augmentation,
        "model": model,
        "batch": batch,
        "compiled": compiled,
        "n": rounds,
        "ms": times,
        "share": round(share, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--smoke", action="store_true", help="a tiny model and two rounds, to see that it runs")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device = torch.device(args.device)
    cuda = device.type == "cuda"
    rounds, times = (2, 1) if args.smoke else (15, 10) if cuda else (9, 1)
    record: dict[str, object] = {
        "what": "one training step: nothing, torch's dropout at every site, the costliest policy at the same sites",
        "date": date.today().isoformat(),
        "machine": torch.cuda.get_device_name() if cuda else f"{platform.machine()}, {torch.get_num_threads()} threads",
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }
    rows = []
    print(f"{'model':32}{'batch':>6}{'compiled':>9}{'dropout/none':>14}{'policy/none':>13}{'added':>8}{'steps/s':>10}")
    for case in cases(args.smoke):
        for compiled in (False, True) if cuda else (False,):
            row = overhead(case, device, compiled, rounds, times)
            rows.append(row)
            print(
                f"{case.name:32}{row['batch']:>6}{compiled!s:>9}{row['dropout_over_none']:>14}"
                f"{row['policy_over_none']:>13}{row['policy_adds_to_dropout_adds'] or '-':>8}"
                f"{row['steps_per_s']['none']:>10}",
                flush=True,
            )
    record["steps"] = rows
    if cuda:
        shares = []
        for compiled in (False, True):
            for name, augmentation, model, batch, resolution in (
                ("cifar10", "standard", "wrn-28-2", 128, 32),
                ("cifar10", "standard", "wrn-28-10", 128, 32),
                ("cifar10", "randaugment", "wrn-28-10", 128, 32),
                ("imagenet", "imagenet", "resnet50", 256, 224),
                ("imagenet", "imagenet_randaugment", "resnet50", 256, 224),
            ):
                shares.append(data_share(name, augmentation, model, batch, resolution, compiled, rounds))
                print(shares[-1], flush=True)
        record["data"] = shares
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(record, indent=1) + "\n")
        print(f"\nwritten to {args.out}")


if __name__ == "__main__":
    main()
