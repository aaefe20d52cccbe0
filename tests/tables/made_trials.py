"""A made-up study: policies whose worth is known, with the noise of seeds, and curves that rise to their values."""

import numpy as np

from autodropout.spaces import TransformerSpace
from autodropout.tables import Entry, Table, TableTrial

SPACE = TransformerSpace(sites=("attention.value", "feedforward.hidden", "feedforward.output"))
TRAININGS = {"small": {"corpus": "made up", "layers": 1}, "large": {"corpus": "made up", "layers": 2}}
NOISE = 0.01
STEPS = 80


def worth(tokens: tuple[int, ...], rate: float = 0.1) -> float:
    """Long patterns are good in the first place and bad in the second; the third should share channels."""
    sizes = [SPACE.tokens[4 * place].values[tokens[4 * place]] for place in range(3)]
    shared = 0.1 if sizes[2] and tokens[11] else 0.0
    return 0.7 + 0.1 * sizes[0] / 70 - 0.1 * sizes[1] / 70 + shared - abs(rate - 0.1)


def trial(number: int, seed: int = 0, **changes: object) -> TableTrial:
    """Trial `number` of random search."""
    tokens = changes.pop("tokens", SPACE.encode(SPACE.sample(number)))
    rate = changes.pop("rate", 0.1)
    steps = changes.get("steps", STEPS)
    noise = NOISE * np.random.default_rng([number, seed]).standard_normal()
    value = changes.pop("value", worth(tokens, rate) + noise)
    curve = () if value is None else tuple((step, value * step / steps) for step in range(10, steps + 1, 10))
    said = {"phase": "search", "method": "random", "training": "small", "steps": STEPS, "curve": curve, "seconds": 1.5}
    return TableTrial(number=number, tokens=tokens, rate=rate, seed=seed, value=value, **(said | changes))


def made(policies: int = 60, seeds: int = 2) -> Table:
    entries = [Entry(trial(number, seed)) for number in range(policies) for seed in range(seeds)]
    return Table("made", SPACE, TRAININGS, entries)
