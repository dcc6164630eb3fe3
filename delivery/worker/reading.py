"""Reading pages: what lines may send next, oldest first, with all that their requests need."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from broker_project.core.db import rows
from delivery.callbacks.resolve import original_addresses
from delivery.webhook.content import contents_of
from delivery.webhook.destination import destinations_of
from delivery.webhook.parts import Content, Destination
from delivery.worker.buffer import BodyBudget, Hand, InHand
from delivery.worker.page_statements import pages_statement
from delivery.worker.pages import ASIDE, FRESH, HEAD, Page, Row, Wanted, charged, page_of


def read_pages(wanted: Sequence[Wanted], budget: BodyBudget) -> dict[int, Hand[InHand]]:
    """Return a hand for every line: at most its capacity, 1 MiB of bodies (but always one), and what `budget` has.

    Takes each hand's bytes from `budget`; whoever drops a delivery gives them back. A hand is `starved` where there
    is work but the process holds too many bodies already.
    """
    by_line = _waiting(wanted)
    pages = {line.line_id: page_of(by_line.get(line.line_id, []), line, budget) for line in wanted}
    hands: dict[int, Hand[InHand]] = {}
    with charged(budget, pages, hands) as taken:
        contents = contents_of({row.message_id for row in taken})
        destinations = destinations_of({row.subscription_id for row in taken if row.subscription_id is not None})
        originals = original_addresses({row.line_id for row in taken if row.subscription_id is None})
        hands |= {line_id: _hand(page, contents, destinations, originals) for line_id, page in pages.items()}
    return hands


def _waiting(wanted: Sequence[Wanted]) -> Mapping[int, list[Row]]:
    """Return what waits, by line: as many rows as each may be read for."""
    left_out = [(line.line_id, subscription_id) for line in wanted for subscription_id in line.left_out]
    crowds = [line for line in wanted if line.is_crowd]
    arguments: dict[str, list[int | None]] = {
        "line_id": [line.line_id for line in wanted],
        "epoch": [line.epoch for line in wanted],
        "head_id": [line.head_id for line in wanted],
        "capacity": [line.rows for line in wanted],
    }
    if crowds:
        busy = [(line.line_id, one) for line in crowds for one in line.busy]
        arguments |= {"crowds": [line.line_id for line in crowds]}
        arguments |= {"of_busy": [line_id for line_id, _ in busy], "busy": [one for _, one in busy]}
    if left_out:
        arguments |= {"of_line": [one for one, _ in left_out], "left_out": [one for _, one in left_out]}
    by_line: dict[int, list[Row]] = defaultdict(list)
    for columns in rows(pages_statement(leaves_out=bool(left_out), has_crowds=bool(crowds)), arguments):
        row = Row(*columns)
        by_line[row.line_id].append(row)
    return by_line


def _hand(
    page: Page[Row],
    contents: Mapping[int, Content],
    destinations: Mapping[int, Destination],
    originals: Mapping[int, Destination],
) -> Hand[InHand]:
    parts: dict[int, list[InHand]] = {HEAD: [], FRESH: [], ASIDE: []}
    for row in page.taken:
        # Both are there unless somebody cancelled the delivery and deleted what it needs since its row was read.
        content, of = contents.get(row.message_id), row.subscription_id
        destination = originals.get(row.line_id) if of is None else destinations.get(of)
        if content and destination:
            parts[row.part].append(_in_hand(row, content, destination))
    return Hand(head=next(iter(parts[HEAD]), None), fresh=parts[FRESH], aside=parts[ASIDE], more=page.more)


def _in_hand(row: Row, content: Content, destination: Destination) -> InHand:
    return InHand(
        row.id,
        content,
        destination,
        row.attempts,
        row.sequence,
        row.uncertain,
        row.size,
        is_aside=row.part == ASIDE,
        times_set_aside=row.times_set_aside,
    )
