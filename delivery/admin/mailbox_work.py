"""How a mailbox stands and what clients have of it, for its list and its pages in the admin."""

from collections.abc import Callable, Sequence
from typing import Final

from django.db.models import QuerySet
from django.db.models.functions import Now
from django.urls import reverse
from django.utils.safestring import SafeString

from broker_project.core.admin.theme import link, table
from delivery.admin.attempts import events_of
from delivery.admin.line_work import counted
from delivery.admin.read_only import MAX_SHOWN, instant, link_to
from delivery.mailbox.mailbox_status import MAX_COUNTED, MailboxStatus, mailboxes_of
from delivery.models import Delivery, Mailbox
from delivery.status.in_flight import in_flight_of
from subscriptions.models import DeliveryMode, Subscriber, Subscription

STANDING: Final = "_standing"
"""Where a mailbox that is shown keeps how it stands."""


def with_mailbox(subscribers: QuerySet[Mailbox]) -> QuerySet[Mailbox]:
    """Keep those that have something to fetch from."""
    fetched = Subscription.objects.filter(delivery_mode=DeliveryMode.PULL)
    return subscribers.filter(pk__in=fetched.values("subscriber_id"))


def keep_standings(boxes: Sequence[Mailbox]) -> None:
    """Let mailboxes know how they stand: one question for all of them."""
    standings = mailboxes_of([box.pk for box in boxes])
    for box in boxes:
        vars(box)[STANDING] = standings[box.pk]


def standing_of(box: Mailbox) -> MailboxStatus:
    """Return how a mailbox stands: as its list has read it, or read once for its page."""
    if STANDING not in vars(box):
        keep_standings([box])
    standing: MailboxStatus = vars(box)[STANDING]
    return standing


def so_many(number: int) -> str:
    """Return how many messages there are in a mailbox, as far as they are counted."""
    return counted(number, most=MAX_COUNTED)


def mailbox_link(subscriber: Subscriber) -> SafeString | str:
    """Return a link to a subscriber's mailbox that says how it stands; a dash where it has none."""
    box = with_mailbox(Mailbox.objects.filter(pk=subscriber.pk)).first()
    if box is None:
        return "-"
    standing = standing_of(box)
    text = f"{so_many(standing.available)} available, {so_many(standing.in_flight)} in flight"
    return link_to("delivery_mailbox", box.pk, text)


def handed_out(box: Mailbox, only: int | None = None) -> list[Delivery]:
    """Return what clients have of it and have not answered, next to time out first, as much as a page shows.

    Or only that one delivery, wherever it stands among them.
    """
    if only is None:
        found = Delivery.objects.open().filter(pk__in=in_flight_of(box.pk, limit=MAX_SHOWN))
    else:
        found = Delivery.objects.open().filter(pk=only, subscription__subscriber=box.pk, fetched_until__gt=Now())
    return [*found.select_related("subscription__event_type").order_by("fetched_until", "pk")]


def in_flight_table(box: Mailbox, more: Callable[[Delivery], SafeString | str]) -> SafeString | str:
    """Return what clients have of it, with what `more` there is to be said of each; a dash for nothing."""
    rows = [
        [
            link_to("delivery_delivery", one.pk, one.pk),
            events_of(one),
            one.fetches - 1,
            instant(one.fetched_until),
            more(one),
        ]
        for one in handed_out(box)
    ]
    return table(["delivery", "event type", "redeliveries", "in flight until", ""], rows) if rows else "-"


def link_to_return(box: Mailbox, delivery: Delivery) -> SafeString:
    """Return a link to where one delivery is returned."""
    back = reverse("admin:delivery_mailbox_give_back", args=[box.pk])
    return link(f"{back}?delivery={delivery.pk}", "Return")
