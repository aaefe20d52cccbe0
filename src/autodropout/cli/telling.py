"""A policy in the lines of a terminal: what it is, where it comes from, its patterns."""

import shutil
import textwrap
from collections.abc import Mapping

from autodropout.policies import score_in_words
from autodropout.spaces import Policy, Provenance

WIDEST = 120


def policy_lines(policy: Policy, name: str, whole: bool = False) -> list[str]:
    """The policy of that name or file; `whole`: also when, and with which software, it was made."""
    head, *patterns = str(policy.model_copy(update={"provenance": None})).splitlines()
    return [head, *_origin(policy.provenance, name, whole), *patterns]


def _origin(known: Provenance | None, name: str, whole: bool) -> list[str]:
    """Where it comes from and what it is worth, as far as that is known. Not its space: the patterns show that."""
    if known is None:
        return []
    score = None if known.score is None else score_in_words(name, known.score)
    facts: list[Mapping[str, object]] = [
        {"study": known.study, "trial": known.trial, "score": score},
        {"model": known.model, "data": known.data},
        {"rate": None if known.rate is None else f"{known.rate:g}"},
    ]
    if whole:
        software = ", ".join(f"{package} {version}" for package, version in (known.software or {}).items())
        facts.append({"made": known.date, "with": software or None})
    facts.append({"note": known.note})
    told = ("; ".join(f"{what}: {value}" for what, value in fact.items() if value is not None) for fact in facts)
    width = min(shutil.get_terminal_size().columns, WIDEST)
    wrapper = textwrap.TextWrapper(width, initial_indent="  ", subsequent_indent="    ")
    return [line for text in told for line in wrapper.wrap(_harmless(text))]


def _harmless(text: str) -> str:
    """A stranger's file may hold sequences that control a terminal."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
