"""The report's longer sections: what the proposer preferred over time, the best policies, the failures."""

from collections import defaultdict
from dataclasses import dataclass
from html import escape
from itertools import islice, pairwise

import numpy as np

from autodropout.report.charts import picture
from autodropout.report.history import Floats, History
from autodropout.report.masks import Masks, policy_masks
from autodropout.search.reading import Reader
from autodropout.search.records import Trial
from autodropout.search.states import PENDING, State
from autodropout.search.url import Address
from autodropout.spaces import ConvSpace, Space, Token, canonical
from autodropout.spaces.patterns import TokenValue

WINDOWS = 48  # at most so many columns in a heat map
TOP = 5  # policies shown
FAILURES = 200  # the newest ones are read
DISTINCT = 20  # different ones shown
_BLUE, _GREY = (0.23, 0.47, 0.86), (0.5, 0.52, 0.55)  # seen on white and on black


def tokens_section(history: History) -> str:
    """How often each value was proposed, over time."""
    title = "<h2>What was proposed, over time</h2>\n"
    if not len(history):
        return f'{title}<p class="none">Nothing has been proposed yet.</p>'
    tokens = history.info.space.tokens
    shares = token_shares(history)
    windows = shares[0].shape[1]
    said = (
        f"A map for each token: its values from bottom to top, {_many(len(history), 'trial')} from left to right in "
        f"{_many(windows, 'column')}. The fuller the colour, the more often the value was proposed; above each map the "
        "commonest value of the last column."
    )
    places: dict[str, list[str]] = defaultdict(list)
    for token, share in zip(tokens, shares, strict=True):
        place, _, name = token.name.rpartition(".")
        places[place].append(_heat_map(name, token, share))
    said_of = _places(history.info.space)
    kind = "places narrow" if max(map(len, places.values())) <= 4 else "places"
    maps = "".join(
        f'<section><h3>{escape(said_of.get(place, place))}</h3><div class="maps">{"".join(drawn)}</div></section>'
        for place, drawn in places.items()
    )
    return f'{title}<p class="dim">{said}</p>\n<div class="{kind}">{maps}</div>'


def token_shares(history: History) -> list[Floats]:
    """For each position a (values, windows) array: the share of each value among a window's trials, by number."""
    windows = max(1, min(WINDOWS, len(history) // history.info.minibatch))
    bounds = np.linspace(0, len(history), windows + 1).astype(int)
    shares = []
    for position, token in enumerate(history.info.space.tokens):
        column = history.tokens[:, position]
        counts = [
            np.bincount(column[start:stop], minlength=len(token.values)) / (stop - start)
            for start, stop in pairwise(bounds)
        ]
        shares.append(np.stack(counts, axis=1))
    return shares


def _places(space: Space) -> dict[str, str]:
    """The names of groups as people write them, with the size of their maps."""
    groups = space.groups if isinstance(space, ConvSpace) else ()
    return {f"group{n}": f"group {n}, {height}x{width}" for n, (height, width) in enumerate(groups, start=1)}


def _heat_map(name: str, token: Token, share: Floats) -> str:
    common = int(share[:, -1].argmax())
    texts = [_text(value) for value in reversed(token.values)]
    few = len(texts) <= 8
    labels = "".join(f"<span>{escape(text)}</span>" for text in (texts if few else (texts[0], texts[-1])))
    # The root, since 1 in 32 should be seen too.
    drawn = picture(np.sqrt(share[::-1]), _BLUE, f"how often each value of {token.name} was proposed")
    caption = f"{escape(name)} <small>{escape(_text(token.values[common]))}: {share[common, -1]:.0%}</small>"
    return (
        f'<figure><figcaption>{caption}</figcaption><div class="map">'
        f'<div class="values{"" if few else " ends"}">{labels}</div>{drawn}</div></figure>'
    )


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _text(value: TokenValue) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else f"{value:g}"


@dataclass(frozen=True, slots=True)
class Ranked:
    """One policy, over all trials that tried it to the end."""

    trial: int  # the best
    values: Floats  # by trial number


def best_policies(history: History, count: int) -> list[Ranked]:
    """The policies with the best single scores, best first, the earliest of equals: those of `Reader.distinct`."""
    space = history.info.space
    numbers: dict[tuple[int, ...], list[int]] = defaultdict(list)  # by what the policy does
    for number in np.flatnonzero(history.own).tolist():
        numbers[canonical(space, history.tokens[number].tolist())].append(number)
    ranked = [Ranked(max(same, key=history.values.item), history.values[same]) for same in numbers.values()]
    ranked.sort(key=lambda entry: (-history.values[entry.trial], entry.trial))
    dropping = (e for e in ranked if not space.decode(history.tokens[e.trial].tolist()).drops_nothing)
    return list(islice(dropping, count))


def policies_section(study: Reader, history: History) -> str:
    title = "<h2>The best policies</h2>\n"
    ranked = best_policies(history, TOP)
    if not ranked:
        none = "No policy with a score drops anything." if history.own.any() else "No trial has a score of its own yet."
        return f'{title}<p class="none">{none}</p>'
    said = (
        "By the best single score; policies that do the same are one, and what drops nothing is left out. A score is "
        "one training run: the best of many is partly luck, so train the first few again, with other seeds, before you "
        "believe their order: <code>autodropout confirm</code> does, and <code>ad.confirm</code>. The panels are maps "
        "that a pattern hits, or sequences; filled cells are dropped."
    )
    return f'{title}<p class="dim">{said}</p>\n' + "\n".join(_policy(study, entry) for entry in ranked)


def _policy(study: Reader, entry: Ranked) -> str:
    policy = study.info.policy(study.trial(entry.trial))
    times = "" if len(entry.values) == 1 else f", tried {len(entry.values)} times, mean {entry.values.mean():.6g}"
    rows = "".join(_masks_row(masks) for masks in policy_masks(policy))
    return (
        f'<article class="policy"><h3>{entry.values.max():.6g} <span class="dim">trial {entry.trial}{times}</span></h3>'
        f"{rows}<details><summary>the policy as a file</summary><pre>{escape(policy.to_json())}</pre></details>"
        "</article>"
    )


def _masks_row(masks: Masks) -> str:
    words = f'<div class="row"><b>{escape(masks.place)}</b> {escape(masks.pattern)}'
    if not len(masks.panels):
        return f"{words}</div>"
    panels, height, width = masks.panels.shape
    gap = max(1, width // 16)
    strip = np.zeros((height, panels * (width + gap) - gap))
    for number, kept in enumerate(masks.panels.numpy()):
        start = number * (width + gap)
        strip[:, start : start + width] = np.where(kept, 0.12, 0.95)
    kind = "runs" if strip.shape[1] > 16 * height else "strip"  # samples of many tokens are given more height
    return words + picture(strip, _GREY, f"masks of {masks.place}").replace("cells", f"cells {kind}", 1) + "</div>"


def failures_section(study: Reader, history: History, address: Address | None) -> str:
    """What went wrong, the same thing once."""
    title = "<h2>Failures</h2>\n"
    numbers = np.flatnonzero(history.failed).tolist()
    if not numbers:
        return f'{title}<p class="none">None.</p>'
    found: dict[tuple[str, str], list[Trial]] = defaultdict(list)
    for number in reversed(numbers[-FAILURES:]):
        trial = study.trial(number)
        if trial.failure is not None:  # it may have succeeded meanwhile
            found[trial.failure.kind.value, trial.failure.message].append(trial)
    shown = sorted(found.values(), key=len, reverse=True)
    less = f", of which the newest {FAILURES:,} were read" if len(numbers) > FAILURES else ""
    more = f'<p class="dim">And {len(shown) - DISTINCT} other kinds.</p>' if len(shown) > DISTINCT else ""
    said = f'<p class="dim">{_many(len(numbers), "trial")} whose last attempt failed or diverged{less}.</p>\n'
    return title + said + "\n".join(_failure(trials, address) for trials in shown[:DISTINCT]) + more


def _failure(trials: list[Trial], address: Address | None) -> str:
    newest = trials[0]
    assert newest.failure is not None
    numbers = ", ".join(str(trial.number) for trial in sorted(trials, key=lambda trial: trial.number)[:12])
    dots = ", ..." if len(trials) > 12 else ""
    message, trace = newest.failure.message, newest.failure.traceback
    if address is not None:
        message, trace = address.mask(message), address.mask(trace)
    if newest.state in PENDING:
        became = "to be tried again"
    else:
        became = "given up" if newest.state is State.FAILED else "scored with the floor"
    details = f"<details><summary>traceback</summary><pre>{escape(trace)}</pre></details>" if trace else ""
    return (
        f'<div class="failure"><b>{escape(newest.failure.kind.value)}</b> '
        f'<span class="dim">{len(trials)} &times;, {became}: trial {numbers}{dots}</span>'
        f"<pre>{escape(message)}</pre>{details}</div>"
    )
