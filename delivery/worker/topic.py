"""TOPIC: the protocol of a subscriber's line, from the next delivery to the settlement of its answer (contract 4)."""

import math
from collections.abc import Callable, Generator
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from broker_project.core import boot_clock
from delivery.callbacks.address import without_token
from delivery.http.transfer import retry_after_seconds
from delivery.limits import (
    ISOLATION_WAIT_SECONDS,
    KEPT_BODY_BYTES,
    KEPT_HEADER_BYTES,
    LONG_WAIT_SECONDS,
    MIN_PAGE,
    PAGE_SECONDS,
    SHORT_WAIT_SECONDS,
)
from delivery.models import Lane
from delivery.outcomes import SUSPENDED, USED_UP, Answered, Decision, Outcome, Unreachable
from delivery.retry import HOLDING, History, RetryDecision, judge
from delivery.statuses import DeliveryStatus
from delivery.webhook.destination import NEVER_CONFIGURED
from delivery.webhook.request import Outgoing, without_credentials
from delivery.webhook.transform import TransformRefused, sent_record, transformed, withheld
from delivery.worker.line import ActiveLine
from delivery.worker.slots import (
    Read,
    Reply,
    RequestSent,
    Rest,
    Send,
    Settlement,
    SideEffects,
    Slot,
    Step,
    Story,
    Transform,
    Wait,
)
from subscriptions.names import is_own
from subscriptions.scripting.jobs import Failed, Lost, Made

Ready = Generator[Step, Reply, Outgoing | None]
"""Returns what is sent, None if nothing is."""

NOTHING: Final = SideEffects()
END_ANNOUNCED: Final = SideEffects(announces=True)
ANNOUNCED: Final = frozenset({Decision.REJECTED, Decision.FAILED, Decision.SUSPEND})


def topic_line(slot: Slot, chance: Callable[[], float]) -> Story:
    """Send one line's deliveries until as many are held as it may send, or none is due; at rest, go on if called back.

    In a CONCURRENT subscriber's line each slot does so (contract 4.13).
    """
    line = slot.line
    while True:
        delivery = yield from next_ready(slot)
        if delivery is None:
            yield Rest()
            continue
        sent = yield Send(delivery)
        if not isinstance(sent, RequestSent):
            continue  # it is no longer as it was read
        to = delivery.destination
        if is_poison(sent) or (sent.is_success and not (to.half_open or to.is_diverted)):  # so under every policy
            slot.ended = settlement_of(line.id, delivery, sent)
            line.passed(delivery)
            continue
        outcome = outcome_of(sent)
        verdict = judge_outcome(line, delivery, outcome, chance=chance())
        side_effects = side_effects_of(line, delivery, outcome, verdict.decision)
        slot.ended = ended = to_settlement(
            line.id, delivery, sent, outcome, verdict, side_effects=side_effects, keeps_number=line.is_keyed
        )
        if ended.sequence_unused and line.is_ordered:
            line.numbers.last -= 1
        if verdict.decision in HOLDING and not line.is_retry_line:
            assert verdict.pause is not None  # noqa: S101 - what is held waits
            line.hold(delivery, verdict.pause, str(outcome))
            continue
        line.passed(delivery)
        line.shortest_pause = min(line.shortest_pause, verdict.pause or math.inf)
        if verdict.decision is Decision.SUSPEND or (side_effects and side_effects.diverts):
            yield Read()  # the rest of the page may be of the subscription that is paused or diverted


def next_from_buffer(slot: Slot, take: Callable[[], Any], *, linger: bool = False) -> Generator[Step, Reply, Any]:
    """Read as needed; return what goes next, None if the slot stops.

    With `linger` the slot waits a moment before it reads, if the buffer has nothing to `take`; also if all was read,
    and nobody has told of new work since.
    """
    line = slot.line
    linger = linger or line.is_read_out
    # After a probe: the page has nothing more of its subscription, which may go on now.
    has_probed = bool(slot.ended and slot.in_flight and slot.in_flight.destination.half_open)
    if line.has_room(slot) and (line.buffer.is_low or line.lacks_due() or has_probed):
        will_send = line.sent / (boot_clock.since_boot() - line.taken_at) * PAGE_SECONDS
        line.page_size = min(max(MIN_PAGE, 2 * len(line.slots), int(will_send)), line.claim.capacity)
        yield Read()
    while not line.must_stop() and line.has_room(slot):
        line.avoid_what_hangs()
        if taken := take():
            return taken
        # In a retry line only time brings more work, which the sweep watches; in that of a reply nothing does.
        is_alone = line.is_retry_line or line.claim.lane == Lane.CALLBACK
        is_through = is_alone and line.has_read and not line.buffer.is_low
        if line.rest is not None or line.is_outdated or is_through:
            break
        yield Read(linger and not line.is_used_up())
        linger = True
    return None


def next_ready(slot: Slot) -> Ready:
    """Return what is sent next; None if the slot stops."""
    linger = False
    delivery: Outgoing | None
    while True:
        delivery = yield from next_from_buffer(slot, lambda: _take(slot), linger=linger)
        if delivery is None:
            return None
        if delivery.destination.spacing:
            delivery = yield from _wait_for_rate(slot, delivery)
            linger = delivery is None  # a page has just been read
        if delivery and delivery.destination.script:
            delivery = yield from _transform(slot, delivery)
            linger = slot.ended is None  # no process was free, or no room for the result: not at once again
        if delivery and delivery.needs_isolation and not (yield from is_isolated(slot, delivery)):
            return None
        if delivery:
            return delivery


def is_isolated(slot: Slot, delivery: Outgoing) -> Generator[Step, Reply, bool]:
    """Wait until a process of its own can send the delivery; return False if the slot stops instead."""
    while not slot.line.isolation.is_ready(slot):
        slot.paced_for = delivery.destination.subscription_id
        yield Wait(delivery, ISOLATION_WAIT_SECONDS)
        slot.paced_for = None
        if slot.line.stopping or slot.line.is_overdue(boot_clock.since_boot()):
            return False
    return True


def _take(slot: Slot) -> Outgoing | None:
    """Take what goes next; in an unordered line, rather a delivery that need not wait for its rate limit.

    Returns None also if the line has to be released first.
    """
    line, now = slot.line, boot_clock.since_boot()
    taken: Outgoing | None = None
    if not line.is_ordered:
        may_go = line.chooser(slot, lambda one: line.may_try(one) and not line.rate_limiter.wait(one.destination, now))
        taken = slot.take(may_go)
    taken = taken or slot.take(line.chooser(slot, line.may_try))
    if not taken:
        if line.is_retry_line:
            line.rest = line.rest_at_release()  # it does not linger for what waits for its rate limit
        return None
    to = taken.destination
    is_as_claimed = (to.concurrency, to.is_keyed) == (line.claim.concurrency, line.claim.is_keyed)
    if not line.is_retry_line and not is_as_claimed:  # contract 4.13
        line.is_outdated = True
        return None
    line.has_probes |= to.half_open
    return taken


def _wait_for_rate(slot: Slot, delivery: Outgoing) -> Ready:
    """Wait until the delivery's subscription may be sent to (contract 1.4).

    If that takes long, or others may wait for a turn that is over, it is held, unless others may go before it: then
    they go on without it.
    In such a line one slot waits for a subscription, not all: what they left behind would wait for them.
    """
    line, destination = slot.line, delivery.destination
    while seconds := line.rate_limiter.wait(destination, now := boot_clock.since_boot()):
        goes_on = len(line.slots) == 1 or not line.is_over or (seconds <= SHORT_WAIT_SECONDS and line.hangs(now))
        has_time = goes_on and seconds <= LONG_WAIT_SECONDS
        if line.is_ordered or line.is_keyed or delivery.id in line.holds:  # nothing of its key overtakes it (4.7)
            if not has_time:
                line.hold(delivery, seconds)
                return None
        elif not has_time or (
            seconds > SHORT_WAIT_SECONDS and any(other.paced_for == destination.subscription_id for other in line.slots)
        ):
            line.left_out[destination.subscription_id] = now + seconds
            yield Read()
            return None
        slot.paced_for = destination.subscription_id
        yield Wait(delivery, seconds)
        slot.paced_for = None
        if line.stopping:
            return None
    line.rate_limiter.ask(destination, boot_clock.since_boot())
    return delivery


def _transform(slot: Slot, delivery: Outgoing) -> Ready:
    """Run the delivery's script (contract 8.1, 8.3)."""
    line = slot.line
    result = yield Transform(delivery)
    if isinstance(result, Made) and not line.stopping:
        try:
            return transformed(delivery, result)
        except TransformRefused as refused:
            result = Failed(str(refused))
    if not isinstance(result, Failed | Lost):
        return None  # there was no time for it
    line.passed(delivery)
    slot.ended = withheld(line.id, delivery, result)
    return None


def judge_outcome(line: ActiveLine, delivery: Outgoing, outcome: Outcome, *, chance: float) -> RetryDecision:
    """Return the verdict of the policy that was in force when the request started (contract 4.15)."""
    destination = delivery.destination
    history = History(
        delivery.attempts,
        delivery.times_deferred,
        line.holds.failures_of(delivery.id),
        in_retry_line=line.is_retry_line,
        half_open=destination.half_open,
    )
    return judge(outcome, destination.policy, history, chance=chance)


def side_effects_of(line: ActiveLine, delivery: Outgoing, outcome: Outcome, decision: Decision) -> SideEffects | None:
    """Return what else follows from a request, None if nothing does."""
    policy, half_open = delivery.destination.policy, delivery.destination.half_open
    diverts = _diverts(line, delivery, outcome, decision)
    if decision is Decision.DELIVERED and not half_open and diverts is None:
        return None
    suspends = decision is Decision.SUSPEND
    # A retry line gives back what suspends its subscription: that goes to its place in the main line.
    moves = decision is (Decision.SUSPEND if line.is_retry_line else Decision.RETRY_LANE)
    # A retry line never holds or defers a delivery, also where the default policy would.
    has_retry_action = decision is not Decision.DELIVERED and (policy.terms is not None or line.is_retry_line)
    side_effects = SideEffects(
        to_line_id=line.claim.sibling_line_id if moves else None,
        suspends=suspends,
        resumes=half_open and not suspends,
        diverts=diverts,
        config_version=delivery.destination.config_version if suspends or diverts else None,
        probe=policy.terms.probe_seconds if suspends and policy.terms else None,
        announces=(half_open or decision in ANNOUNCED) and not is_own(delivery.content.event_type),
        meaning=decision.retry_action if has_retry_action else None,
    )
    return None if side_effects == NOTHING else side_effects


def _diverts(line: ActiveLine, delivery: Outgoing, outcome: Outcome, decision: Decision) -> bool | None:
    """Return whether the diversion of the delivery's subscription begins, or ends; None: neither (contract 5.10)."""
    to = delivery.destination
    if to.is_diverted:
        return False if isinstance(outcome, Answered) and decision is not Decision.SUSPEND else None
    hangs = isinstance(outcome, Unreachable) and outcome.timed_out
    is_moved = decision is Decision.RETRY_LANE and not line.is_retry_line
    return True if hangs and is_moved and not to.half_open else None


def outcome_of(sent: RequestSent) -> Outcome:
    """Return what happened to the request."""
    answer, failure = sent.answer, sent.answer.failure
    if failure:
        return Unreachable(
            failure.reason,
            was_sent=failure.was_sent,
            is_refused=failure.is_refused,
            timed_out=failure.timed_out,
        )
    answered_at = sent.started_at + timedelta(milliseconds=answer.duration_ms)
    return Answered(answer.status, retry_after_seconds(answer.head, at=answered_at))


def to_settlement(
    line_id: int,
    delivery: Outgoing,
    sent: RequestSent,
    outcome: Outcome,
    verdict: RetryDecision,
    *,
    again: float | None = None,
    side_effects: SideEffects | None = None,
    keeps_number: bool = False,
) -> Settlement:
    """Return what is recorded of the request; `again` is given if it was the last of its group's cycle.

    A delivery that was certainly not sent gives its number back, so that no number is missing (contract 4.10), unless
    it `keeps_number` because later ones are sent beside it. So it does in the retry line: only the main line gives any.
    """
    decision = verdict.decision
    was_sent = not isinstance(outcome, Unreachable) or outcome.was_sent
    reason = "" if decision is Decision.DELIVERED else str(outcome)
    if verdict.is_used_up:
        reason = f"{SUSPENDED if decision is Decision.SUSPEND else USED_UP}{outcome}"
    return replace(
        settlement_of(line_id, delivery, sent),
        status=decision.final_status or DeliveryStatus.PENDING,
        pause=None if decision in HOLDING else verdict.pause,
        uncertain=isinstance(outcome, Unreachable) and was_sent,
        sequence_unused=not (
            keeps_number or delivery.sequence is not None or was_sent or decision is Decision.RETRY_LANE
        ),
        reason=reason,
        again=again,
        side_effects=side_effects,
    )


def is_poison(sent: RequestSent) -> bool:
    """Return whether the request has ended the process that sent nothing else (contract 4.19)."""
    return sent.answer.failure is not None and sent.answer.failure.is_poison


def settlement_of(line_id: int, delivery: Outgoing, sent: RequestSent) -> Settlement:
    """Return what is recorded of a request that was taken, or of a poison message (contract 4.19).

    That is held; a reply, whose line has nothing else, is a dead letter instead, which is announced (5.7) and can be
    resubmitted. The beginning of its answer is without secrets.
    """
    answer, to, is_ended = sent.answer, delivery.destination, is_poison(sent)
    status = DeliveryStatus.DELIVERED
    if is_ended:
        status = DeliveryStatus.FAILED if to.config_version == NEVER_CONFIGURED else DeliveryStatus.HELD
    head, body = answer.head, answer.body
    if delivery.callback_url:
        head, body = without_token(head, delivery.callback_url), without_token(body, delivery.callback_url)
    return Settlement(
        line_id=line_id,
        delivery_id=delivery.id,
        status=status,
        pause=None,
        uncertain=is_ended,
        sequence_unused=False,
        reason=answer.failure.reason if answer.failure and is_ended else "",
        started_at=sent.started_at,
        duration_ms=answer.duration_ms,
        status_code=None if answer.failure else answer.status,
        answer_headers=without_credentials(head, to.headers, max_bytes=KEPT_HEADER_BYTES),
        answer_excerpt=without_credentials(body, to.headers, max_bytes=KEPT_BODY_BYTES),
        sent=sent_record(delivery),
        group_id=delivery.group_id,
        message_id=delivery.content.message_id,
        subscriber=to.subscriber,
        side_effects=END_ANNOUNCED if status is DeliveryStatus.FAILED else None,
    )
