"""Long polls: who has a slot, who is woken, in which order (contract 9.1)."""

import threading
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from delivery.mailbox.long_poll import Poll, WaitingPolls, max_polls, slot_to_release

SHOP, BANK, POST = 1, 2, 3
SEATS = 5
MANY = st.integers(1, SEATS + 2)
"""More subscribers than there are seats."""
TAKEN = st.lists(MANY, min_size=SEATS, max_size=SEATS)
SUBSCRIBERS = st.sampled_from([SHOP, BANK, POST])
WHICH = st.integers(0, SEATS - 1)
"""Of those that have a seat, counted round."""


def test_the_poller_rests_without_polls_and_until_a_hint() -> None:
    polls, looks = WaitingPolls(), list[dict[int, int]]()

    def look() -> None:
        for _ in range(3):
            polls.rest(3600)
            looks.append(dict(polls.counts()))

    polls.hint([SHOP])  # for whom nobody waits
    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    with polls.slot(SHOP):
        while not looks:  # the first to come is looked after at once
            looking.join(0.001)
        polls.hint([BANK])
        polls.hint([SHOP])
        while len(looks) < 2:
            looking.join(0.001)
    looking.join(30)  # the last to leave lets the connection go
    assert looks == [{SHOP: 1}, {SHOP: 1}, {}]


@pytest.mark.parametrize(
    ("taken", "newcomer", "given_up"),
    [
        ([SHOP, SHOP, SHOP], BANK, 2),
        ([SHOP, BANK, SHOP], BANK, None),  # then the bank would have two of three, and the shop come back for one
        ([SHOP, SHOP, SHOP, BANK], BANK, 2),
        ([BANK, SHOP, BANK, SHOP], POST, 3),  # who came last, of those that have the most
        ([BANK, SHOP, BANK, SHOP], SHOP, None),
        ([SHOP, BANK], POST, None),
        ([SHOP], SHOP, None),
        ([], SHOP, None),
    ],
)
def test_a_slot_goes_to_a_subscriber_with_fewer(taken: list[int], newcomer: int, given_up: int | None) -> None:
    assert slot_to_release(taken, newcomer) == given_up


@given(TAKEN, st.lists(MANY, max_size=50))
def test_a_subscriber_without_a_slot_is_refused_only_where_none_has_two(taken: list[int], newcomers: list[int]) -> None:
    for newcomer in newcomers:
        given_up = slot_to_release(taken, newcomer)
        if given_up is None:
            assert newcomer in taken or len({*taken}) == SEATS
        else:
            taken = [*taken[:given_up], *taken[given_up + 1 :], newcomer]


@given(TAKEN, st.permutations([*range(1, SEATS + 3)] * 10))
def test_seats_come_to_rest_however_often_everybody_comes_again(taken: list[int], newcomers: list[int]) -> None:
    for newcomer in newcomers:
        if (given_up := slot_to_release(taken, newcomer)) is not None:
            taken = [*taken[:given_up], *taken[given_up + 1 :], newcomer]
    assert {slot_to_release(taken, newcomer) for newcomer in range(1, SEATS + 3)} == {None}


@pytest.mark.parametrize(("threads", "seats"), [(128, 48), (1_000, 48), (64, 24), (32, 12), (2, 0)])
def test_polls_leave_most_threads_of_a_web_process_to_others(threads: int, seats: int) -> None:
    assert max_polls(threads) == seats


@dataclass(slots=True, eq=False)
class Seated:
    """What is known of a poll."""

    subscriber_id: int
    poll: Poll
    leaving: ExitStack
    is_woken: bool = False
    is_let_go: bool = False
    has_fetched: bool = False


class PollsComeAndGo(RuleBasedStateMachine):
    """Polls come, are woken, find nothing, lose their clients and leave, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.polls = WaitingPolls(SEATS)
        self.seated: list[Seated] = []
        self.is_closed = False

    def teardown(self) -> None:
        for one in self.seated:
            one.leaving.close()

    @rule(subscriber_id=SUBSCRIBERS)
    def come(self, subscriber_id: int) -> None:
        leaving = ExitStack()
        of = [one.subscriber_id for one in self.seated]
        given_up = slot_to_release(of, subscriber_id) if len(of) == SEATS and not self.is_closed else None
        poll = leaving.enter_context(self.polls.slot(subscriber_id))
        assert (poll is not None) == (not self.is_closed and (len(of) < SEATS or given_up is not None))
        if given_up is not None:
            loser = self.seated.pop(given_up)
            assert loser.poll.is_cancelled
            loser.leaving.close()
        if poll:
            self.seated.append(Seated(subscriber_id, poll, leaving))

    @precondition(lambda self: self.seated)
    @rule(which=WHICH)
    def wait(self, which: int) -> None:
        one = self.seated[which % len(self.seated)]
        one.is_woken = one.is_let_go or (one.is_woken and not one.has_fetched)
        assert one.poll.wait(0) == (one.is_woken and not one.is_let_go)
        one.has_fetched = one.is_woken

    @rule(available=st.dictionaries(SUBSCRIBERS, st.integers(1, SEATS)))
    def wake(self, available: dict[int, int]) -> None:
        self.polls.wake(available)
        for subscriber_id, number in available.items():
            here = [one for one in self.seated if one.subscriber_id == subscriber_id]
            for one in [one for one in here if not one.is_woken][: max(0, number - sum(one.is_woken for one in here))]:
                one.is_woken = True

    @precondition(lambda self: self.seated)
    @rule(which=WHICH)
    def let_go(self, which: int) -> None:
        one = self.seated[which % len(self.seated)]
        one.poll.cancel()
        one.is_let_go = one.is_woken = True

    @precondition(lambda self: self.seated)
    @rule(which=WHICH)
    def leave(self, which: int) -> None:
        self.seated.pop(which % len(self.seated)).leaving.close()

    @rule(subscriber_ids=st.sets(SUBSCRIBERS))
    def hint(self, subscriber_ids: set[int]) -> None:
        self.polls._bell.clear()
        self.polls.hint(subscriber_ids)
        assert self.polls._bell.is_set() == any(one.subscriber_id in subscriber_ids for one in self.seated)

    @precondition(lambda self: len(self.seated) == SEATS)
    @rule()
    def close(self) -> None:
        self.polls.close()
        self.is_closed = True
        for one in self.seated:
            one.is_let_go = one.is_woken = True

    @invariant()
    def everybody_is_counted(self) -> None:
        of = [one.subscriber_id for one in self.seated]
        assert self.polls.counts() == {subscriber_id: of.count(subscriber_id) for subscriber_id in of}

    @invariant()
    def only_polls_that_are_to_fetch_are_woken(self) -> None:
        assert [one.poll.is_woken for one in self.seated] == [one.is_woken for one in self.seated]


TestPollsComeAndGo = PollsComeAndGo.TestCase
