"""One round trip to the database: settle what has ended, mark what is next, read pages; and all that can go wrong.

If the database is away, slots are settled again; so are those with a locked row, in a moment. If it refuses a value,
they are settled one by one, and the offender is given up. A fenced line is lost. docs/architecture.md has a table.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from logging import INFO
from typing import Any, Final, LiteralString

import orjson
import structlog
from django.db import DatabaseError, Error, InterfaceError, OperationalError

from broker_project.core import boot_clock
from broker_project.core.database_clock import DATABASE_CLOCK
from broker_project.core.db import RowLocked, Rows, array, rows, rows_of_each
from delivery.callbacks.address import CallbackTerms
from delivery.dispatch.claim import ActiveHold
from delivery.limits import REFUSED_GROUP_SECONDS, SETTLE_EARLIER_SECONDS
from delivery.statuses import UNFINISHED, DeliveryStatus
from delivery.webhook.destination import NEVER_CONFIGURED
from delivery.webhook.request import Outgoing, request_of
from delivery.worker.buffer import BodyBudget
from delivery.worker.line import ActiveLine
from delivery.worker.pages import DatabaseBackoff, Pages
from delivery.worker.queue_settle import SETTLE_GROUPS, put_back
from delivery.worker.settle_sql import SETTLE
from delivery.worker.slots import Ended, LineUpdate, Rest, Send, Settlement, Slot, Slots, SlotState, Withheld
from delivery.worker.sql_blocks import with_blocks

log = structlog.get_logger(__name__)
message_log = structlog.get_logger("messages")

OURS: Final = """
SELECT l.id FROM delivery_line l
  JOIN unnest(%s::bigint[], %s::bigint[]) AS o (line_id, epoch) ON l.id = o.line_id AND l.epoch = o.epoch
"""
NOT_TAKEN: Final = frozenset({DeliveryStatus.FAILED, DeliveryStatus.REJECTED})
"""How a delivery can end that was not taken: without an answer too, once its retries are used up."""

Mark = dict[str, Any]
"""What marks a delivery as IN_FLIGHT before it is sent."""


@dataclass(slots=True)
class Settling:
    """What is settled together, either of QUEUE senders or of other lines, and what came of it; safe to repeat."""

    epochs: Mapping[int, int]
    """Of its lines."""
    _: KW_ONLY
    of_groups: bool = False
    """Whether the lines are those of QUEUE senders."""
    settlements: Sequence[Settlement] = ()
    withheld: Sequence[Withheld] = ()
    marks: Sequence[Mark] = ()
    holds: Sequence[ActiveHold] = ()
    states: Sequence[LineUpdate] = ()
    slots: Sequence[Slot] = ()
    """Those whose steps these are."""

    owned: frozenset[int] = field(init=False)
    """Lines whose epoch is still ours, and that were settled; all, if there is nothing to record."""
    locked: frozenset[int] = field(init=False, default=frozenset())
    """Lines that are still ours, of which somebody has locked something: settle them again. All others are fenced."""
    ended: frozenset[int] = field(init=False, default=frozenset())
    """Deliveries whose attempt was recorded now."""
    started: Mapping[int, int] = field(init=False, default_factory=dict)
    """The number of each delivery that may be sent now; one that is missing may not."""
    waits: Mapping[int, float] = field(init=False, default_factory=dict)
    """Seconds until subscriptions with a rate limit may be sent to again, if something was to be sent to them."""

    def __post_init__(self) -> None:
        self.owned = frozenset(self.epochs)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to record."""
        return not (self.settlements or self.withheld or self.marks or self.holds or self.states)

    def statement(self, *, spares: bool = False) -> tuple[LiteralString, Mapping[str, Any]]:
        """Return the statement that settles it, with the blocks that it needs.

        A line of which somebody has locked a delivery is waited for, for a moment, or left out: it `spares` them.
        """
        needs = self._needs_of_groups() if self.of_groups else self._needs_of_lines()
        needs |= {"writes": bool(self.states), "spares": spares}
        blocks = frozenset(name for name, is_needed in needs.items() if is_needed)
        arguments = {
            "line_id": array(self.epochs.keys()),
            "epoch": array(self.epochs.values()),
            "settlements": _json([one.row() for one in self.settlements]),
            "marks": _json(self.marks),
        }
        others = {"withheld": self.withheld, "holds": self.holds, "states": self.states}
        arguments |= {name: _json(values) for name, values in others.items() if values}
        return with_blocks(SETTLE_GROUPS if self.of_groups else SETTLE, blocks), arguments

    def _needs_of_groups(self) -> dict[str, bool]:
        return {
            "stays": any(one.status is not DeliveryStatus.DELIVERED for one in self.settlements),
            "announces": any(one.status is DeliveryStatus.REJECTED for one in self.settlements),
        }

    def _needs_of_lines(self) -> dict[str, bool]:
        stays = any(one.status in UNFINISHED for one in self.settlements)
        not_taken = [one for one in self.settlements if one.status in NOT_TAKEN]
        effects = [one.side_effects for one in self.settlements if one.side_effects]
        return {
            "stays": stays,
            "doubts": stays or any(one.status_code is None for one in not_taken),
            "turns": any(effect.suspends or effect.resumes for effect in effects),
            "diverts": any(effect.diverts is not None for effect in effects),
            "announces": any(one.side_effects and one.side_effects.announces for one in not_taken),
            "withholds": bool(self.withheld),
            "holds": bool(self.holds),
            "keyed": any(mark.get("is_last_chance") for mark in self.marks),
            "keeps_pace": any(mark.get("rate_slot") for mark in self.marks),
            "replies": any(mark["config_version"] == NEVER_CONFIGURED for mark in self.marks),
        }

    def note(self, found: Rows) -> None:
        """Note what its statement did, whose one row was `found`."""
        ((owned, ended, started, sequences, *waits),) = found
        self.owned, self.ended = frozenset(owned), frozenset(ended)
        self.started, self.waits = dict(zip(started, sequences, strict=True)), dict(zip(*waits, strict=True))
        if missing := self.epochs.keys() - self.owned:
            ours = rows(OURS, [array(missing), array(self.epochs[line_id] for line_id in missing)])
            self.locked = frozenset(line_id for (line_id,) in ours)

    def settle_missed(self) -> None:
        """Settle what somebody asked to cancel after the statement had begun: its snapshot was older than the wish.

        A line is lost if what it was answered is not in flight even then: the database has forgotten a mark.
        """
        missed = [one for one in self.settlements if one.line_id in self.owned and one.delivery_id not in self.ended]
        if missed:
            of = {one.line_id for one in missed}
            states = [one for one in self.states if one.line_id in of]
            rest = Settling(self.epochs, of_groups=self.of_groups, settlements=missed, states=states)
            rest.note(rows(*rest.statement(spares=True)))
            unheard = {slot.line.id for slot in self.slots if slot.may_be_settled}
            lost = rest.owned & {one.line_id for one in missed if one.delivery_id not in rest.ended} - unheard
            for line_id in lost:
                log.error("event_loop.mark_forgotten", line_id=line_id, epoch=self.epochs[line_id])
            self.owned, self.locked = self.owned - rest.locked - lost, self.locked | rest.locked


def settling_of(slots: Sequence[Slot]) -> Settling:
    """Return what is settled for these slots, all of QUEUE senders or none: what ended, and what their steps ask for.

    What may be too early for its rate limit gets its number last, so that this is used again if it is.
    """
    lines = {slot.line.id: slot.line for slot in slots}
    sends = [(slot.line, slot.step.delivery) for slot in slots if isinstance(slot.step, Send)]
    keyed = [send for send in sends if send[0].is_keyed]
    for line, delivery in sorted(keyed, key=lambda send: send[1].destination.spacing is not None):
        line.numbers.give(delivery)
    return Settling(
        {line.id: line.claim.epoch for line in lines.values()},
        of_groups=slots[0].line.is_sender,
        settlements=[slot.ended for slot in slots if isinstance(slot.ended, Settlement)],
        withheld=[slot.ended for slot in slots if isinstance(slot.ended, Withheld)],
        marks=[mark_of(line, delivery) for line, delivery in sends],
        holds=[hold for line in lines.values() for hold in line.holds.changed.values()],
        states=[*_released(slots)],
        slots=slots,
    )


def mark_of(line: ActiveLine, delivery: Outgoing) -> Mark:
    """Return what marks `delivery` as IN_FLIGHT, if its config version still is the one that was read.

    Only what is to be said, for each value costs as much as a row.
    """
    to, sequence = delivery.destination, line.numbers.next(delivery)
    mark: Mark = {
        "line_id": line.id,
        "delivery_id": delivery.id,
        "config_version": to.config_version,
        "sequence": sequence,
    }
    if delivery.group_id:
        mark["group_id"] = delivery.group_id
    if to.spacing is not None:
        mark["rate_slot"] = {"subscription_id": to.subscription_id, "spacing": to.spacing}
    if line.is_keyed and sequence is not None and sequence < line.numbers.last_marked:
        mark["is_last_chance"] = True  # the number is given to nothing else: another has a later one
    return mark


def _released(slots: Sequence[Slot]) -> Iterator[LineUpdate]:
    """Yield the updates of the lines of which every slot rests now."""
    resting = {slot for slot in slots if isinstance(slot.step, Rest)}
    for line in {slot.line.id: slot.line for slot in resting}.values():
        if all(slot in resting or slot.state is SlotState.PARKED for slot in line.slots):
            yield line.update()


def _json(values: Sequence[Any]) -> str:
    """Return the values as one parameter: its type never varies, so the statement is prepared once."""
    return orjson.dumps(values, default=bytes.hex).decode()


class RoundTrip:
    """Settles and reads for the slots of a process, with one commit for all of them."""

    def __init__(self, slots: Slots, backoff: DatabaseBackoff, budget: BodyBudget, terms: CallbackTerms) -> None:
        self._slots = slots
        self._backoff = backoff
        self.pages = Pages(slots, backoff, budget, terms)
        self._spares = False
        """Whether a row was locked for longer than a statement waits: lines with such a row are left out."""
        self._is_apart = False
        """Whether the last round trip failed: then each statement goes alone, in case one of them fails always."""

    def settle(self) -> Iterator[Slot | ActiveLine]:
        """Settle all steps: one statement for QUEUE senders, one for all other lines, and with them one that reads.

        Yields the slots whose steps have been settled, and lines that are lost. Any other slot is LOCKED, or SETTLING
        still: the next round settles it. To be exhausted, before what `pages` have read is received.
        """
        slots = self._slots[SlotState.SETTLING]
        due_at = boot_clock.since_boot() + SETTLE_EARLIER_SECONDS * self._slots.any_in(SlotState.READING)
        if all(slot.may_settle_later and slot.resumes_at > due_at for slot in slots):
            slots = []
        kinds = [[slot for slot in slots if slot.line.is_sender is of_groups] for of_groups in (True, False)]
        settlings = [settling_of(concerned) for concerned in kinds if concerned]
        wanted = self.pages.requests(slots)
        trips = [*(([one], {}) for one in settlings), ([], wanted)] if self._is_apart else [(settlings, wanted)]
        self._is_apart = False
        for together, self.pages.wanted in trips:
            yield from self._settle(together)
        self._spares = self._slots.any_in(SlotState.LOCKED)

    def _settle(self, kinds: Sequence[Settling]) -> Iterator[Slot | ActiveLine]:
        try:
            self.ask(kinds, spares=self._spares)
        except RowLocked as failure:  # a hold, or a group
            self._is_apart = True
            yield from self._settle_each(kinds, failure)
        except (OperationalError, InterfaceError) as failure:
            self._is_apart = True
            self._keep([slot for kind in kinds for slot in kind.slots], failure)
        except DatabaseError as failure:
            yield from self._settle_each(kinds, failure)
        else:
            for kind in kinds:
                yield from self._settled(kind)

    def _settled(self, kind: Settling) -> Iterator[Slot | ActiveLine]:
        """Yield the slots that go on, with the number under which they may send, and the lines that are lost."""
        for slot in kind.slots:
            line, to_send = slot.line, slot.step.delivery if isinstance(slot.step, Send) else None
            slot.sequence = kind.started.get(to_send.id) if to_send else None
            if line.id in kind.locked:
                slot.may_be_marked |= slot.sequence is not None
                self._slots.move(slot, SlotState.LOCKED)
            elif line.id not in kind.owned:
                log.warning("event_loop.fenced", line_id=line.id, epoch=line.claim.epoch)
                yield line
            else:
                if slot.ended:
                    line.link.outcomes[slot.ended.status] += 1
                    _log_ended(slot.ended)
                if to_send and slot.may_be_marked and slot.sequence is None:
                    log.warning("event_loop.mark_unknown", line_id=line.id, delivery_id=to_send.id)
                    yield line  # its lease runs out, then it is recovered
                    continue
                if to_send and (wait := kind.waits.get(to_send.destination.subscription_id)) is not None:
                    line.rate_limiter.learn(to_send.destination, wait, boot_clock.since_boot())
                yield slot

    def ask(self, kinds: Sequence[Settling], *, spares: bool = False) -> None:
        """Make the round trip, with what each kind is to note.

        If somebody has locked a row, it is made once more, and `spares` the lines with such a row.
        """
        asked = [kind for kind in kinds if not kind.is_empty]
        statements = [kind.statement(spares=spares) for kind in asked]
        if self.pages.wanted:
            settled = [one.delivery_id for kind in asked for one in kind.settlements] if asked else None
            statements.append(self.pages.statement(settled, marks=not spares))
        try:
            found = rows_of_each(statements, lambda: _build_requests(asked)) if statements else []
        except RowLocked as failure:
            self.pages.drop()
            log.info("event_loop.row_locked", reason=failure)
            if spares:
                raise
            self.ask(kinds, spares=True)
            return
        except Error as failure:
            self.pages.fail(failure)
            raise
        if self.pages.wanted:
            self.pages.found = found.pop()
        try:
            self._follow_up(kinds, zip(asked, found, strict=True))
        except Error:
            _doubt(slot for kind in kinds for slot in kind.slots)  # the statements before have been committed
            raise

    def _follow_up(self, kinds: Sequence[Settling], answered: Iterable[tuple[Settling, Rows]]) -> None:
        """Record what the statements missed; put back what a sender may not send, though it may be marked."""
        for kind, found in answered:
            kind.note(found)
        for kind in kinds:
            for slot in kind.slots:
                if slot.line.id in kind.owned:
                    slot.line.holds.changed.clear()
            kind.settle_missed()
            for slot in (slot for slot in kind.slots if slot.may_be_marked and kind.of_groups):
                step, line = slot.step, slot.line
                if isinstance(step, Send) and line.id in kind.owned and step.delivery.id not in kind.started:
                    put_back(line.id, line.claim.epoch, step.delivery.id)
                    slot.may_be_marked = False

    def _settle_each(self, kinds: Sequence[Settling], failure: DatabaseError) -> Iterator[Slot | ActiveLine]:
        """Settle the steps one by one after a data error, or where a row is locked, and read no pages yet."""
        if not kinds:
            self._keep([], failure)
        self.pages.note_unheard()
        self.pages.wanted = {}
        lost: set[ActiveLine] = set()
        for slot in [slot for kind in kinds for slot in kind.slots]:
            if slot.line in lost:
                slot.step = Rest()  # its outcome is recorded, and nothing more is marked
            for settled in self._settle_alone(slot):
                if isinstance(settled, ActiveLine):
                    lost.add(settled)
                elif settled.line not in lost:
                    yield settled
        yield from lost

    def _settle_alone(self, slot: Slot) -> Iterator[Slot | ActiveLine]:
        """Settle one step by itself, so that only the offender stops; one with a locked row is LOCKED.

        A sender gives up the outcome that the database refuses, and only its group waits. Any other line is lost: its
        lease runs out, then it is recovered and tried again.
        """
        ended = slot.ended
        try:
            try:
                kind = settling_of([slot])
                self.ask([kind])
            except DatabaseError as failure:
                if isinstance(failure, OperationalError) or not (slot.line.is_sender and ended):
                    raise
                log.exception("event_loop.group_put_off", line_id=slot.line.id, delivery_id=ended.delivery_id)
                put_back(slot.line.id, slot.line.claim.epoch, ended.delivery_id, pause=REFUSED_GROUP_SECONDS)
                slot.ended = None
                kind = settling_of([slot])
                self.ask([kind])
        except RowLocked:
            self._slots.move(slot, SlotState.LOCKED)
        except (OperationalError, InterfaceError) as failure:
            self._keep([slot], failure)
        except DatabaseError:
            log.exception("event_loop.line_dropped", line_id=slot.line.id)
            yield slot.line
        else:
            yield from self._settled(kind)

    def _keep(self, slots: Sequence[Slot], failure: Exception) -> None:
        """Leave all where it is; nobody knows whether the slots have been settled, and what pages have marked."""
        _doubt(slots)
        self.pages.note_unheard()
        self._backoff.begin(failure)


def _build_requests(kinds: Iterable[Settling]) -> None:
    """Build the requests of what is being marked; they leave once the marks are known."""
    for slot in (slot for kind in kinds for slot in kind.slots):
        if isinstance(slot.step, Send) and not slot.step.delivery.needs_isolation:
            slot.step.request = request_of(slot.step.delivery, int(DATABASE_CLOCK.time()))


def _doubt(slots: Iterable[Slot]) -> None:
    """Note that the steps of slots may have been settled."""
    for slot in slots:
        slot.may_be_marked |= isinstance(slot.step, Send)
        slot.may_be_settled |= slot.ended is not None


def _log_ended(ended: Ended) -> None:
    """Log what became of a request; that it was taken, only if that is logged of all messages."""
    is_taken = ended.status is DeliveryStatus.DELIVERED
    if is_taken and not message_log.isEnabledFor(INFO):
        return
    said: dict[str, Any] = {"message_id": ended.message_id, "delivery_id": ended.delivery_id}
    said |= {"subscriber": ended.subscriber, "status": str(ended.status)}
    if is_taken and isinstance(ended, Settlement):
        message_log.info("delivery.delivered", **said, status_code=ended.status_code, ms=ended.duration_ms)
    else:
        pause = None if ended.pause is None else round(ended.pause, 1)
        reason = ended.log_reason if isinstance(ended, Withheld) else ended.reason
        log.info("delivery.not_taken", **said, line_id=ended.line_id, reason=reason, due_in_seconds=pause)
