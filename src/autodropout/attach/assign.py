"""Which rule and which share of the rate each site gets: a policy or a baseline, laid over what discovery found."""

from collections.abc import Mapping
from typing import Literal

from autodropout.attach.sites import Finding, Role, Site
from autodropout.layers import Baseline, ConvRule, Rule, SequenceRule
from autodropout.layers.baselines import BRANCH_END
from autodropout.spaces import ConvPattern, ConvPolicy, Policy, SequencePattern, TransformerPolicy

Depth = Literal["linear", "constant"]


def rules(policy: Policy | Baseline, finding: Finding) -> dict[str, Rule]:
    """The rule of each site, by its name; sites that are left alone are missing."""
    if isinstance(policy, Baseline):
        return _of_baseline(policy, finding)
    if isinstance(policy, ConvPolicy):
        return _of_conv_policy(policy, finding)
    return _of_transformer_policy(policy, finding)


def at_every_site(chosen: Mapping[str, Rule], finding: Finding) -> dict[str, Rule]:
    """A policy's rules and, for the sites that it leaves alone, rules that drop nothing."""

    def nothing(site: Site) -> Rule:
        if finding.kind == "convnet":
            return ConvRule(ConvPattern.none(), (site.shape[2], site.shape[3]))
        return SequenceRule(SequencePattern.none())

    return {site.name: chosen.get(site.name) or nothing(site) for site in finding.sites}


def shares(finding: Finding, depth: Depth) -> dict[str, float]:
    """Each site's share of the rate. Linear: main-branch site l of L has l/L, a shortcut its block's last share."""
    if depth == "constant":
        return {site.name: 1.0 for site in finding.sites}
    main = [site for site in finding.sites if site.role == Role.MAIN] or list(finding.sites)
    share = {site.name: number / len(main) for number, site in enumerate(main, start=1)}
    last_in_block: dict[str | None, float] = {site.block: share[site.name] for site in main}
    latest = 0.0
    result = {}
    for site in finding.sites:
        latest = max(latest, share.get(site.name, 0.0))
        result[site.name] = share.get(site.name, last_in_block.get(site.block, latest))
    return result


def group_sizes(finding: Finding) -> tuple[tuple[int, int], ...]:
    """(height, width) of a ConvNet's groups, in order: their main sites', since a shortcut may be pooled on its way."""
    sizes: dict[int, tuple[int, int]] = {}
    for site in sorted(finding.sites, key=lambda site: site.role != Role.MAIN):
        assert site.group is not None
        sizes.setdefault(site.group, (site.shape[2], site.shape[3]))
    return tuple(sizes[number] for number in sorted(sizes))


def _of_conv_policy(policy: ConvPolicy, finding: Finding) -> dict[str, Rule]:
    sizes = group_sizes(finding)
    if len(sizes) != len(policy.groups):
        found = ", ".join(f"{h}x{w}" for h, w in sizes)
        wanted = ", ".join(f"{g.searched_at[0]}x{g.searched_at[1]}" for g in policy.groups)
        raise ValueError(
            f"the policy has {len(policy.groups)} groups (searched at {wanted}), the model has {len(sizes)} ({found})"
        )
    chosen: dict[str, Rule] = {}
    for site in finding.sites:
        assert site.group is not None
        group = policy.groups[site.group - 1]
        if not group.pattern.is_none and (site.role == Role.MAIN or group.pattern.residual):
            chosen[site.name] = ConvRule(group.pattern, group.searched_at)
    return chosen


def _of_transformer_policy(policy: TransformerPolicy, finding: Finding) -> dict[str, Rule]:
    roles = {site.role for site in finding.sites}
    missing = [name for name, pattern in policy.sites.items() if not pattern.is_none and name not in roles]
    if missing:
        raise ValueError(_missing(f"the policy asks for {', '.join(missing)}", finding))
    return {
        site.name: SequenceRule(policy.sites[site.role])
        for site in finding.sites
        if site.role in policy.sites and not policy.sites[site.role].is_none
    }


def _of_baseline(baseline: Baseline, finding: Finding) -> dict[str, Rule]:
    wanted = baseline.convnet if finding.kind == "convnet" else baseline.transformer
    if not wanted:
        raise ValueError(f"the baseline {baseline.name!r} is not for a {finding.kind}")
    chosen = {site.name: baseline.rule for site in finding.sites if _asks_for(baseline, wanted, site)}
    if not chosen:
        raise ValueError(_missing(f"the baseline {baseline.name!r} goes to {', '.join(wanted)}", finding))
    return chosen


def _asks_for(baseline: Baseline, wanted: tuple[str, ...], site: Site) -> bool:
    if baseline.groups is not None and site.group not in baseline.groups:
        return False
    return site.role in wanted or (site.ends_block and BRANCH_END[0] in wanted)


def _missing(ask: str, finding: Finding) -> str:
    found = ", ".join(dict.fromkeys(site.role for site in finding.sites))
    reasons = "".join(f"\n  not reached: {reason}" for reason in finding.unreached)
    return f"{ask}, which this model lacks; found: {found}{reasons}"
