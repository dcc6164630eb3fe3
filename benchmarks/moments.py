"""Two moments of a run: what was delivered between them, and which processes used the CPU for it."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from benchmarks.bench import Bench
from benchmarks.children import Receiving, RunningPublisher
from benchmarks.figures import Figure
from benchmarks.processes import busy_seconds, cpu_seconds

GROUPS: Final = {"beat": "beat+flower", "flower": "beat+flower"}


@dataclass(frozen=True, slots=True)
class Moment:
    """What had been delivered and used by then."""

    at: float
    delivered: int
    cpu: Mapping[str, float]
    busy: float
    """CPU time of the whole machine."""


def watched(
    bench: Bench, receiving: Receiving, publisher: RunningPublisher, *, is_cold: bool = False
) -> tuple[Moment, Moment]:
    """Return what had been done before and after the time of measuring; let everything warm up first, or not."""
    roots = bench.roots() | {receiving.name: receiving.process.pid or 0, "publisher": publisher.process.pid or 0}
    if not is_cold:
        time.sleep(bench.options.warm_seconds)
        receiving.report()  # so that what comes in the next one has been measured
    begin = _now(receiving, roots)
    time.sleep(bench.options.seconds)
    return begin, _now(receiving, roots)


def cpu_figures(scenario: str, begin: Moment, end: Moment) -> Iterator[Figure]:
    """Yield what each group of processes used for one delivery, its share of all, and what others used."""
    used: dict[str, float] = {}
    for service, seconds in end.cpu.items():
        group = "workers" if service.startswith("worker") else GROUPS.get(service, service)
        used[group] = used.get(group, 0.0) + seconds - begin.cpu[service]
    deliveries = max(1, end.delivered - begin.delivered)
    for group, seconds in used.items():
        yield Figure(scenario, f"CPU of {group}", seconds / deliveries * 1e6, "µs each")
    for group, seconds in used.items():
        yield Figure(scenario, f"CPU share of {group}", 100 * seconds / max(1e-9, sum(used.values())), "%")
    seconds, ours = end.at - begin.at, sum(used.values())
    yield Figure(scenario, "CPU in use", ours / seconds, "cores")
    yield Figure(scenario, "CPU in use by other programs", max(0.0, end.busy - begin.busy - ours) / seconds, "cores")


def _now(receiving: Receiving, roots: Mapping[str, int]) -> Moment:
    return Moment(time.monotonic(), receiving.delivered, cpu_seconds(roots), busy_seconds())
