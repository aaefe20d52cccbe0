"""The rate over training: an object that is stepped, saved and restored like a learning-rate scheduler.

    schedule = ad.RateSchedule(on, "linear", rate=0.3, steps=1_000)
    for batch in loader:
        ...
        schedule.step()

- constant: `rate` throughout.
- linear: from `start` up (or down) to `rate` over the first `until` of the steps, as DropBlock's authors trained.
- early: `rate` until `until` of the steps, then none; late: none, then `rate` (Liu et al. 2023, "Dropout Reduces
  Underfitting").
"""

from typing import Literal, Protocol, TypedDict, get_args

from autodropout.layers.given import is_number, is_whole, told

Shape = Literal["constant", "linear", "early", "late"]


class HasRate(Protocol):
    """What a schedule acts on: an attachment, or a `DropLayer`."""

    def set_rate(self, rate: float) -> None: ...


class ScheduleState(TypedDict):
    """What `state_dict` returns: enough to go on, and to refuse to go on under another schedule."""

    shape: str
    rate: float
    steps: int
    start: float
    until: float
    step: int


class RateSchedule:
    """Sets the rate of an attachment now, and again at every `step()`.

    Args:
        on: an attachment, or a `DropLayer`.
        shape: "constant": `rate` at every step; "linear": from `start` to `rate`, evenly, until `until`; "early":
            `rate` until `until`, then 0; "late": 0 until `until`, then `rate`.
        rate: the rate the schedule is about.
        steps: the number of steps of the whole training.
        start: the rate that "linear" starts at.
        until: the share of the steps after which the rate no longer changes; when left out, 1 for "linear" and 0.5, the
            middle of the training, for "early" and "late".
    """

    def __init__(
        self, on: HasRate, shape: Shape, *, rate: float, steps: int, start: float = 0.0, until: float | None = None
    ) -> None:
        if not callable(getattr(on, "set_rate", None)):
            raise TypeError(f"a schedule sets the rate of what ad.attach returned, or of a DropLayer; got {told(on)}")
        if shape not in get_args(Shape):
            raise ValueError(f"shape must be one of {', '.join(get_args(Shape))}, got {shape!r}")
        rate, start = _number("rate", rate), _number("start", start)
        for name, value in (("rate", rate), ("start", start)):
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"{name} must lie in [0, 1], got {value}")
        if not is_whole(steps):
            raise ValueError(f"steps must be a whole number, got {steps!r}")
        if steps < 1:
            raise ValueError(f"steps must be at least 1, got {steps}")
        until = (1.0 if shape == "linear" else 0.5) if until is None else _number("until", until)
        if not 0.0 < until <= 1.0:
            raise ValueError(f"until must lie in (0, 1], got {until}")
        self._on = on
        self._state = ScheduleState(shape=shape, rate=rate, steps=int(steps), start=start, until=until, step=0)
        on.set_rate(self.rate)

    @property
    def rate(self) -> float:
        """The rate at the present step."""
        s = self._state
        done = min(1.0, s["step"] / (s["until"] * s["steps"]))  # of the part in which the rate changes
        match s["shape"]:
            case "linear":
                return s["start"] + (s["rate"] - s["start"]) * done
            case "early":
                return s["rate"] if done < 1.0 else 0.0
            case "late":
                return 0.0 if done < 1.0 else s["rate"]
            case _:
                return s["rate"]

    def step(self) -> None:
        """Go on by one step. Past the last one the rate stays as it is."""
        self._state["step"] += 1
        self._on.set_rate(self.rate)

    def __repr__(self) -> str:
        s = self._state
        past = f", {s['step'] - s['steps']} past its end" if s["step"] > s["steps"] else ""
        at = f"step {min(s['step'], s['steps'])} of {s['steps']}{past}"
        return f"<RateSchedule {s['shape']} of {s['rate']:g}: {at}, rate {self.rate:.3g}>"

    def state_dict(self) -> ScheduleState:
        return self._state.copy()

    def load_state_dict(self, state: ScheduleState) -> None:
        """Go on where a saved schedule was; it must be the same schedule."""
        for key, value in self._state.items():
            if key not in state:
                raise ValueError(f"the saved schedule lacks {key!r}")
            if key != "step" and state[key] != value:  # type: ignore[literal-required]
                raise ValueError(f"the saved schedule has {key}={state[key]!r}, this one {value!r}")  # type: ignore[literal-required]
        self._state["step"] = int(state["step"])
        self._on.set_rate(self.rate)


def _number(name: str, value: object) -> float:
    """Python's own number, whatever kind was given: `torch.load` refuses a checkpoint with NumPy's."""
    if not is_number(value):
        raise ValueError(f"{name} must be a number, got {value!r}")
    return float(value)
