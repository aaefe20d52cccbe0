"""What a user may hand to `attach` and its like, and what is said of anything else."""

import os

from torch import nn

from autodropout.layers import BASELINES, Baseline
from autodropout.layers.given import checked_rate, told
from autodropout.spaces import ConvPolicy, Policy, TransformerPolicy


def check_model(model: object) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"the model must be an nn.Module, got {told(model)}")


def check_model_and_policy(model: object, policy: object) -> None:
    if isinstance(model, ConvPolicy | TransformerPolicy | Baseline) and isinstance(policy, nn.Module):
        raise TypeError(f"attach takes the model first and then the policy, got {told(model)} and {told(policy)}")
    check_model(model)
    if not isinstance(policy, ConvPolicy | TransformerPolicy | Baseline):
        raise TypeError(f"attach wants a policy or a baseline, got {told(policy)}{_hint(policy)}")


def check_policy(policy: object) -> None:
    if isinstance(policy, Baseline):
        raise TypeError(f"set_policy wants a policy, got the baseline {policy.name!r}, which is not made of tokens")
    if not isinstance(policy, ConvPolicy | TransformerPolicy):
        raise TypeError(f"set_policy wants a policy, got {told(policy)}{_hint(policy)}")


def choose_rate(policy: Policy | Baseline, rate: float | None) -> float:
    """The rate given, else the one recorded with the policy."""
    recorded = None if isinstance(policy, Baseline) else policy.recorded_rate
    chosen = recorded if rate is None else rate
    if chosen is None:
        nowhere = "a baseline has none of its own" if isinstance(policy, Baseline) else "the policy records none"
        raise ValueError(f"no rate was given, and {nowhere}: pass rate=0.2, say")
    return checked_rate(chosen)


def _hint(policy: object) -> str:
    """How to come to a policy from what was given instead of one."""
    if isinstance(policy, str) and policy in BASELINES:
        return f"; ad.baseline({policy!r}) is the baseline of this name"
    if isinstance(policy, str | os.PathLike):
        return f"; ad.load({os.fspath(policy)!r}) reads a policy by its name or file"
    if isinstance(getattr(policy, "policy", None), ConvPolicy | TransformerPolicy):
        return ", whose policy is its `.policy`"
    return "; ad.load, a space's sample and ad.baseline return such"
