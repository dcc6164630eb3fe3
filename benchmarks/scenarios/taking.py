"""What the scenarios of mailboxes have in common: what is wanted of those who fetch, and how long their calls took."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from benchmarks.bench import Bench
from benchmarks.errands import Taken
from benchmarks.figures import Figure, Target, percentile
from benchmarks.mailbox_client import OK
from benchmarks.publisher import Published
from benchmarks.receipts import ANYBODY, Key

PERCENTS: Final = (50, 95, 99)


def wanted_from(published: Sequence[Published]) -> dict[Key, int]:
    """Return how many messages of each stream are to be fetched, by whichever consumer."""
    return {(ANYBODY, stream.stream): sum(stream.counts) for stream in published}


def faults(taken: Taken) -> list[str]:
    """Say what should not have been answered so."""
    return [f"{count} times {what}" for what, count in sorted(taken.faults.items())]


def calls(
    scenario: str, taken: Taken, targets: Mapping[str, Target] | None = None, *, of: str = ""
) -> Iterator[Figure]:
    """Yield percentiles of how long fetches and acknowledgements took, `of` what if that is to be said."""
    for what, seconds in {"fetch": sorted(taken.fetched), "acknowledge": sorted(taken.acknowledged)}.items():
        for percent in PERCENTS:
            figure, value = f"{what} p{percent}", percentile(seconds, percent) * 1e3
            yield Figure(scenario, figure + of, value, "ms", target=(targets or {}).get(figure))


def purge(bench: Bench, mailbox: str) -> None:
    """Leave nothing in a mailbox."""
    path = f"/api/v1/mailboxes/{mailbox}/purge".encode()
    while not json.loads(bench.api.post(path, b"{}", expected=OK))["complete"]:
        pass
