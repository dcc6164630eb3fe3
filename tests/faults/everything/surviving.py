"""Breaking something under all kinds of work at once, and judging each kind by itself."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from tests.faults.auditing import Made
from tests.faults.everything.breakages import Breakage
from tests.faults.everything.gathering import Everything, everything
from tests.faults.everything.scenes import Scene, dice
from tests.faults.everything.strict import Strict
from tests.faults.everything.works import Work
from tests.faults.figures import Figures
from tests.real_broker import Broker
from tests.receiver import Receiver

WARM = 20
"""What each kind has done before a fault, and does after it."""
PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one kind of work."""

    figures: Figures
    made: Made | None
    """The subscribers to be audited; None: there is nothing that could be."""
    measured: dict[str, float] = field(default_factory=dict)
    problem: str = ""
    seconds: float = 0.0
    """Its share of the time that it took for all kinds."""


def scene_of(everybody: Everything, random: Random) -> Scene:
    """Return where something is to be broken."""
    strict = everybody.works[Strict.kind]
    assert isinstance(strict, Strict)
    return Scene(everybody.broker, strict.load, everybody.faults, random)


def survived(broker: Broker, receiver: Receiver, folder: Path, breakage: Breakage) -> dict[str, Outcome]:
    """Break it once; return what became of each kind."""
    begun = time.monotonic()
    with everything(broker, receiver, folder) as everybody:
        everybody.start()
        cold = everybody.go_on(WARM, PATIENCE)
        scene = scene_of(everybody, dice(breakage.name))
        scene.load.fault_at = time.monotonic()
        breakage.happen(scene, breakage.seconds)
        stuck = everybody.go_on(WARM, PATIENCE)
        left = everybody.stop(PATIENCE)
        everybody.read_settling()
        said = dict.fromkeys(cold, "it did not begin")
        said |= {kind: "it did not go on afterwards" for kind in stuck if kind not in cold}
        said |= {kind: "it was not through in time" for kind in left if kind not in said}
        outcomes = {
            kind: outcome(work, everybody.made[kind], breakage, said.get(kind, ""))
            for kind, work in everybody.works.items()
        }
    share = (time.monotonic() - begun) / len(outcomes)
    return {kind: replace(one, seconds=share) for kind, one in outcomes.items()}


def together(everybody: Everything, stuck: list[str], left: list[str], say: Callable[[str], None]) -> Outcome:
    """Return what became of all kinds, each judged by itself and told; pauses do not matter."""
    say(f"answers were stored within {everybody.read_settling():.1f} s while nothing was broken, with room for longer")
    said = dict.fromkeys(stuck, "it did not go on") | dict.fromkeys(left, "it was not through in time")
    judged_apart = {
        kind: outcome(work, everybody.made[kind], None, said.get(kind, "")) for kind, work in everybody.works.items()
    }
    for kind, one in judged_apart.items():
        say(f"{kind}: {one.figures}{''.join(f', {name} {value:g}' for name, value in one.measured.items())}")
    made = [*everybody.made.values()]
    return Outcome(
        sum((one.figures for one in judged_apart.values()), Figures()),
        Made(made[0].before, made[-1].last),
        {name: value for one in judged_apart.values() for name, value in one.measured.items()},
        "; ".join(f"{kind}: {one.problem}" for kind, one in judged_apart.items() if one.problem),
    )


def outcome(work: Work, made: Made, breakage: Breakage | None, said: str) -> Outcome:
    """Judge one kind of work after one thing was broken; None: after many, where pauses do not matter."""
    figures = work.figures()
    may_repeat, max_delay_seconds = (breakage.may_repeat, breakage.pause) if breakage else (True, math.inf)
    most_copies = work.most_copies if may_repeat or work.most_copies is None else 0
    wrong = [*([said] if said else []), *judged(figures, most_copies, max_delay_seconds)]
    return Outcome(figures, made if work.is_audited else None, work.measured(), "; ".join(wrong))


def judged(figures: Figures, most_copies: int | None, max_delay_seconds: float) -> Iterator[str]:
    """Yield what must not be; None: any number of copies is allowed."""
    yield from (f"{name} {count}" for name, count in figures.broken.items())
    if most_copies is not None and figures.most_of_a_fault > most_copies:
        yield f"{figures.most_of_a_fault} copies of a fault, and not {most_copies} at most"
    if most_copies == 0 and figures.duplicated:
        yield f"duplicated {figures.duplicated}"
    if figures.pause > max_delay_seconds:
        yield f"a pause of {figures.pause} s, and not {max_delay_seconds:g} s at most"
    if not figures.delivered:
        yield "nothing was delivered"
