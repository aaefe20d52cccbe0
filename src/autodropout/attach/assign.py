"""Which rule and which share of the rate each site gets: a policy or a baseline, laid over what discovery found."""

from collections.abc import Iterable, Mapping
from typing import Literal

from autodropout.attach.sites import FUSED, Finding, Role, Site
from autodropout.layers import Baseline, ConvRule, Rule, SequenceRule
from autodropout.layers.baselines import BRANCH_END
from autodropout.spaces import ConvPattern, ConvPolicy, Policy, SequencePattern, TransformerPolicy

Depth = Literal["linear", "constant"]
_UNFUSE = (
    "unfused attention makes them reachable: softmax, an nn.Dropout (of 0.0, say), then the product; "
    "in timm, call timm.layers.set_fused_attn(False) before building the model"
)


def rules(policy: Policy | Baseline, finding: Finding, *, skip_missing: bool = False) -> dict[str, Rule]:
    """The rule of each site, by its name; sites that are left alone are missing.

    What a Transformer policy asks for and the model lacks is an error, or with `skip_missing` left out (`left_out`).
    """
    if isinstance(policy, Baseline):
        return _of_baseline(policy, finding)
    if isinstance(policy, ConvPolicy):
        return _of_conv_policy(policy, finding)
    return _of_transformer_policy(policy, finding, skip_missing)


def left_out(policy: Policy | Baseline, finding: Finding) -> tuple[str, ...]:
    """Told like `Finding.unreached`: what the policy asks for where discovery saw nothing that it could be."""
    lacking = _lacking(policy, finding) if isinstance(policy, TransformerPolicy) else []
    return tuple(f"the model: {role}: no layer has it" for role in lacking if role not in finding.missed)


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


def _of_transformer_policy(policy: TransformerPolicy, finding: Finding, skip_missing: bool) -> dict[str, Rule]:
    chosen: dict[str, Rule] = {
        site.name: SequenceRule(policy.sites[site.role])
        for site in finding.sites
        if site.role in policy.sites and not policy.sites[site.role].is_none
    }
    lacking = _lacking(policy, finding)
    if lacking and not (skip_missing and chosen):
        rest = "skip_missing=True attaches the rest" if chosen else "nothing of the policy is left without"
        raise ValueError(_missing(f"the policy asks for {', '.join(lacking)}", lacking, finding) + f"\n  {rest}")
    return chosen


def _lacking(policy: TransformerPolicy, finding: Finding) -> list[str]:
    """The sites that the policy asks for and no layer of the model has."""
    roles = {site.role for site in finding.sites}
    return [name for name, pattern in policy.sites.items() if not pattern.is_none and name not in roles]


def _of_baseline(baseline: Baseline, finding: Finding) -> dict[str, Rule]:
    wanted = baseline.convnet if finding.kind == "convnet" else baseline.transformer
    assert wanted, "discover_for looks for the kind of model that a baseline is for"
    chosen = {site.name: baseline.rule for site in finding.sites if _asks_for(baseline, wanted, site)}
    there = {site.group for site in finding.sites}
    if not chosen or (finding.kind == "convnet" and not there.issuperset(baseline.groups or ())):
        raise ValueError(_nowhere(baseline, wanted, finding))
    return chosen


def _asks_for(baseline: Baseline, wanted: tuple[str, ...], site: Site) -> bool:
    if baseline.groups is not None and site.group not in baseline.groups:
        return False
    return site.role in wanted or (site.ends_block and BRANCH_END[0] in wanted)


def _nowhere(baseline: Baseline, wanted: tuple[str, ...], finding: Finding) -> str:
    """Why a baseline has no site in this model: it has none of the groups, or none such in them."""
    ask = f"the baseline {baseline.name!r} goes to {', '.join(wanted)}"
    if baseline.groups is None:
        return _missing(ask, wanted, finding)
    ask += f" of group {', '.join(map(str, baseline.groups))}"
    if finding.kind != "convnet":
        return f"{ask}, and a {finding.kind} has no groups"
    sizes = enumerate(group_sizes(finding), start=1)
    there = "; ".join(
        f"{number} ({h}x{w}: {_found(site for site in finding.sites if site.group == number)})"
        for number, (h, w) in sizes
    )
    return f"{ask}, which this model lacks; its groups are {there}"


def _missing(ask: str, lacking: Iterable[str], finding: Finding) -> str:
    """What is asked for, what there is, and each reason once, with the number of layers of which it is true."""
    lines = [f"{ask}, which this model lacks; found: {_found(finding.sites)}"]
    if finding.kind == "convnet":
        lines += [f"not reached: {reason}" for reason in finding.unreached]
    for role in lacking:
        for reason, count in finding.missed.get(role, {}).items():
            lines.append(f"not reached: {role} in {count} layer{'s' if count > 1 else ''}: {reason}")
            if reason == FUSED:
                lines.append(_UNFUSE)
    return "\n  ".join(lines)


def _found(sites: Iterable[Site]) -> str:
    return ", ".join(dict.fromkeys(site.role for site in sites))
