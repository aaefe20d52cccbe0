"""What the paper does with a policy once it is found: which variants of it are trained (`comparison` trains them).

- `rates`: the final rate is tuned over 0.1, 0.2, ... 0.7 (appendix, "Image Recognition Models");
- `ablations`: the policy with one place emptied, with its patterns moved to other places, or replaced by one classical
  method everywhere ("Qualitative analysis", twice);
- `transferred`: the policy on another task's model ("Transfer learning results"; B0's patterns on B7, "Baselines").

Departures from the paper:
1. It varied "the locations where the dropout patterns are applied" without saying how. We move every pattern to the
   next place, the last one's to the first: as many patterns, none where it was.
"""

from collections.abc import Iterable

from autodropout.layers import baseline
from autodropout.layers.baselines import Baseline
from autodropout.recipes.comparison import Variant
from autodropout.spaces import (
    TRANSFORMER_SITES,
    ConvPattern,
    ConvPolicy,
    ConvSpace,
    Policy,
    SequencePattern,
    Space,
    TransformerPolicy,
    TransformerSpace,
)
from autodropout.training.run import Regularizer


def rates(policy: Policy, values: Iterable[float]) -> list[Variant]:
    """The policy at each rate."""
    return [Variant(f"rate {value:g}", policy, value) for value in values]


def ablations(policy: Policy, rate: float) -> list[Variant]:
    """The whole policy first, then all that may show where its worth lies, and nothing at all."""
    changed = _conv_ablations(policy) if isinstance(policy, ConvPolicy) else _transformer_ablations(policy)
    variants = [Variant("whole", policy, rate)]
    variants += [Variant(name, other, rate) for name, other in changed.items() if other != policy]
    if isinstance(policy, TransformerPolicy):
        everywhere = baseline("variational_dropout", sites=TRANSFORMER_SITES)
        variants.append(Variant("variational dropout everywhere", everywhere, rate))
    return [*variants, Variant("none", None, 0.0)]


def transferred(policy: Policy, space: Space) -> Policy:
    """The policy for another model's space; ValueError when it does not fit there.

    A Transformer policy counts tokens and stays as it is. A ConvNet policy keeps its tokens too: sizes and strides grow
    with the maps when it is attached, and here for the pictures.
    """
    if isinstance(policy, TransformerPolicy):
        if not isinstance(space, TransformerSpace):
            raise ValueError("a Transformer policy cannot go on a ConvNet")
        missing = [name for name, pattern in policy.sites.items() if not pattern.is_none and name not in space.sites]
        if missing:
            raise ValueError(f"the policy asks for {', '.join(missing)}, which the model lacks")
        return policy
    if not isinstance(space, ConvSpace):
        raise ValueError("a ConvNet policy cannot go on a Transformer")
    if len(policy.groups) != len(space.groups):
        raise ValueError(f"the policy has {len(policy.groups)} groups, the model has {len(space.groups)}")
    groups = [group.model_copy(update={"at": size}) for group, size in zip(policy.groups, space.groups, strict=True)]
    return policy.model_copy(update={"groups": tuple(groups)})


def check_fit(regularizer: Regularizer, space: Space) -> None:
    """Raise ValueError, naming the two kinds or sizes, where a policy or a baseline has no place in a space's model."""
    if isinstance(regularizer, Baseline):
        kind, other, places = "ConvNet", "Transformer", regularizer.convnet
        if isinstance(space, TransformerSpace):
            kind, other, places = other, kind, regularizer.transformer
        if not places:
            raise ValueError(f"{regularizer.name} is for {other}s, and this model is a {kind}")
    elif regularizer is not None:
        transferred(regularizer, space)


def _conv_ablations(policy: ConvPolicy) -> dict[str, Policy]:
    patterns = [group.pattern for group in policy.groups]
    found: dict[str, Policy] = {}
    for number, pattern in enumerate(patterns, start=1):
        if not pattern.is_none:
            emptied = [*patterns[: number - 1], pattern.model_copy(update={"size": 0}), *patterns[number:]]
            found[f"without group {number}"] = _with_patterns(policy, emptied)
    found["moved to the next group"] = _with_patterns(policy, [patterns[-1], *patterns[:-1]])
    return found


def _with_patterns(policy: ConvPolicy, patterns: list[ConvPattern]) -> ConvPolicy:
    groups = [
        group.model_copy(update={"pattern": pattern}) for group, pattern in zip(policy.groups, patterns, strict=True)
    ]
    return policy.model_copy(update={"groups": tuple(groups)})


def _transformer_ablations(policy: TransformerPolicy) -> dict[str, Policy]:
    patterns = list(policy.sites.values())
    found: dict[str, Policy] = {}
    for place, (name, pattern) in enumerate(policy.sites.items()):
        if not pattern.is_none:
            emptied = [*patterns[:place], pattern.model_copy(update={"size": 0}), *patterns[place + 1 :]]
            found[f"without {name}"] = _with_sites(policy, emptied)
    moved = [patterns[-1], *patterns[:-1]]
    found["moved to the next site"] = _with_sites(policy, moved)
    return found


def _with_sites(policy: TransformerPolicy, patterns: list[SequencePattern]) -> TransformerPolicy:
    return TransformerPolicy(sites=dict(zip(policy.sites, patterns, strict=True)), provenance=policy.provenance)
