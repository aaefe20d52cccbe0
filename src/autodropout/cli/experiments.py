"""The commands after a search: what the paper does with a policy once it is found.

`train` runs an experiment at its full size; `tune-rate`, `ablate` and `transfer` train several variants with the same
seeds and print a table. Each training has a folder of its own: interrupted, the same command goes on where it was.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from autodropout.cli.options import (
    AsJson,
    BaselineName,
    Bfloat16,
    Compile,
    DataFolder,
    Device,
    FirstSeed,
    MaybePolicy,
    MethodName,
    PolicyFile,
    Proxy,
    Rate,
    Rates,
    RecipeName,
    RecipeRate,
    RunFolder,
    Seed,
    Seeds,
    Smoke,
    Tensorboard,
    Test,
    Together,
)
from autodropout.cli.shell import load_policy
from autodropout.cli.training import Place, train_and_tell

if TYPE_CHECKING:
    from autodropout.recipes import Recipe
    from autodropout.recipes.comparison import Variant
    from autodropout.recipes.recipe import Training
    from autodropout.spaces import Policy
    from autodropout.training.run import Regularizer


def train(
    recipe: RecipeName,
    policy: MaybePolicy = None,
    baseline: BaselineName = None,
    method: MethodName = None,
    rate: Rate = None,
    seed: Seed = 0,
    proxy: Proxy = False,
    smoke: Smoke = False,
    out: RunFolder = None,
    data: DataFolder = None,
    device: Device = None,
    bfloat16: Bfloat16 = False,
    compiled: Compile = None,
    tensorboard: Tensorboard = False,
    test: Test = False,
    as_json: AsJson = False,
) -> None:
    """Train an experiment's model once.

    The full-size run of the recipe, under a policy, a classical method, or nothing. Killed or interrupted, the same
    command goes on where it was; on several GPUs: torchrun --nproc-per-node 8 -m autodropout train ...

    \b
    Examples:
      autodropout train cifar10 --policy policy.json --rate 0.6 --test
      autodropout train cifar10 --policy policy.json --rate 0.6 --method randaugment --test
      autodropout train cifar10 --baseline dropblock --rate 0.1 --test
      autodropout train digits --smoke
    """
    chosen, what = _regularizer(policy, baseline)
    if chosen is None and rate is not None:
        raise ValueError(f"--rate {rate}: there is nothing to drop without --policy or --baseline")
    if proxy and method is not None:
        raise ValueError(f"--proxy and --method {method}: choose one, methods are full-size trainings")
    found = _recipe(recipe, smoke)
    training = found.proxy if proxy else found.final
    if method is not None:
        training, what = _with_method(found, method), f"{what}-{method}"
    place = Place(out or Path("out") / recipe / f"train-{what}", data, device, bfloat16, compiled, tensorboard, test)
    at = 0.0 if chosen is None else _rate(rate, chosen, found)
    train_and_tell(training, [_variant(what, chosen, at)], [seed], place, as_json, smoke=smoke)


def tune_rate(
    recipe: RecipeName,
    policy: PolicyFile,
    rates: Rates = None,
    seeds: Seeds = 1,
    first_seed: FirstSeed = 100,
    proxy: Proxy = False,
    smoke: Smoke = False,
    out: RunFolder = None,
    data: DataFolder = None,
    device: Device = None,
    bfloat16: Bfloat16 = False,
    compiled: Compile = None,
    together: Together = 1,
    as_json: AsJson = False,
) -> None:
    """Find the final rate of a policy.

    Train with each of several rates, judge on the validation set.

    \b
    Examples:
      autodropout tune-rate cifar10 --policy policy.json --rates 0.2,0.4,0.6
      autodropout tune-rate ptb-small --policy policy.json --seeds 4 --together 28 --bfloat16
    """
    from autodropout.recipes import after

    found = _recipe(recipe, smoke)
    training = found.proxy if proxy else found.tuning or found.final
    variants = after.rates(load_policy(policy), found.rates if rates is None else _numbers(rates))
    place = Place(out or Path("out") / recipe / "tune-rate", data, device, bfloat16, compiled)
    train_and_tell(training, variants, range(first_seed, first_seed + seeds), place, as_json, together, True, smoke)


def ablate(
    recipe: RecipeName,
    policy: PolicyFile,
    rate: Rate = None,
    seeds: Seeds = 1,
    first_seed: FirstSeed = 200,
    proxy: Proxy = False,
    smoke: Smoke = False,
    out: RunFolder = None,
    data: DataFolder = None,
    device: Device = None,
    bfloat16: Bfloat16 = False,
    compiled: Compile = None,
    together: Together = 1,
    as_json: AsJson = False,
) -> None:
    """See where a policy's worth lies.

    Train it with each group or site emptied, moved, or replaced.

    \b
    Example:
      autodropout ablate ptb --policy policy.json --seeds 5 --proxy
    """
    from autodropout.recipes import after

    found = _recipe(recipe, smoke)
    training = found.proxy if proxy else found.tuning or found.final
    whole = load_policy(policy)
    variants = after.ablations(whole, _rate(rate, whole, found))
    place = Place(out or Path("out") / recipe / "ablate", data, device, bfloat16, compiled)
    train_and_tell(training, variants, range(first_seed, first_seed + seeds), place, as_json, together, smoke=smoke)


def transfer(
    recipe: RecipeName,
    policy: PolicyFile,
    rate: RecipeRate = None,
    seeds: Seeds = 1,
    first_seed: FirstSeed = 300,
    proxy: Proxy = False,
    smoke: Smoke = False,
    out: RunFolder = None,
    data: DataFolder = None,
    device: Device = None,
    bfloat16: Bfloat16 = False,
    compiled: Compile = None,
    together: Together = 1,
    test: Test = False,
    as_json: AsJson = False,
) -> None:
    """Use a policy on another task than it was found on.

    It is trained beside no policy at all. A ConvNet policy's sizes and strides grow with the maps; a Transformer policy
    counts tokens and stays as it is. The scaled policy is left in the folder, with the rate it was trained at.

    \b
    Example:
      autodropout transfer wikitext2 --policy ptb.json
    """
    from autodropout.recipes import after

    found = _recipe(recipe, smoke)
    training = found.proxy if proxy else found.final
    moved = after.transferred(load_policy(policy), training.space())
    place = Place(out or Path("out") / recipe / "transfer", data, device, bfloat16, compiled, test=test)
    own = moved.recorded_rate
    if rate is None and own not in (None, found.rate):
        known = f"rate {found.rate:g} is the recipe's; the policy was found at {own:g}"
        typer.echo(f"{known}: --rate {own:g} to keep that", err=True)
    at = found.rate if rate is None else rate
    variants = [_variant("none", None, 0.0), _variant("policy", moved, at)]
    place.run(training)  # raises where nothing can be trained: then an earlier transfer's policy stays
    place.out.mkdir(parents=True, exist_ok=True)
    _moved_to(recipe, moved, at).save(place.out / "policy.json")
    train_and_tell(training, variants, range(first_seed, first_seed + seeds), place, as_json, together, smoke=smoke)


def _moved_to(recipe: str, policy: "Policy", rate: float) -> "Policy":
    """The policy with the rate that it has on this task; its score was another's."""
    from autodropout.spaces import Provenance

    known = {} if policy.provenance is None else policy.provenance.model_dump(exclude_none=True)
    was = [f"{what} {known[what]:g}" for what in ("rate", "score") if what in known]
    note = "; ".join([f"transferred to {recipe}", *([f"before that: {', '.join(was)}"] if was else [])])
    if "note" in known:
        note += f"; {known['note']}"
    provenance = Provenance.model_validate(known | {"rate": rate, "score": None, "note": note})
    return policy.model_copy(update={"provenance": provenance})


def _recipe(name: str, smoke: bool) -> "Recipe":
    from autodropout import recipes as known

    found = known.get(name)
    if not smoke:
        return found
    small = found.smoke()
    used, meant = small.final.reads.dataset, found.final.reads.dataset
    if used != meant:
        typer.echo(f"--smoke: on {used} in place of {meant}, to see that it runs; its scores mean nothing", err=True)
    return small


def _rate(asked: float | None, regularizer: "Regularizer", recipe: "Recipe") -> float:
    """As `ad.attach` has it: a policy remembers its rate."""
    recorded = getattr(regularizer, "recorded_rate", None)  # a baseline has none
    return next(rate for rate in (asked, recorded, recipe.rate) if rate is not None)


def _with_method(recipe: "Recipe", name: str) -> "Training":
    if name not in recipe.methods:
        known = ", ".join(recipe.methods) or "none"
        raise ValueError(f"recipe {recipe.name!r} has no method {name!r}; it has {known}")
    return recipe.methods[name]


def _regularizer(policy: str | None, baseline: str | None) -> "tuple[Regularizer, str]":
    from autodropout.layers import baseline as named

    if policy is not None and baseline is not None:
        raise ValueError(f"--policy {policy} and --baseline {baseline}: choose one")
    if policy is not None:
        return load_policy(policy), "policy"
    return (None, "none") if baseline in (None, "none") else (named(baseline), baseline)


def _variant(name: str, regularizer: "Regularizer", rate: float) -> "Variant":
    from autodropout.recipes.comparison import Variant

    return Variant(name, regularizer, rate)


def _numbers(text: str) -> list[float]:
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--rates needs numbers with commas between them, got {text!r}") from None
    if not all(0.0 <= rate <= 1.0 for rate in found) or len(set(found)) < len(found):
        raise ValueError(f"--rates must lie in [0, 1], each there once, got {text!r}")
    return found
