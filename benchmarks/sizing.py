"""`./broker sizing`: the cores, the disk and the machines that a load needs, computed from measured costs."""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Final

from benchmarks.connection import body_of
from broker_project.stack.folders import ROOT

MEASURED: Final = ROOT / "benchmarks" / "costs.json"
"""What `./broker bench --json` wrote on the machine of the README's figures."""
GROUPS: Final = ("web", "workers", "postgres", "redis")
STORED: Final = ("WAL", "disk")
CPU_NAMES: Final = tuple(f"CPU of {group}" for group in GROUPS)
COST_NAMES: Final = (*CPU_NAMES, *STORED)
FAN_OUT: Final = 50
"""Of the scenario publish.fanout50."""
BODY_BYTES: Final = 300
"""Of the events of `publish.*`; one body is stored once, and written to the WAL once."""
BATCHED_BODY_BYTES: Final = len(body_of(0, 0, 0))
"""Of those of topic.dense."""
BUSY: Final = 0.6
"""How much of a core is to be used: what is more busy answers late, and has nothing left for a peak."""
EVENTS: Final = (10, 100, 500, 1_000, 2_000, 5_000, 10_000)
FEW: Final = ("_50", "_200")
"""The figures of publish.steady, by the events of a second: hardly two of them come together."""
DAY: Final = 86_400
ONE_MACHINE: Final = (2, 4, 8, 16)
"""The cores of a machine that does everything."""
MACHINE_CORES: Final = 4
"""Of each further machine with web processes and workers."""
MOST_POSTGRES_CORES: Final = 32
"""Beyond it WAL and locks are likely to be the limit: nobody has measured it."""
COSTS_HEAD: Final = ("each", "web µs", "workers µs", "PostgreSQL µs", "Redis µs", "WAL bytes", "disk bytes")
HEAD: Final = (
    *("events/s", "deliveries/s", "web", "workers", "PostgreSQL", "Redis", "WAL MB/s", "disk GB", "machines"),
)


@dataclass(frozen=True, slots=True)
class Costs:
    """What an event costs by itself, and what each of its deliveries adds; µs of CPU time and bytes, by name."""

    event: Mapping[str, float]
    """Under load."""
    delivery: Mapping[str, float]
    rates: Sequence[tuple[float, Mapping[str, float]]] = ()
    """Pairs: events a second, and the CPU time that storing them was measured to use. Empty for batches."""

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, object]], *, in_batches: bool) -> "Costs":
        """Return the costs by figures that `./broker bench --json` wrote.

        A scenario with one delivery for each event and one with 50 tell both apart. An event costs more if few come.

        Raises:
            KeyError: a figure is missing
        """
        found = {f"{row['scenario']} {row['figure']}": float(str(row["value"])) for row in rows}
        alone = {name: found[f"publish.single {name}_64"] for name in COST_NAMES}
        one = {name: found[f"topic.dense {name}"] for name in COST_NAMES} if in_batches else alone
        many = {name: found[f"publish.fanout50 {name}"] for name in COST_NAMES}
        delivery = {name: max(0.0, (FAN_OUT * many[name] - alone[name]) / (FAN_OUT - 1)) for name in COST_NAMES}
        event = {name: one[name] - delivery[name] for name in COST_NAMES}
        if in_batches:
            event |= {name: event[name] - BATCHED_BODY_BYTES + BODY_BYTES for name in STORED}
            return cls({name: max(0.0, cost) for name, cost in event.items()}, delivery)
        measured = [
            *((float(rate[1:]), {name: found[f"publish.steady {name}{rate}"] for name in CPU_NAMES}) for rate in FEW),
            (found["publish.single delivered_64"], alone),
        ]
        rates = [
            (rate, {name: rate * max(0.0, each[name] - delivery[name]) for name in CPU_NAMES})
            for rate, each in measured
        ]
        return cls({name: max(0.0, cost) for name, cost in event.items()}, delivery, rates)

    def a_second(self, events: float, fan_out: float, body_bytes: float) -> dict[str, float]:
        """Return the CPU time (µs) and the bytes that `events` a second use each second."""
        more = max(0.0, body_bytes - BODY_BYTES)
        published = {name: events * self.event[name] for name in COST_NAMES} | self._of_few(events)
        used = {name: published[name] + events * fan_out * self.delivery[name] for name in COST_NAMES}
        return used | {name: used[name] + events * more for name in STORED}

    def _of_few(self, events: float) -> dict[str, float]:
        """Return the CPU time (µs a second) of storing `events` a second; empty if that is more than was measured."""
        measured = [(0.0, dict.fromkeys(CPU_NAMES, 0.0)), *self.rates]
        for (few, least), (many, most) in pairwise(measured):
            if events <= many:
                share = (events - few) / (many - few)
                return {name: least[name] + share * (most[name] - least[name]) for name in CPU_NAMES}
        return {}


@dataclass(frozen=True, slots=True)
class Traffic:
    """What is to be carried."""

    fan_out: float
    """Deliveries for each event."""
    body_bytes: float
    days: float
    """How long messages, deliveries and attempts are kept."""


def row(costs: Costs, traffic: Traffic, events: float) -> Iterator[str]:
    """Yield the columns of one row: what is needed for `events` a second."""
    used = costs.a_second(events, traffic.fan_out, traffic.body_bytes)
    cores = {group: used[f"CPU of {group}"] / 1e6 / BUSY for group in GROUPS}
    yield f"{events:,.0f}"
    yield f"{events * traffic.fan_out:,.0f}"
    yield from (f"{cores[group]:,.1f}" for group in GROUPS)
    yield f"{used['WAL'] / 1e6:,.1f}"
    yield f"{used['disk'] * DAY * traffic.days / 1e9:,.0f}"
    yield machines(cores)


def machines(cores: Mapping[str, float]) -> str:
    """Return which machines have these cores."""
    together = sum(cores.values())
    for size in ONE_MACHINE:
        if together <= size:
            return f"one of {size} cores"
    for_postgres, others = 2 * ceil(cores["postgres"] / 2), together - cores["postgres"]
    if for_postgres > MOST_POSTGRES_CORES:
        return "more than one PostgreSQL carries"
    return f"PostgreSQL on {for_postgres} cores, {ceil(others / MACHINE_CORES)} of {MACHINE_CORES} cores"


def tables(costs: Costs, traffic: Traffic, events: Sequence[float]) -> Iterator[str]:
    """Yield the lines of two tables, as Markdown has them: what an event costs, and what the load needs."""
    yield f"| {' | '.join(COSTS_HEAD)} |"
    yield f"|---|{'---:|' * (len(COSTS_HEAD) - 1)}"
    for what, of in (f"event of {BODY_BYTES} bytes", costs.event), ("delivery", costs.delivery):
        yield f"| {' | '.join([what, *(f'{of[name]:,.0f}' for name in COST_NAMES)])} |"
    yield ""
    yield f"| {' | '.join(HEAD)} |"
    yield f"|{'---:|' * (len(HEAD) - 1)}---|"
    for number in events:
        yield f"| {' | '.join(row(costs, traffic, number))} |"


def main(*arguments: str) -> int:
    """Run a command line."""
    made = argparse.ArgumentParser(prog="./broker sizing", description="Says what a load needs, by measured costs.")
    made.add_argument("file", nargs="?", type=Path, default=MEASURED, help="written by ./broker bench --json FILE")
    made.add_argument("--events", nargs="+", type=float, default=EVENTS, metavar="N", help="events a second")
    made.add_argument("--fan-out", type=float, default=1.0, metavar="N", help="deliveries for each event")
    made.add_argument("--body", type=float, default=1_000.0, metavar="BYTES", help="size of an event")
    made.add_argument("--days", type=float, default=14.0, metavar="N", help="how long everything is kept")
    made.add_argument("--batches", action="store_true", help="events are published in batches of 100")
    options = made.parse_args(arguments)
    try:
        costs = Costs.of(json.loads(options.file.read_text()), in_batches=options.batches)
    except (OSError, ValueError, TypeError) as problem:
        made.error(f"{options.file} cannot be read: {problem}")
    except KeyError as missing:
        made.error(
            f"{options.file} lacks the figure {missing}: write it with "
            "./broker bench publish.single publish.steady publish.fanout50 topic.dense --json FILE"
        )
    print("\n".join(tables(costs, Traffic(options.fan_out, options.body, options.days), options.events)))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
