"""Clients of one mailbox, who fetch, and say anything of what they got: all answers must be as expected."""

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import psycopg
from django.db import connection, transaction
from hypothesis import note
from psycopg.rows import namedtuple_row

from delivery.mailbox.acknowledge import acknowledge, extend, give_back
from delivery.mailbox.fetch_messages import FETCH, fetch
from delivery.mailbox.mailbox import Receipt
from delivery.mailbox.results import UNKNOWN, Result
from delivery.models import Delivery
from subscriptions.models import DeliveryMode
from subscriptions.retry_policies import Action
from tests.expected_mailbox import HOURS, ExpectedMailbox, Saying
from tests.factories import retry_policy, subscriber, subscription
from tests.happenings import Happenings, one_of, some_of
from tests.mailboxes import box_of

AN_HOUR: Final = 3600
SAY: Final[dict[Saying, Callable[[int, Sequence[Receipt], int], dict[Receipt, Result]]]] = {
    "ack": lambda whose, receipts, _: acknowledge(whose, receipts),
    "nack": lambda whose, receipts, _: give_back(whose, receipts),
    "not_attempted": lambda whose, receipts, _: give_back(whose, receipts, not_attempted=True),
    "extend": lambda whose, receipts, hours: extend(whose, receipts, seconds=hours * AN_HOUR),
}

may = Happenings()
which, yes_or_no = one_of(0, 1), one_of(False, True)
counts, perhaps = one_of(1, 2, 3, 4), one_of(0, 1, 2, 3)
sayings, hours_more = one_of(*SAY), one_of(2, 12)


class Clients:
    """Two subscriptions of one mailbox, all receipts that were ever given out, and what is expected of them."""

    def __init__(self, elsewhere: "psycopg.Connection[Any]") -> None:
        self.elsewhere = elsewhere
        self.subscriber = subscriber(ack_seconds=HOURS * AN_HOUR)
        apart = retry_policy(
            on_server_error=Action.RETRY_LANE, initial_delay_seconds=AN_HOUR, max_delay_seconds=AN_HOUR
        )
        self.subscriptions = [
            subscription(self.subscriber, delivery_mode=DeliveryMode.PULL, retry_policy=policy)
            for policy in (None, apart)
        ]
        self.stranger = subscriber()
        self.expected = ExpectedMailbox()
        self.receipts: list[Receipt] = []

    # --- what can happen -------------------------------------------------------------------------------

    @may.happens(3, most=counts)
    def fetch(self, most: int) -> None:
        expected = self.expected.available(most)
        got = fetch(box_of(self.subscriber), most=most) if most else []
        self.handed_out(expected, [(one.delivery_id, one.fetch, one.until, one.is_uncertain) for one in got])

    @may.happens(2, theirs=counts, mine=counts)
    def fetch_beside_another(self, theirs: int, mine: int) -> None:
        """Fetch while another client's fetch is under way; in an ordered mailbox it would wait for that."""
        if self.expected.is_ordered:
            return
        expected = self.expected.available(theirs)
        asked = {"subscriber": self.subscriber.pk, "most": theirs, "reach": 50}
        with self.elsewhere.transaction():
            got: list[Any] = self.elsewhere.cursor(row_factory=namedtuple_row).execute(FETCH, asked).fetchall()
            self.handed_out(
                expected, [(one.id, one.fetches, one.fetched_until, one.uncertain) for one in got if one.id]
            )
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute("SET LOCAL lock_timeout = '1s'")  # it waits for nobody: only to fail soon if it does
                self.fetch(mine)

    @may.happens(3, most=counts, what=sayings, hours=hours_more)
    def fetch_and_say(self, most: int, what: Saying, hours: int) -> None:
        self.fetch(most)
        self.say(self.receipts[-1:], what, hours)

    @may.happens(3, ats=some_of(range(10)), what=sayings, hours=hours_more)
    def say_of_new_ones(self, ats: list[int], what: Saying, hours: int) -> None:
        if self.receipts:
            self.say([self.receipts[-1 - at % len(self.receipts)] for at in ats], what, hours)

    @may.happens(2, ats=some_of(range(100)), what=sayings, hours=hours_more)
    def say_of_any_and_of_none(self, ats: list[int], what: Saying, hours: int) -> None:
        if self.receipts:
            receipts = [self.receipts[at % len(self.receipts)] for at in ats]
            later = receipts[0]._replace(fetch=receipts[0].fetch + 1)
            self.say([*receipts, later, Receipt(1, 1)], what, hours)

    # --- what must hold --------------------------------------------------------------------------------

    def handed_out(self, expected: list[int], got: list[tuple[int, int, datetime, bool]]) -> None:
        assert [one[0] for one in got] == expected, "9.1, 9.3, 9.7: the oldest that nobody holds"
        for delivery_id, number, until, is_uncertain in got:
            self.expected.hand_out(delivery_id)
            its = self.expected.known[delivery_id]
            assert (number, hours_until(until), is_uncertain) == (its.fetches, its.hours, its.is_uncertain), "9.2"
            self.receipts.append(Receipt(delivery_id, number))

    def say(self, receipts: list[Receipt], what: Saying, hours: int) -> None:
        assert {*SAY[what](self.stranger.pk, receipts, hours).values()} <= {UNKNOWN}
        expected = {one: self.expected.answer(what, one) for one in receipts}
        results = SAY[what](self.subscriber.pk, receipts, hours)
        note(f"{what} {results}")
        assert {one: (its.code, its.status == 200) for one, its in results.items()} == expected, "9.4"
        for receipt in expected:
            self.expected.note(what, receipt, hours)

    def is_as_expected(self) -> None:
        rows = Delivery.objects.values_list("id", "status", "fetches", "fetched_until", "uncertain")
        assert {row[0]: (*row[1:3], hours_until(row[3]), row[4]) for row in rows} == {
            delivery_id: (one.status, one.fetches, one.hours, one.is_uncertain)
            for delivery_id, one in self.expected.known.items()
        }


def hours_until(moment: datetime | None) -> int | None:
    """Return in how many hours it comes, the one under way included; an example lasts for less."""
    return None if moment is None else math.ceil((moment - datetime.now(UTC)) / timedelta(hours=1))
