"""The demo's verdict, from invented logs."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest

from broker_project.stack.demo.events import Behaviour, Sample
from broker_project.stack.demo.records import Answered, Published, Request, line, published_in, requests_in
from broker_project.stack.demo.verdict import (
    Account,
    Archived,
    Jobs,
    Whole,
    judge,
    judge_jobs,
    judge_mailbox,
    judge_questions,
)

JOB, OTHER = 20, 21
"""Two jobs, the first of which wants a reply."""
SAMPLE = Sample("billing", Behaviour.STEADY, ("Paid",), region="eu")


def published(number: int, *, at: float | None = None, lasting: float = 0.5, position: int = 0) -> Published:
    started = float(number) if at is None else at
    return Published(number, "Paid", "eu", f"mark {number}", started, started + lasting, position, deliveries=1)


def request(number: int, answer: int = 200, **fields: object) -> Request:
    usual = Request("billing", "/Paid", f"id {number}", "1", "1", "", True, number, f"mark {number}", 0.0, answer)
    return dataclasses.replace(usual, **fields)  # type: ignore[arg-type]


def judged_jobs(requests: list[Request], replies: list[Request], books: dict[int, int] | None = None) -> Jobs:
    """Judge two jobs, the first of which wants a reply, by requests ten seconds apart."""
    arrived = [dataclasses.replace(each, at=10.0 * place) for place, each in enumerate(requests, start=1)]
    jobs = [dataclasses.replace(published(number), message=number) for number in (JOB, OTHER)]
    return judge_jobs(jobs, arrived, replies, {JOB: 1, OTHER: 1} | (books or {}))


def archived(requests: list[Request], books: dict[int, int] | None = None) -> Archived:
    """Judge a mailbox with two events by hand-outs ten seconds apart."""
    handed = [dataclasses.replace(each, at=10.0 * place) for place, each in enumerate(requests, start=1)]
    events = [dataclasses.replace(published(number), message=number) for number in (1, 2)]
    return judge_mailbox(events, handed, {1: 1, 2: 1} | (books or {}))


def printed(number: int) -> Request:
    return request(number, subscriber="printer-1")


def replied(number: int) -> Request:
    return request(number, 204, subscriber="replies")


def account_of(events: Sequence[Published], requests: Sequence[Request]) -> Account:
    """Return the account of requests that arrive ten seconds apart, the first at 10."""
    arrived = [dataclasses.replace(each, at=10.0 * place) for place, each in enumerate(requests, start=1)]
    return judge(events, arrived, [SAMPLE], planned=len(events)).accounts["billing"]


def test_everything_in_order() -> None:
    assert account_of([published(1), published(2)], [request(1), request(2, 404)]) == Account(
        expected=2,
        delivered=1,
        rejected=1,
        set_aside=0,
        requests=2,
        lost=0,
        duplicated=0,
        inverted=0,
        wrong=0,
        p50=9.0,
        p95=9.0,
    )


@pytest.mark.parametrize(
    ("answers", "lost"),
    [
        ([200, 200], 0),
        ([200, 422], 0),
        ([200], 1),
        ([200, 500], 1),
        ([200, 503, 503], 1),
        ([200, 503, 200], 0),
    ],
)
def test_lost_is_what_never_got_a_final_answer(answers: list[int], lost: int) -> None:
    requests = [request(1 if place == 0 else 2, answer) for place, answer in enumerate(answers)]
    assert account_of([published(1), published(2)], requests).lost == lost


@pytest.mark.parametrize(
    ("answers", "duplicated"),
    [
        ([200], 0),
        ([500, 200], 0),
        ([503, 503, 200], 0),
        ([200, 200], 1),
        ([404, 200], 1),
        ([302, 302, 302], 2),
        ([200, 500], 1),
    ],
)
def test_duplicated_is_what_comes_after_a_final_answer(answers: list[int], duplicated: int) -> None:
    assert account_of([published(1)], [request(1, answer) for answer in answers]).duplicated == duplicated


def test_a_possible_duplicate_after_a_final_answer_is_a_duplicate_however_it_is_flagged() -> None:
    assert account_of([published(1)], [request(1), request(1, possible_duplicate="true")]).duplicated == 1


def test_the_same_event_under_two_ids_is_a_duplicate() -> None:
    assert account_of([published(1)], [request(1), request(1, webhook_id="another")]).duplicated == 1


@pytest.mark.parametrize(
    ("order", "inverted"),
    [([1, 2, 3], 0), ([2, 1, 3], 1), ([3, 2, 1], 2), ([3, 1, 2], 2), ([2, 3, 1], 1)],
)
def test_inverted_counts_the_events_that_were_overtaken(order: list[int], inverted: int) -> None:
    events = [published(number) for number in (1, 2, 3)]
    assert account_of(events, [request(number) for number in order]).inverted == inverted


def test_publish_calls_that_overlap_have_no_order() -> None:
    events = [published(1, at=1.0, lasting=2.0), published(2, at=2.0)]
    assert account_of(events, [request(2), request(1)]).inverted == 0


@pytest.mark.parametrize(("order", "inverted"), [([1, 2, 3], 0), ([1, 3, 2], 1)])
def test_a_batch_has_an_order_of_its_own(order: list[int], inverted: int) -> None:
    events = [published(number, at=1.0, position=number) for number in (1, 2, 3)]
    assert account_of(events, [request(number) for number in order]).inverted == inverted


def test_a_batch_keeps_its_order_when_another_publisher_comes_between() -> None:
    batch = [published(number, at=1.0, lasting=5.0, position=number) for number in (1, 2)]
    events = [*batch, published(3, at=2.0)]
    assert account_of(events, [request(number) for number in (2, 3, 1)]).inverted == 1


def test_what_was_set_aside_may_be_overtaken() -> None:
    requests = [request(1, 500), request(2), request(1)]
    assert account_of([published(1), published(2)], requests).inverted == 0
    assert account_of([published(1), published(2)], requests).set_aside == 1


def test_service_unavailable_holds_the_line() -> None:
    assert account_of([published(1), published(2)], [request(1, 503), request(2), request(1)]).inverted == 1


@pytest.mark.parametrize(
    "strange",
    [request(1, fingerprint="other"), request(1, signed=False), request(7)],
    ids=["altered", "not signed", "of an event that is not for it"],
)
def test_wrong_requests_are_counted_and_spoil_the_verdict(strange: Request) -> None:
    verdict = judge([published(1)], [strange, request(1, answer=200)], [SAMPLE], planned=1)
    assert (verdict.wrong, verdict.holds) == (1, False)


def test_the_last_line_says_it_all() -> None:
    verdict = judge([published(1), published(2)], [request(1), request(2, 404, at=1.0)], [SAMPLE], planned=2)
    questions = judge_questions(2, [Answered(50, 0.1, 200, is_right=True), Answered(51, 0.2, 502, is_right=False)])
    jobs = judged_jobs([printed(JOB), printed(OTHER)], [replied(JOB)])
    whole = Whole(6, verdict, archived([request(1), request(2)]), jobs, questions)
    assert not whole.holds
    assert str(whole) == "demo: published 5, deliveries 9, delivered 7, rejected 1, lost 1, duplicated 0, inverted 0"
    better = dataclasses.replace(whole, questions=judge_questions(2, [Answered(50, 0.1, 200, is_right=True)] * 2))
    assert better.holds
    assert not dataclasses.replace(better, archived=archived([request(1)])).holds


@pytest.mark.parametrize(
    ("requests", "replies", "books", "wrong"),
    [
        ([JOB, OTHER], [JOB], {}, {}),
        ([JOB], [JOB], {}, {"lost": 1}),
        ([JOB, OTHER], [], {}, {"lost": 1}),
        ([JOB, OTHER, JOB], [JOB], {}, {"duplicated": 1}),
        ([JOB, OTHER], [JOB, JOB], {}, {"duplicated": 1}),
        ([JOB, OTHER], [JOB, OTHER], {}, {"wrong": 1}),
        ([JOB, OTHER], [JOB], {JOB: 2}, {"misrecorded": 1}),
        ([JOB, OTHER], [JOB], {OTHER: 0}, {"misrecorded": 1}),
    ],
)
def test_a_job_is_done_once_and_replied_to_once(
    requests: list[int], replies: list[int], books: dict[int, int], wrong: dict[str, int]
) -> None:
    jobs = judged_jobs([*map(printed, requests)], [*map(replied, replies)], books)
    names = ("lost", "duplicated", "wrong", "misrecorded")
    assert {name: getattr(jobs, name) for name in names if getattr(jobs, name)} == wrong


AGAIN = request(1, possible_duplicate="true")


@pytest.mark.parametrize(
    ("handed", "books", "wrong"),
    [
        ([request(1), request(2)], {}, {}),
        ([request(1, 500), request(2), AGAIN], {}, {"returned": 1}),
        ([request(1), request(2), AGAIN], {}, {}),
        ([request(1), request(2), request(1)], {}, {"duplicated": 1}),
        ([request(1)], {}, {"lost": 1}),
        ([request(1), request(2, 500)], {}, {"lost": 1, "returned": 1}),
        ([request(1), request(2, fingerprint="other")], {}, {"wrong": 1}),
        ([request(1), request(2), request(7)], {}, {"wrong": 1}),
        ([request(1), request(2)], {1: 2}, {"misrecorded": 1}),
        ([request(1), request(2)], {2: 0}, {"misrecorded": 1}),
    ],
)
def test_what_is_fetched_is_archived_and_handed_out_again_only_with_a_flag(
    handed: list[Request], books: dict[int, int], wrong: dict[str, int]
) -> None:
    seen = archived(handed, books)
    names = ("lost", "duplicated", "wrong", "misrecorded", "returned")
    assert {name: getattr(seen, name) for name in names if getattr(seen, name)} == wrong


def test_readers_share_what_is_fetched() -> None:
    first, second = request(1, subscriber="archive-1"), request(2, 500, subscriber="archive-2")
    seen = archived([first, second, dataclasses.replace(second, subscriber="archive-1", answer=200)])
    assert (seen.done, seen.done_by, seen.handed_to) == (2, {"archive-1": 2}, {"archive-1": 2, "archive-2": 1})
    assert seen.p50 == 18.5


def test_what_a_mailbox_gets_is_not_announced_to_the_others() -> None:
    events = [dataclasses.replace(published(1), deliveries=2)]
    assert judge(events, [request(1)], [SAMPLE], planned=1, fetched=1).holds


def test_a_copy_of_a_job_that_says_so_is_none_too_many() -> None:
    copy = dataclasses.replace(printed(JOB), possible_duplicate="true")
    assert judged_jobs([printed(JOB), copy, printed(OTHER)], [replied(JOB)]).duplicated == 0


def test_announced_deliveries_that_were_not_to_be_spoil_the_verdict() -> None:
    events = [dataclasses.replace(published(1), deliveries=2)]
    assert not judge(events, [request(1)], [SAMPLE], planned=1).holds


def test_an_event_that_could_not_be_published_spoils_the_verdict() -> None:
    assert not judge([published(1)], [request(1)], [SAMPLE], planned=2).holds


def test_events_of_other_regions_and_types_are_not_expected() -> None:
    others = [
        dataclasses.replace(published(2), region="us", deliveries=0),
        dataclasses.replace(published(3), type="Shipped", deliveries=0),
    ]
    verdict = judge([published(1), *others], [request(1)], [SAMPLE], planned=3)
    assert (verdict.published, verdict.deliveries, verdict.holds) == (3, 1, True)


def test_logs_are_read_back_as_written_but_for_a_last_unfinished_line(tmp_path: Path) -> None:
    received, sent = tmp_path / "received", tmp_path / "sent"
    received.write_text(line(request(1)) + line(request(2))[:-5])
    sent.write_text(line(published(1)))
    assert (requests_in(received), published_in([sent])) == ([request(1)], [published(1)])
