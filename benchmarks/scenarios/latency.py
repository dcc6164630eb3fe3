"""`scripts`: what scripts that never end do to the others, those without a script and those with a quick one."""

from collections.abc import Sequence
from typing import Final

from benchmarks import arranging
from benchmarks.bench import Bench
from benchmarks.children import publishing, running_sink
from benchmarks.figures import Figure, Outcome, at_most, percentile
from benchmarks.moments import watched
from benchmarks.publisher import Plan
from benchmarks.receipts import problems
from benchmarks.throughput import publishing_problems, wanted_from

NAME: Final = "scripts"
ENDLESS: Final = "while (1);"
QUICK: Final = "$outmessage = $inmessage"
TARGET: Final = at_most(3)
CONNECTIONS: Final = 8


def run(bench: Bench, *, subscribers: int = 100, hostile: int = 50, per_second: float = 100) -> Outcome:
    """Measure those that have no script alone, then beside hostile ones, then with a quick script beside those."""
    figures: list[Figure] = []
    wrong: list[str] = []
    for what, script, beside in (("alone", "", 0), ("beside", "", hostile), ("scripted, beside", QUICK, hostile)):
        seconds, problem = _measure(bench, subscribers, script, beside, per_second / subscribers)
        figures += [
            Figure(NAME, f"{what}, p{percent}", percentile(seconds, percent) * 1e3, "ms") for percent in (50, 95, 99)
        ]
        figures.append(Figure(NAME, f"{what}, delivered", len(seconds), "messages"))
        wrong += problem
    alone, beside_them = (figure.value for figure in figures if figure.figure in {"alone, p99", "beside, p99"})
    figures.append(Figure(NAME, "p99, beside / alone", beside_them / max(1e-9, alone), "times", target=TARGET))
    return Outcome(figures, wrong)


def _measure(
    bench: Bench, subscribers: int, script: str, hostile: int, each_per_second: float
) -> tuple[list[float], Sequence[str]]:
    """Publish singly and evenly over all; return how long each took to those that are not hostile, and what is wrong.

    The deliveries of the hostile ones are held or still waiting in the end.
    """
    with running_sink() as sink:
        event_types = arranging.event_types(bench.api, subscribers + hostile)
        arranging.subscribe(bench.api, sink, event_types[:subscribers], script=script)
        arranging.subscribe(bench.api, sink, event_types[subscribers:], called="hostile", script=ENDLESS)
        rate = each_per_second * len(event_types)
        plan = Plan(
            bench.stack.web, arranging.publisher_key(bench.api), event_types, CONNECTIONS, per_call=1, per_second=rate
        )
        with publishing(plan, sink) as publisher:
            watched(bench, sink, publisher)
            published = publisher.stop()
            wanted = {key: count for key, count in wanted_from(published).items() if key[0] < subscribers}
            wrong = bench.unfinished(sink, sum(wanted.values()))
        receipts = sink.report()
    return receipts.seconds(), [*wrong, *publishing_problems(published), *problems(receipts, wanted)]
