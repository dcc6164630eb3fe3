"""TOPIC: the protocol of a subscriber's line, from the next delivery to the settlement of its answer (contract 4)."""

import math
import time
from collections.abc import Callable, Generator
from datetime import timedelta
from typing import Any, Final

import requests

from delivery.callbacks.address import without_token
from delivery.http.headers import retry_after_seconds
from delivery.outcomes import Answered, Decision, Outcome, Unreachable
from delivery.reasons import SUSPENDED, USED_UP
from delivery.retry import HOLDING, History, Verdict, judge
from delivery.statuses import DeliveryStatus
from delivery.webhook.parts import Outgoing
from delivery.webhook.redact import without_credentials
from delivery.webhook.transform import TransformRefused, transformed, withheld
from delivery.worker.line import ActiveLine, Ledger, Slot, Story
from delivery.worker.settlements import Settlement, SideEffects
from delivery.worker.steps import Ended, Hold, Read, Reply, RequestSent, Rest, Send, Step, Transform, Wait
from subscriptions.names import is_own
from subscriptions.scripting.jobs import Failed, Lost, Made

MOMENT_SECONDS: Final = 0.1
"""For less than that it does not pay to read what else there is."""

Ready = Generator[Step, Reply, tuple[Outgoing | None, Ended | None]]
"""Returns what is sent, None where nothing is, and what is still to be settled."""

ANNOUNCED: Final = frozenset({Decision.REJECTED, Decision.FAILED, Decision.SUSPEND})
NOTHING: Final = SideEffects()

KEPT_HEADER_BYTES: Final = 2048
KEPT_BODY_BYTES: Final = 1024


def topic_line(slot: Slot, chance: Callable[[], float]) -> Story:
    """Send one line's deliveries until it is held, or nothing more is due; at rest, go on when called.

    Of a CONCURRENT subscriber's line each slot does so (contract 4.13): what holds the line stops them all.
    """
    line = slot.line
    ended: Ended | None = None
    while True:
        delivery, ended = yield from next_ready(slot, ended)
        if delivery is None:
            yield Rest(ended)
            ended = None
            continue
        sent = yield Send(ended, delivery)
        ended = None
        if not isinstance(sent, RequestSent):
            continue  # it is no longer as it was read
        outcome = outcome_of(sent)
        verdict = judge_outcome(line, delivery, outcome, chance=chance())
        ended = _settlement(line, delivery, sent, outcome, verdict)
        if verdict.decision in HOLDING and not line.in_retry_line:
            line.holds(delivery, _hold(delivery, outcome, verdict))
            continue
        line.passed(delivery)
        line.shortest_pause = min(line.shortest_pause, verdict.pause or math.inf)
        if verdict.decision is Decision.SUSPEND:
            yield Read(ended)  # what else is in hand may be of the subscription that is paused
            ended = None


def _settlement(
    line: ActiveLine, delivery: Outgoing, sent: RequestSent, outcome: Outcome, verdict: Verdict
) -> Settlement:
    side_effects = side_effects_of(line, delivery, verdict.decision)
    settlement = to_settlement(line.id, delivery, sent, outcome, verdict, side_effects=side_effects)
    if settlement.sequence_unused and line.gives_numbers:
        line.last_sequence -= 1
    return settlement


def _hold(delivery: Outgoing, outcome: Outcome, verdict: Verdict) -> Hold:
    """Return how long the line waits, and under which configuration."""
    assert verdict.pause is not None  # noqa: S101 - what is held waits
    return Hold(verdict.pause, str(outcome), delivery.destination.config_version)


def next_from_buffer(
    slot: Slot, ended: Ended | None, take: Callable[[], Any], *, linger: bool = False
) -> Generator[Step, Reply, tuple[Any, Ended | None]]:
    """Read as needed; return what goes next, None where the slot stops, and what is still to be settled.

    With `linger` a page is not read at once where there is nothing in hand to `take`.
    """
    line = slot.line
    if line.buffer.is_low and not line.hold:
        line.size_page()
        yield Read(ended)
        ended = None
    while not line.must_stop():
        if taken := take():
            return taken, ended
        if line.hold or line.is_outdated or line.is_through:
            break
        yield Read(ended, linger)
        ended, linger = None, True
    return None, ended


def next_ready(slot: Slot, ended: Ended | None) -> Ready:
    """Return what is sent next; None where the slot stops."""
    linger = False
    delivery: Outgoing | None
    while True:
        delivery, ended = yield from next_from_buffer(slot, ended, lambda: _taken(slot), linger=linger)
        if delivery is None:
            return None, ended
        if delivery.destination.spacing:
            delivery, ended = yield from _in_its_time(slot, delivery, ended)
            linger = delivery is None  # read just now
        if delivery and delivery.destination.script:
            delivery, ended = yield from _transformed(slot, delivery, ended)
            linger = ended is None  # no process was free, or no room for what it made: not at once again
        if delivery:
            return delivery, ended


def _taken(slot: Slot) -> Outgoing | None:
    """Take what goes next; where no order counts, rather what has not to wait for its rate.

    None too where the line has to be let go first. A retry line does not linger for what waits for its rate.
    """
    line, now = slot.line, time.monotonic()
    taken: Outgoing | None = None
    if not line.gives_numbers:
        taken = slot.take(lambda one: line.may_try(one) and not line.rate_limiter.wait(one.destination, now))
    taken = taken or slot.take(line.may_try)
    if taken and not line.is_as_claimed(taken.destination):
        line.is_outdated = True
        return None
    if taken:
        line.tries(taken)
    elif line.in_retry_line:
        line.hold = line.hold_at_rest()
    return taken


def _in_its_time(slot: Slot, delivery: Outgoing, ended: Ended | None) -> Ready:
    """Wait until the delivery's subscription may be sent (contract 1.4).

    If that is long after the turn, the line waits with it, unless others may go before it: they go on without it. There
    one slot waits for a subscription, not all of them: what they left behind would wait for them.
    """
    line, destination = slot.line, delivery.destination
    while seconds := line.rate_limiter.wait(destination, now := time.monotonic()):
        if line.waits_for(delivery):
            if not line.has_time_for(seconds):
                line.waits_with(delivery, seconds)
                return None, ended
        elif not line.has_time_for(seconds) or (seconds > MOMENT_SECONDS and line.is_paced(destination)):
            line.leave_out(delivery, now + seconds)
            yield Read(ended)
            return None, None
        slot.paced_for = destination.subscription_id
        yield Wait(ended, delivery, seconds)
        slot.paced_for, ended = None, None
        if line.stopping or line.is_held:
            return None, None
    line.rate_limiter.ask(destination, time.monotonic())
    return delivery, ended


def _transformed(slot: Slot, delivery: Outgoing, ended: Ended | None) -> Ready:
    """Run the delivery's script."""
    line = slot.line
    result = yield Transform(ended, delivery)
    if isinstance(result, Made) and not line.stopping:
        try:
            return transformed(delivery, result), None
        except TransformRefused as refused:
            result = Failed(str(refused))
    if not isinstance(result, Failed | Lost):
        return None, None  # there was no time for it
    line.passed(delivery)
    return None, withheld(line.id, delivery, result)


def judge_outcome(line: Ledger, delivery: Outgoing, outcome: Outcome, *, chance: float) -> Verdict:
    """Return what the policy in force when the request started makes of its outcome (contract 4.15)."""
    destination = delivery.destination
    history = History(
        delivery.attempts,
        delivery.times_deferred,
        line.failures,
        in_retry_line=line.in_retry_line,
        half_open=destination.half_open,
    )
    return judge(outcome, destination.policy, history, chance=chance)


def side_effects_of(line: Ledger, delivery: Outgoing, decision: Decision) -> SideEffects | None:
    """Return what else follows from a request: as a rule nothing."""
    policy, half_open = delivery.destination.policy, delivery.destination.half_open
    if decision is Decision.DELIVERED and not half_open:
        return None
    suspends = decision is Decision.SUSPEND
    # What retries apart goes to the retry line; where it suspends, it goes back to its place in the main line.
    moves = decision is (Decision.SUSPEND if line.in_retry_line else Decision.RETRY_LANE)
    # In a retry line nothing is held, nor set aside, whatever TeamForge would make of the answer.
    is_told = decision is not Decision.DELIVERED and (policy.spacing is not None or line.in_retry_line)
    side_effects = SideEffects(
        to_line_id=line.claim.sibling_line_id if moves else None,
        suspends=suspends,
        resumes=half_open and not suspends,
        config_version=delivery.destination.config_version if suspends else None,
        probe=policy.probe_seconds if suspends else None,
        announces=(half_open or decision in ANNOUNCED) and _may_be_announced(delivery.content.event_type),
        meaning=decision.meaning if is_told else None,
    )
    return None if side_effects == NOTHING else side_effects


def _may_be_announced(event_type: str) -> bool:
    """Tell whether it is neither an announcement itself nor the reply to a callback (contract 5.7)."""
    return bool(event_type) and not is_own(event_type)


def outcome_of(sent: RequestSent) -> Outcome:
    """Return what happened to the request."""
    result = sent.answer.result
    if isinstance(result, requests.Response):
        answered_at = sent.started_at + timedelta(milliseconds=sent.answer.duration_ms)
        return Answered(result.status_code, retry_after_seconds(sent.answer.head, at=answered_at))
    return Unreachable(result.reason, was_sent=result.was_sent, is_refused=result.is_refused)


def to_settlement(
    line_id: int,
    delivery: Outgoing,
    sent: RequestSent,
    outcome: Outcome,
    verdict: Verdict,
    *,
    again: float | None = None,
    side_effects: SideEffects | None = None,
) -> Settlement:
    """Return what is recorded of the request; `again` is given where it was the last of its group's cycle."""
    result, decision = sent.answer.result, verdict.decision
    body = result.content if isinstance(result, requests.Response) else b""
    return Settlement(
        line_id=line_id,
        delivery_id=delivery.id,
        status=decision.final_status or DeliveryStatus.PENDING,
        pause=None if decision in HOLDING else verdict.pause,
        uncertain=isinstance(outcome, Unreachable) and outcome.was_sent,
        sequence_unused=_gives_number_back(delivery, outcome, decision),
        reason="" if decision is Decision.DELIVERED else _reason(outcome, verdict),
        started_at=sent.started_at,
        duration_ms=sent.answer.duration_ms,
        status_code=outcome.status if isinstance(outcome, Answered) else None,
        answer_headers=_shown(sent.answer.head, delivery, most=KEPT_HEADER_BYTES),
        answer_excerpt=_shown(body, delivery, most=KEPT_BODY_BYTES),
        group_id=delivery.group_id,
        again=again,
        side_effects=side_effects,
    )


def _shown(answer: bytes, delivery: Outgoing, *, most: int) -> bytes:
    answer = without_token(answer, delivery.callback_url)
    return without_credentials(answer, delivery.destination.headers, max_bytes=most)


def _reason(outcome: Outcome, verdict: Verdict) -> str:
    if not verdict.is_used_up:
        return str(outcome)
    return f"{SUSPENDED if verdict.decision is Decision.SUSPEND else USED_UP}{outcome}"


def _gives_number_back(delivery: Outgoing, outcome: Outcome, decision: Decision) -> bool:
    """Tell whether the delivery has never been sent, so that no number goes missing if it never is (4.10).

    What is retried apart keeps its number: only the main line gives any.
    """
    if decision is Decision.RETRY_LANE:
        return False
    return delivery.sequence is None and isinstance(outcome, Unreachable) and not outcome.was_sent
