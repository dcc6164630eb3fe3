"""Polls that come, are woken, and leave in any order: who has a seat, and who is woken."""

from contextlib import ExitStack
from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from delivery.mailbox.long_poll import Poll, Room, who_gives_up_a_seat

SHOP, BANK, POST = 1, 2, 3
SEATS = 5
SUBSCRIBERS = st.sampled_from([SHOP, BANK, POST])
WHICH = st.integers(0, SEATS - 1)
"""Of those that have a seat, counted round."""


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
    """Polls come, are woken, come back in vain, lose their clients and leave, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.room = Room(SEATS)
        self.seated: list[Seated] = []
        self.is_closed = False

    def teardown(self) -> None:
        for one in self.seated:
            one.leaving.close()

    @rule(subscriber_id=SUBSCRIBERS)
    def come(self, subscriber_id: int) -> None:
        leaving = ExitStack()
        of = [one.subscriber_id for one in self.seated]
        given_up = who_gives_up_a_seat(of, subscriber_id) if len(of) == SEATS and not self.is_closed else None
        poll = leaving.enter_context(self.room.seat(subscriber_id))
        assert (poll is not None) == (not self.is_closed and (len(of) < SEATS or given_up is not None))
        if given_up is not None:
            loser = self.seated.pop(given_up)
            assert loser.poll.is_let_go
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
        self.room.wake(available)
        for subscriber_id, number in available.items():
            here = [one for one in self.seated if one.subscriber_id == subscriber_id]
            for one in [one for one in here if not one.is_woken][: max(0, number - sum(one.is_woken for one in here))]:
                one.is_woken = True

    @precondition(lambda self: self.seated)
    @rule(which=WHICH)
    def let_go(self, which: int) -> None:
        one = self.seated[which % len(self.seated)]
        one.poll.let_go()
        one.is_let_go = one.is_woken = True

    @precondition(lambda self: self.seated)
    @rule(which=WHICH)
    def leave(self, which: int) -> None:
        self.seated.pop(which % len(self.seated)).leaving.close()

    @rule(subscriber_ids=st.sets(SUBSCRIBERS))
    def hint(self, subscriber_ids: set[int]) -> None:
        self.room._bell.clear()
        self.room.hint(subscriber_ids)
        assert self.room._bell.is_set() == any(one.subscriber_id in subscriber_ids for one in self.seated)

    @precondition(lambda self: len(self.seated) == SEATS)
    @rule()
    def close(self) -> None:
        self.room.close()
        self.is_closed = True
        for one in self.seated:
            one.is_let_go = one.is_woken = True

    @invariant()
    def everybody_is_counted(self) -> None:
        of = [one.subscriber_id for one in self.seated]
        assert self.room.waiting() == {subscriber_id: of.count(subscriber_id) for subscriber_id in of}

    @invariant()
    def whoever_is_to_fetch_is_woken_and_nobody_else(self) -> None:
        assert [one.poll.is_woken for one in self.seated] == [one.is_woken for one in self.seated]


TestPollsComeAndGo = PollsComeAndGo.TestCase
