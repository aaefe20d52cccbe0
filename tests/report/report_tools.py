"""Ledgers with exactly the trials a test wants."""

from collections.abc import Sequence
from html.parser import HTMLParser

from autodropout.search.ledger import Ledger
from autodropout.search.protocols import Proposal
from autodropout.search.reading import Reader
from autodropout.search.records import Failure, Outcome, StudyInfo
from autodropout.search.states import FailureKind, State
from autodropout.spaces import ConvSpace, Space

SPACE = ConvSpace(groups=((16, 16), (8, 8)))


def scored(value: float, stopped: bool = False) -> Outcome:
    return Outcome(0, State.STOPPED if stopped else State.FINISHED, value, ((1, value / 2), (2, value)))


def diverged(floor: float = 0.0) -> Outcome:
    return Outcome(0, State.FINISHED, floor, failure=Failure(FailureKind.DIVERGED, "the score is nan"))


def failed(message: str = "no memory", traceback: str = "") -> Outcome:
    return Outcome(0, State.FAILED, failure=Failure(FailureKind.CRASH, message, traceback))


def write_study(
    url: str,
    outcomes: Sequence[Outcome],
    *,
    name: str = "made",
    space: Space = SPACE,
    tokens: Sequence[tuple[int, ...]] = (),
    minibatch: int = 4,
    metrics: dict[str, float] | None = None,
    finish_order: Sequence[int] = (),
    waiting: int = 0,
    attributes: dict[str, object] | None = None,
) -> Reader:
    """A study whose trial i had outcome i; trials without tokens of their own get those of `space.sample(i)`."""
    info = StudyInfo(name, space, "controller", 0, 16, minibatch, 0.0, attributes=attributes or {})
    count = len(outcomes) + waiting
    given = list(tokens) + [space.encode(space.sample(number)) for number in range(len(tokens), count)]
    ledger = Ledger(url)
    with ledger.drive(info) as study:
        study.propose([Proposal(string, -1.0, 0) for string in given])
        study.start(range(len(outcomes)))
        applied: list[int] = []
        for number in finish_order or range(len(outcomes)):
            said = outcomes[number]
            study.record([Outcome(number, said.state, said.value, said.curve, said.failure)])
            if said.value is not None:
                applied.append(number)
        for update in range(len(applied) // minibatch):
            batch = applied[update * minibatch : (update + 1) * minibatch]
            study.apply(batch, update + 1, metrics if metrics is not None else {"mean_value": 0.5}, b"state")
    return ledger.read(name)


class Page(HTMLParser):
    """What a page is made of; refuses tags that do not match."""

    VOID = frozenset({"meta", "img", "path", "br", "link"})

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open, f"left open: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self._open.pop() == tag, f"{tag} closes another tag"

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] != "style":
            self.text += data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)
