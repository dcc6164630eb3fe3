"""The ordering audit: what it finds, and what explains it; each case is a subscriber of its own in one frame."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from analytics.pipeline.transforms.audit import MAX_EXAMPLES, audit, findings
from analytics.pipeline.transforms.frames import Frames
from analytics.vocabulary import vocabulary
from tests.support.spark_frames import Row, at, rows_of, silver_of

WORDS: Final = vocabulary()
FETCHED: Final = "fetched from a mailbox before"
MADE_LATER: Final = "made later"
NOT_ACTIVE: Final = "not active or paused"
SET_ASIDE: Final = "set aside before it was sent"
NOT_DUE: Final = "not yet due"
Found = tuple[str, int, int | None, str]
"""What was found, the ids of the delivery and of the other one, and why it may be."""

SHIFTED: Final = {
    *("id", "message_id", "delivery_id", "other_id", "group_id", "subscription_id", "resubmit_of", "high_id"),
}
APART: Final = 1000
"""Between the ids of two cases."""


def sent(number: int | None, sequence: int | None, created: str, finished: str | None, **more: Any) -> Row:
    """Return a delivery of subscription 3 as silver has it."""
    return {
        "id": number,
        "message_id": number,
        "sequence": sequence,
        "created_at": at(created),
        "finished_at": at(finished) if finished else None,
        "subscription_id": 3,
        "kind": "TOPIC",
        "status": "DELIVERED" if finished else "PENDING",
        "attempts": 1,
        "times_deferred": 0,
        "uncertain": False,
        **more,
    }


def tried(delivery: int, number: int, started: str, status: int | None, **more: Any) -> Row:
    holds = status is None or status == 503
    judged = {"failed": status != 200, "holds": holds}
    row = {"id": delivery * 10 + number, "delivery_id": delivery, "number": number, "started_at": at(started)}
    return {**row, "message_id": delivery, "status_code": status, "kind": "TOPIC", **judged, **more}


@dataclass(frozen=True)
class Case:
    """What happened to one subscriber, and what is found of it."""

    deliveries: Sequence[Row]
    found: Sequence[Found] = ()
    attempts: Sequence[Row] = ()
    status_changes: Sequence[Row] = ()
    releases: Sequence[Row] = ()
    audit: Sequence[Row] = ()
    """Of the hours before."""
    checked: int = field(default=2)


EARLY: Final = sent(1, 2, "10:00", "10:31")
LATE: Final = sent(2, 1, "10:20", "10:30")
"""Published twenty minutes later, and sent first."""
OTHERS: Final = {"subscription_id": 4}
"""Of another subscription of the same subscriber."""
A, B, EMPTY = {"ordering_key": "a"}, {"ordering_key": "b"}, {"ordering_key": ""}
"""Of a KEYED subscriber."""


def created(text: str, **more: Any) -> Row:
    """Return the values of a delivery that was made then."""
    return {"created_at": at(text), **more}


def changed(subscription_id: int | None, text: str = "10:10") -> Row:
    """Return a change of the status of a subscription, or else of its subscriber."""
    return {"at": at(text), "status": "INACTIVE", "subscription_id": subscription_id}


def overtaken(
    explanation: str, early: Row = MappingProxyType({}), late: Row = MappingProxyType({}), **rows: Any
) -> Case:
    """Return the case in which the second delivery was sent first, where they are as usual but for these values."""
    return Case(({**EARLY, **early}, {**LATE, **late}), (("inversion", 1, 2, explanation),), **rows)


RELEASED: Final[Row] = {"delivery_id": 1, "kind": "RELEASED", "at": at("10:30:30")}
RESUMED: Final[Row] = {**RELEASED, "kind": "RESUMED", "at": at("10:31:00.001")}
OF_GROUP: Final = {"kind": "QUEUE", "group_id": 1}

CASES: Final[dict[str, Case]] = {
    "what is sent in order is in order": Case([sent(1, 1, "10:00", "10:30"), sent(2, 2, "10:20", "10:31")]),
    "what overtakes is an inversion": overtaken(""),
    "the one with the greatest id is named": Case(
        [sent(1, 3, "10:00", "10:32"), sent(3, 1, "10:20", "10:30"), sent(2, 2, "10:10", "10:31")],
        [("inversion", 1, 3, ""), ("inversion", 2, 3, "")],
        checked=3,
    ),
    "what is of another ordering key may pass": Case(
        [sent(1, 3, "10:00", "10:32", **A), sent(3, 1, "10:20", "10:30", **B), sent(2, 2, "10:10", "10:31", **EMPTY)],
        checked=3,
    ),
    "what overtakes within its ordering key is an inversion, and nothing of another key is named or explains it": Case(
        [
            sent(1, 4, "10:00", "10:31", **A),
            sent(2, 1, "10:20", "10:30", **A, **OTHERS),
            sent(4, 3, "10:21", "10:30", **B),
            sent(3, 2, "10:21", "10:30", **EMPTY),
        ],
        [("inversion", 1, 2, NOT_ACTIVE)],
        status_changes=[changed(3)],
        checked=4,
    ),
    "the empty ordering key is one of them": overtaken("", EMPTY, late=EMPTY),
    "a number is given once over all ordering keys": Case(
        [sent(1, 1, "10:00", "10:30", **A), sent(2, 1, "10:20", None, **B)],
        [("number given twice", 2, 1, "")],
        checked=1,
    ),
    "publishes that began within two seconds may have overlapped": overtaken(
        "published at the same time", late=created("10:00:02")
    ),
    "publishes that began more than two seconds apart did not overlap": overtaken("", late=created("10:00:02.001")),
    "publishes did not overlap if another subscriber was sent the earlier one before the later one began": overtaken(
        "",
        late=created("10:00:01"),
        attempts=[tried(9, 1, "10:00:00.899", 503, message_id=1), tried(9, 2, "10:00:05", 200, message_id=1)],
    ),
    "about the same time is too late to tell, clocks being apart": overtaken(
        "published at the same time",
        late=created("10:00:01"),
        attempts=[tried(9, 1, "10:00:00.900", 200, message_id=1), tried(8, 1, "10:00:00.001", 200)],
    ),
    "what was HELD is sent after its release": overtaken(
        "released", releases=[{**RELEASED, "at": at("10:30:30")}, {**RELEASED, "at": at("10:30:40")}]
    ),
    "the release of another one explains nothing": overtaken("", releases=[{**RELEASED, "delivery_id": 2}]),
    "a script that was lost sets aside what was never sent": overtaken(SET_ASIDE, {"times_deferred": 1}),
    "also where its endpoint held the line later": overtaken(
        SET_ASIDE,
        {"times_deferred": 1, "attempts": 3},
        attempts=[tried(1, 1, "10:30:10", 503), tried(1, 2, "10:30:20", None), tried(1, 3, "10:30:30", 200)],
    ),
    "what was set aside by its answers had been sent by then": overtaken(
        "", {"times_deferred": 1, "attempts": 2}, attempts=[tried(1, 1, "10:30:10", 500), tried(1, 2, "10:30:20", 200)]
    ),
    "a subscription that was not active is skipped": overtaken(NOT_ACTIVE, late=OTHERS, status_changes=[changed(3)]),
    "what a client still had when its subscription was switched to push is sent once it has given it back": overtaken(
        FETCHED, {"fetches": 1}, status_changes=[changed(3)]
    ),
    "a switch after it was overtaken explains nothing": overtaken(
        "", {"fetches": 1}, status_changes=[changed(3, "10:30:30")]
    ),
    "a fetched delivery of a subscription that was never switched": overtaken("", {"fetches": 1}),
    "the switch of another subscription explains nothing": overtaken("", {"fetches": 1}, status_changes=[changed(4)]),
    "a switch to push explains nothing if no client had fetched the delivery": overtaken(
        "", {"fetches": 0}, status_changes=[changed(3)]
    ),
    "by what is of others: what is of the same subscription was not active, or paused, like itself": overtaken(
        "", status_changes=[changed(3)]
    ),
    "also where something of others overtook it besides": Case(
        [{**EARLY, "sequence": 3}, LATE, sent(4, 2, "10:21", "10:30", **OTHERS)],
        [("inversion", 1, 4, "")],
        status_changes=[changed(3)],
        checked=3,
    ),
    "that is what explains it, also where the two were published within two seconds": overtaken(
        NOT_ACTIVE, created("10:20:00"), late=created("10:20:02", **OTHERS), status_changes=[changed(3, "10:20:01")]
    ),
    "what was published during a suspension, and ended it, was not sent until then": overtaken(
        NOT_ACTIVE, late=OTHERS, status_changes=[changed(3, "09:59")], releases=[RESUMED]
    ),
    "the end of a suspension explains nothing within its own subscription": overtaken("", releases=[RESUMED]),
    "of a subscriber that was not active, or sent to in no order, nothing has its place": overtaken(
        "subscriber not active or concurrent", status_changes=[changed(None)]
    ),
    "another subscription's status explains nothing": overtaken("", late=OTHERS, status_changes=[changed(4)]),
    "nor does a change before it was published, or after it ended": overtaken(
        "", late=OTHERS, status_changes=[changed(None, "09:59"), changed(None, "10:31:01")]
    ),
    "what is retried apart has had its number before, also where it could not be sent at all": overtaken(
        "",
        {"times_deferred": 2, "attempts": 3},
        attempts=[
            tried(1, 1, "10:30:10", None, meaning="retry_lane"),
            tried(1, 2, "10:30:20", 503, meaning="retry_lane"),
            tried(1, 3, "10:30:30", 200),
        ],
    ),
    "what could not be sent has no number yet where its policy sets it aside": overtaken(
        SET_ASIDE,
        {"times_deferred": 1, "attempts": 2},
        attempts=[tried(1, 1, "10:19", None, meaning="deferred"), tried(1, 2, "10:30:30", 200)],
    ),
    "it has where it was answered, or suspended its subscription": overtaken(
        "",
        {"times_deferred": 1, "attempts": 3},
        attempts=[
            tried(1, 1, "10:30:10", 500, meaning="deferred"),
            tried(1, 2, "10:30:20", 503, meaning="suspend"),
            tried(1, 3, "10:30:30", 200),
        ],
    ),
    "a script that was lost explains it also where its endpoint suspended the subscription later": overtaken(
        SET_ASIDE,
        {"times_deferred": 1, "attempts": 2},
        attempts=[tried(1, 1, "10:30:10", 503, meaning="suspend"), tried(1, 2, "10:30:30", 200)],
    ),
    "what is delayed is overtaken by what is published before it is due": overtaken(
        NOT_DUE, {"not_before": at("10:20")}
    ),
    "or is published up to a minute after it was due": overtaken(NOT_DUE, {"not_before": at("10:19")}),
    "what is published later than that is an inversion": overtaken("", {"not_before": at("10:18:59.999")}),
    **{
        f"what is delayed and then not active is skipped, {what} of its own subscription": Case(
            [
                sent(1, 3, "10:00", "10:31", not_before=at("10:05")),
                sent(2, 1, made, "10:10"),
                sent(3, 2, "10:20", "10:30", **OTHERS),
            ],
            [("inversion", 1, 3, explanation)],
            status_changes=[changed(3)],
            checked=3,
        )
        for what, made, explanation in (
            ("also by what was published before it was due", "10:06", NOT_ACTIVE),
            ("but not by what was published later", "10:06:00.001", ""),
        )
    },
    "that it was to be sent when it had been published already explains nothing": overtaken(
        "", created("10:19:30", not_before=at("10:19:30"))
    ),
    "what is backfilled has an older id than what was made before it": overtaken(
        MADE_LATER, created("10:21", replay_id=5), late=OTHERS
    ),
    "and is sent before what its own subscription got meanwhile": overtaken(
        "", created("10:21", replay_id=5), status_changes=[changed(3, "10:30")]
    ),
    "what was made while it waited was sent before it since its subscription was paused": overtaken(
        NOT_ACTIVE, created("10:18", replay_id=5), late=OTHERS, status_changes=[changed(3, "10:30")]
    ),
    "a slice of a replay may be under way as long as a minute, and others publish meanwhile": overtaken(
        MADE_LATER, created("10:19", resubmit_of=0, replay_id=5)
    ),
    "a slice of a replay takes no longer than a minute": overtaken("", created("10:18:59", resubmit_of=0, replay_id=5)),
    "that the message of what is sent again had been sent before tells nothing": overtaken(
        MADE_LATER, created("10:19:59", resubmit_of=0), attempts=[tried(9, 1, "10:00", 200, message_id=1)]
    ),
    "what was overtaken by something unfinished": Case(
        [EARLY, {**LATE, "finished_at": None, "status": "PENDING"}], [("inversion", 1, 2, "")], checked=1
    ),
    "what is unfinished is checked when it has ended": Case(
        [{**EARLY, "finished_at": None, "status": "PENDING"}, LATE], checked=1
    ),
    "a number that was given twice": Case(
        [sent(1, 1, "10:00", "10:30"), sent(2, 1, "10:20", None)], [("number given twice", 2, 1, "")], checked=1
    ),
    "QUEUE deliveries, SYNC calls and what was never sent have no numbers and no order": Case(
        [sent(1, None, "10:20", "10:30", **OF_GROUP), sent(2, None, "10:00", "10:31", status="CANCELLED")], checked=0
    ),
    "an attempt after an answer that ended it": Case(
        [sent(1, 1, "10:00", "10:30", status="REJECTED")],
        [("sent again", 1, None, "")],
        [tried(1, 1, "10:30", 404), tried(1, 2, "10:31", 503)],
        checked=1,
    ),
    "two attempts of one number": Case(
        [sent(1, 1, "10:00", "10:30")],
        [("sent again", 1, None, "")],
        [tried(1, 1, "10:30", 503, id=10), tried(1, 1, "10:30", 503, id=11)],
        checked=1,
    ),
    "what its policy retries is sent again after any answer": Case(
        [sent(1, 1, "10:00", "10:33", attempts=3)],
        (),
        [
            tried(1, 1, "10:30", 404, meaning="retry_lane"),
            tried(1, 2, "10:31", 302, meaning="deferred"),
            tried(1, 3, "10:33", 200),
        ],
        checked=1,
    ),
    "an attempt after the last one that its policy allows": Case(
        [sent(1, 1, "10:00", "10:33", attempts=2, status="FAILED")],
        [("sent again", 1, None, "")],
        [tried(1, 1, "10:30", 503, meaning="end"), tried(1, 2, "10:33", 200)],
        checked=1,
    ),
    "an attempt after a 2xx answer": Case(
        [sent(1, None, "10:00", "10:33", attempts=2)],
        [("sent again", 1, None, "")],
        [tried(1, 1, "10:30", 200), tried(1, 2, "10:33", 500, meaning="retry_lane")],
        checked=0,
    ),
    "attempts until it is answered, also those that began the day before": Case(
        [sent(1, 1, "10:00", "10:33", attempts=6)],
        (),
        [tried(1, 4, "10:30", None), tried(1, 5, "10:31", 500), tried(1, 6, "10:33", 200)],
        checked=1,
    ),
    "a delivery whose request had no known outcome may come twice, flagged": Case(
        [sent(1, 1, "10:00", "10:30", uncertain=True), sent(2, None, "10:00", "10:31", uncertain=True, kind="SYNC")],
        [("possible duplicate", 1, None, "the outcome of a request was unknown; flagged")],
        checked=1,
    ),
    "likewise with concurrent delivery": Case(
        [sent(2, None, "10:20", "10:30"), sent(1, None, "10:00", "10:31", uncertain=True)],
        [("possible duplicate", 1, None, "the outcome of a request was unknown; flagged")],
        checked=0,
    ),
    "a group that two endpoints took": Case(
        [sent(1, None, "10:00", "10:30", **OF_GROUP), sent(2, None, "10:00", "10:31", **OF_GROUP)],
        [("taken twice", 2, 1, "")],
        checked=0,
    ),
    "a group that one took": Case(
        [sent(1, None, "10:00", "10:30", **OF_GROUP), sent(2, None, "10:00", "10:30", **OF_GROUP, status="REDUNDANT")],
        checked=0,
    ),
}

LATER_HOUR: Final = "one that ended two hours later"
EARLIER_HOURS: Final = "8, 3, 9 and 2 were sent, in this order, and 8 and 9 had ended in the hours before"
EARLIER_KEY: Final = "one with an ordering key, after an hour with a greater id"
MANY: Final = "one that overtook 150"
MORE: Final[dict[str, Case]] = {
    LATER_HOUR: Case([sent(1, 2, "10:00", "12:31"), LATE]),
    EARLIER_HOURS: Case(
        [sent(3, 2, "07:30", "10:01"), sent(2, 4, "09:00:00", "10:02")],
        audit=[
            {"hour": at("08:00"), "high_id": 8, "high_sequence": 1, "high_created_at": at("08:00")},
            {"hour": at("09:00"), "high_id": 9, "high_sequence": 3, "high_created_at": at("09:00:01")},
            {"hour": at("09:00")},
        ],
    ),
    EARLIER_KEY: Case(
        [sent(3, 2, "07:30", "10:01", **A)],
        audit=[{"hour": at("09:00"), "high_id": 9, "high_sequence": 1, "high_created_at": at("09:00")}],
    ),
    MANY: Case([sent(999, 1, "10:20", "10:30"), *({**EARLY, "id": n, "sequence": n + 1} for n in range(1, 151))]),
}
ALL: Final = CASES | MORE
NUMBERS: Final = {name: number for number, name in enumerate(ALL, 1)}
"""Of the subscriber of each case."""


def shifted(rows: Iterable[Row], number: int, **owner: Any) -> list[Row]:
    """Return the rows with the ids that they have in the case of this number, and with their owner."""
    shift = number * APART
    return [
        {key: value + shift if key in SHIFTED and value is not None else value for key, value in row.items()} | owner
        for row in rows
    ]


def of_case(name: str, rows: Iterable[Row]) -> list[Row]:
    """Return what was found for the subscriber of a case, with the ids that its rows have there, in order."""
    ours = (row for row in rows if row["subscriber_id"] == NUMBERS[name])
    return sorted(shifted(ours, -NUMBERS[name]), key=lambda row: (row.get("delivery_id", 0), row["hour"]))


@pytest.fixture(scope="module")
def silver(spark: SparkSession) -> Frames:
    rows = defaultdict[str, list[Row]](list)
    for name, number in NUMBERS.items():
        case, owner = ALL[name], {"subscriber_id": number, "subscriber": f"S{number}"}
        rows["deliveries"] += shifted(case.deliveries, number, **owner)
        rows["attempts"] += shifted(case.attempts, number, **owner)
        rows["audit"] += shifted(case.audit, number, **owner)
        rows["status_changes"] += shifted(case.status_changes, number, subscriber_id=number)
        rows["releases"] += shifted(case.releases, number)
    return silver_of(spark, **rows)


@pytest.fixture(scope="module")
def found(silver: Frames) -> list[dict[str, Any]]:
    return rows_of(findings(silver, WORDS))


@pytest.fixture(scope="module")
def audited(silver: Frames) -> list[dict[str, Any]]:
    return rows_of(audit(silver, WORDS))


def told(rows: Iterable[Row]) -> list[Found]:
    return [(one["finding"], one["delivery_id"], one["other_id"], one["explanation"]) for one in rows]


@pytest.mark.behaviour("4.10", "4.11", "4.18")
@pytest.mark.parametrize("name", CASES)
def test_findings_and_their_counts(name: str, found: list[Row], audited: list[Row]) -> None:
    case = CASES[name]
    assert told(of_case(name, found)) == list(case.found)
    kinds = [(finding == "inversion", explanation != "") for finding, _, _, explanation in case.found]
    counts = {
        "checked": case.checked,
        "inversions": sum(is_inversion for is_inversion, _ in kinds),
        "explained_inversions": kinds.count((True, True)),
        "duplicates": sum(not is_inversion for is_inversion, _ in kinds),
        "explained_duplicates": kinds.count((False, True)),
    }
    row = {"hour": at("10:00"), "subscriber_id": NUMBERS[name], "subscriber": f"S{NUMBERS[name]}", **counts}
    counted = [
        {column: value for column, value in one.items() if not column.startswith("high_")}
        for one in of_case(name, audited)
    ]
    assert counted == ([row] if any(counts.values()) else [])


def test_a_finding_is_in_the_hour_in_which_the_later_one_ended(found: list[Row], audited: list[Row]) -> None:
    owner = {"subscriber_id": NUMBERS[LATER_HOUR], "subscriber": f"S{NUMBERS[LATER_HOUR]}"}
    columns = {"finding": "inversion", "delivery_id": 1, "other_id": 2, "explanation": ""}
    assert of_case(LATER_HOUR, found) == [{"hour": at("12:00"), "at": at("12:31"), **owner, **columns}]
    none = {"explained_inversions": 0, "duplicates": 0, "explained_duplicates": 0}
    first = {"high_id": 2, "high_sequence": 1, "high_created_at": at("10:20")}
    second = {"high_id": 1, "high_sequence": 2, "high_created_at": at("10:00")}
    hours = [{"hour": at("10:00"), "inversions": 0, **first}, {"hour": at("12:00"), "inversions": 1, **second}]
    assert of_case(LATER_HOUR, audited) == [{**owner, "checked": 1, **none, **hour} for hour in hours]


def test_earlier_hours_are_compared_with_but_not_found_again(found: list[Row], audited: list[Row]) -> None:
    """The last hour's, 9, is named where both had ended by then."""
    assert told(of_case(EARLIER_HOURS, found)) == [
        ("inversion", 2, 9, "published at the same time"),
        ("inversion", 3, 8, ""),
    ]
    assert [(one["checked"], one["inversions"]) for one in of_case(EARLIER_HOURS, audited)] == [(2, 2)]


def test_what_has_an_ordering_key_is_compared_with_no_earlier_hour(found: list[Row], audited: list[Row]) -> None:
    assert of_case(EARLIER_KEY, found) == []
    counted = [(one["checked"], one["inversions"], one["high_id"]) for one in of_case(EARLIER_KEY, audited)]
    assert counted == [(1, 0, None)]


def test_a_hundred_findings_of_a_kind_are_kept_and_all_are_counted(found: list[Row], audited: list[Row]) -> None:
    assert [one["delivery_id"] for one in of_case(MANY, found)] == [*range(1, MAX_EXAMPLES + 1)]
    assert [(one["checked"], one["inversions"]) for one in of_case(MANY, audited)] == [(151, 150)]
