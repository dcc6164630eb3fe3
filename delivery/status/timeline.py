"""The story of one delivery: where it comes from, each request beside its answer, what followed and by which rule."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from django.db.models import Model
from django.utils import timezone

from delivery.models import Attempt, Delivery, Message
from delivery.outcomes import (
    CALLBACK,
    NO_ANSWER,
    QUEUE,
    SUSPENDED,
    TEAMFORGE,
    USED_UP,
    Answered,
    RetryAction,
    Unreachable,
    decide,
)
from delivery.retry import THROTTLING
from delivery.status.sent_requests import SentRequest, SentRequests, text_of
from delivery.status.wait import WaitReason, wait_of
from delivery.statuses import DeliveryStatus

MAX_EXCHANGES: Final = 100
"""Attempts that are told of, the newest."""
TOLD_WITH: Final = ("subscription__subscriber", "subscription__retry_policy", "line", "group")
"""Joined, what is gone is None; read one by one, it would be an error."""
DEFAULT_POLICY: Final = "TeamForge"
EFFECTS: Final = {
    RetryAction.HOLD: "holds the line: the delivery is tried again before anything that must not overtake it",
    RetryAction.DEFERRED: "defers the delivery: it is tried again later, and others go on meanwhile",
    RetryAction.RETRY_LANE: "moves the delivery to the retry line, where it is tried again apart from others",
    RetryAction.SUSPEND: "suspends the subscription until its endpoint answers a probe",
    RetryAction.END: "ends the delivery",
}
TO_THE_NEXT: Final = "leaves it to the next endpoint of the group"


class Exchange(NamedTuple):
    """One attempt: its request as it was sent, its answer, and what followed."""

    attempt: Attempt
    """With the answer."""
    request: SentRequest | None
    """None: its message, subscription or address is gone."""
    decision: str
    """What followed by which rule, as a sentence."""

    @property
    def result(self) -> str:
        """What came back, in a few words."""
        attempt = self.attempt
        if attempt.status_code is None:
            return f"no answer after {attempt.duration_ms} ms: {attempt.error.removeprefix(NO_ANSWER)}"
        return f"{attempt.status_code} in {attempt.duration_ms} ms"

    @property
    def answer_head(self) -> str:
        """Status line and headers of the answer, cut."""
        return text_of(self.attempt.answer_headers)

    @property
    def answer_body(self) -> str:
        """The beginning of the answer's body."""
        return text_of(self.attempt.answer_excerpt)


class Moment(NamedTuple):
    """One line of the story."""

    at: datetime | None
    """None: now."""
    text: str
    exchange: Exchange | None = None
    is_newest: bool = False
    """Whether its exchange is the newest: only that is shown whole, for a hundred would be megabytes."""
    next_try_at: datetime | None = None
    about: Model | None = None
    """What has a page that says more."""

    @property
    def time(self) -> str:
        """When it was, to the millisecond."""
        return f"{self.at.astimezone(timezone.get_current_timezone()):%Y-%m-%d %H:%M:%S.%f}"[:-3] if self.at else "now"


@dataclass(frozen=True, slots=True)
class Timeline:
    """What happened to one delivery."""

    message: Message | None
    """None: it is not kept any more."""
    exchanges: Sequence[Exchange]
    """The newest `MAX_EXCHANGES`, in their order."""
    left_out: int
    """Attempts before them."""
    wait: WaitReason | None
    """What it waits for; None: it has ended."""

    def moments(self, delivery: Delivery, more: Iterable[Moment]) -> list[Moment]:
        """Return the story line by line, with `more` of what happened; last what the delivery waits for."""
        told = [*more]
        for one in self.exchanges:
            by_hand = ", by hand" if one.attempt.is_by_hand else ""
            text = f"Attempt {one.attempt.number}{by_hand}: {one.result}"
            told.append(Moment(one.attempt.started_at, text, one, is_newest=one is self.exchanges[-1]))
        if self.left_out:
            told.append(Moment(self.exchanges[0].attempt.started_at, f"{self.left_out} attempts before are not shown."))
        if delivery.finished_at:
            ended = DeliveryStatus(delivery.status).label
            reason = f": {delivery.reason}" if delivery.reason else ""
            told.append(Moment(delivery.finished_at, f"Ended as {ended}{reason}."))
        now = (
            [Moment(None, self.wait.why, next_try_at=self.wait.next_try_at, about=self.wait.about)] if self.wait else []
        )
        return sorted(told, key=lambda one: (one.at, one.exchange is not None)) + now


def timeline_of(delivery: Delivery, now: datetime) -> Timeline:
    """Return what happened to a delivery; the number of queries does not grow with its attempts."""
    delivery = Delivery.objects.select_related(*TOLD_WITH).get(pk=delivery.pk)
    newest = [*delivery.attempt_set.order_by("-id")[: MAX_EXCHANGES + 1]][::-1]
    attempts = newest[-MAX_EXCHANGES:]
    requests = SentRequests(delivery, attempts)
    exchanges = [Exchange(one, requests.of(one), _decision(delivery, one, requests)) for one in attempts]
    left_out = max(0, attempts[0].number - 1) if len(newest) > MAX_EXCHANGES else 0
    return Timeline(requests.message, exchanges, left_out, wait_of(delivery, now))


def exchange_of(delivery: Delivery, attempt: Attempt) -> Exchange:
    """Return an attempt with its request, of a delivery that was read with `TOLD_WITH`."""
    requests = SentRequests(delivery, [attempt])
    return Exchange(attempt, requests.of(attempt), _decision(delivery, attempt, requests))


def _decision(delivery: Delivery, attempt: Attempt, requests: SentRequests) -> str:
    """Return what followed from an attempt and why, under the rules that were in force when it started."""
    configured = requests.configured_at(attempt.started_at)
    rules, rule = TEAMFORGE, f"retry policy {(configured and configured.retry_policy) or DEFAULT_POLICY}"
    if delivery.group_id:
        rules, rule = QUEUE, "rules of QUEUE events"
    elif delivery.subscription_id is None:
        rules, rule = CALLBACK, "rules of replies to callbacks"
    status = attempt.status_code
    decision = decide(Unreachable(attempt.error) if status is None else Answered(status), rules)
    is_last = attempt.number == delivery.attempts
    if not attempt.meaning and decision.final_status:
        effect = f"{EFFECTS[RetryAction.END]} as {decision.final_status.label}"
    elif delivery.group_id:
        effect = TO_THE_NEXT
    else:
        effect = EFFECTS[RetryAction(attempt.meaning or decision.retry_action)]
    used_up = ", and was its last retry" if is_last and delivery.reason.startswith((USED_UP, SUSPENDED)) else ""
    return f"{_kind_of_answer(status, attempt)} {effect}{used_up} ({rule})."


def _kind_of_answer(status: int | None, attempt: Attempt) -> str:
    """Return the kind of answer that the rules tell apart."""
    if status is None:
        return "No answer"
    if status == 503 or (status in THROTTLING and attempt.meaning):  # noqa: PLR2004
        return f"{status}"
    return f"{status // 100}xx"
