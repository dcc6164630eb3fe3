"""Taking things out of a mailbox in the admin: returning what clients have, and purging (behaviour 9.4, 9.7)."""

import re

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.test import Client

from delivery.admin import mailbox_work
from delivery.mailbox.acknowledge import acknowledge
from delivery.models import Delivery
from delivery.statuses import DeliveryStatus
from subscriptions.models import EventType, Subscriber, Subscription
from tests import factories
from tests.admin_of_mailboxes import address, text_of, told
from tests.driving import publish_numbered, statuses
from tests.mailboxes import fetched, pulled_subscription, time_out

pytestmark = pytest.mark.django_db

CANCELLED, IN_FLIGHT, PENDING = DeliveryStatus.CANCELLED, DeliveryStatus.IN_FLIGHT, DeliveryStatus.PENDING


@pytest.fixture
def wanted(storage: None, event_type: EventType) -> Subscription:
    """Return what an archive fetches: three messages are there."""
    made = pulled_subscription(factories.subscriber("archive", mailbox_ordered=False), event_type)
    publish_numbered(event_type, 3)
    return made


@pytest.mark.behaviour("9.4")
def test_what_is_in_flight_is_returned_once_that_is_confirmed(admin: Client, wanted: Subscription) -> None:
    one, other = fetched(wanted, most=2)
    back = address(wanted, "give_back")
    asked = text_of(admin, back)
    assert f"delivery {one.delivery_id}, handed out once delivery {other.delivery_id}, handed out once" in asked
    assert statuses(wanted) == [IN_FLIGHT, IN_FLIGHT, PENDING]
    assert told(admin, back, _selected_action=chosen(admin, back)) == "Returned 2 of 2."
    assert statuses(wanted) == [PENDING] * 3
    assert [again.redeliveries for again in fetched(wanted)] == [1, 1, 0]
    assert LogEntry.objects.get().get_change_message() == "Returned 2 of 2."


def chosen(admin: Client, url: str) -> list[str]:
    """Return what the form that asks would send."""
    return re.findall(r'name="_selected_action" value="([^"]*)"', admin.get(url).content.decode())


def test_one_can_be_returned_alone(admin: Client, wanted: Subscription) -> None:
    one, _ = fetched(wanted, most=2)
    only = f"{address(wanted, 'give_back')}?delivery={one.delivery_id}"
    assert told(admin, only, _selected_action=chosen(admin, only)) == "Returned 1 of 1."
    assert statuses(wanted) == [PENDING, IN_FLIGHT, PENDING]


@pytest.mark.behaviour("9.7")
def test_returning_tells_what_ends_by_it_before_and_after(admin: Client, wanted: Subscription) -> None:
    Subscriber.objects.update(max_redeliveries=1)
    fetched(wanted, most=1)
    time_out()
    again, once, asked = fetched(wanted)
    Delivery.objects.filter(pk=asked.delivery_id).update(cancel_requested=True)
    back = address(wanted, "give_back")
    question = text_of(admin, back)
    assert "Return all 3 in flight?" in question
    assert "1 will be available again, 2 will end." in question
    assert f"delivery {again.delivery_id}, handed out 2 times: ends as FAILED, its redeliveries are used up" in question
    assert f"delivery {once.delivery_id}, handed out once delivery {asked.delivery_id}" in question
    assert f"delivery {asked.delivery_id}, handed out once: ends as CANCELLED, as was asked" in question
    note = "Returned 1 of 3; 1 has FAILED, redeliveries used up; 1 is CANCELLED, as was asked."
    assert told(admin, back, _selected_action=chosen(admin, back)) == note
    assert statuses(wanted) == [DeliveryStatus.FAILED, PENDING, CANCELLED]
    assert LogEntry.objects.get().get_change_message() == note


def test_of_very_many_in_flight_it_asks_for_those_next_to_time_out_and_says_so(
    admin: Client, wanted: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox_work, "SHOWN_AT_MOST", 2)
    last = fetched(wanted)[-1]
    back = address(wanted, "give_back")
    assert len(chosen(admin, back)) == 2
    assert "Return the 2 next to time out, of 3 in flight" in text_of(admin, back)
    only = f"{back}?delivery={last.delivery_id}"
    assert chosen(admin, only) == [f"{last.delivery_id}.1"], "though it is not among those"


def test_one_that_is_in_flight_no_more_is_told_so(admin: Client, wanted: Subscription) -> None:
    done, _ = fetched(wanted, most=2)
    acknowledge(wanted.subscriber_id, [done.receipt])
    answer = admin.get(f"{address(wanted, 'give_back')}?delivery={done.delivery_id}", follow=True)
    assert [*map(str, answer.context["messages"])] == [f"Delivery {done.delivery_id} is not in flight."]


@pytest.mark.behaviour("9.3")
def test_what_has_been_handed_out_again_since_it_was_shown_stays_where_it_is(
    admin: Client, wanted: Subscription
) -> None:
    fetched(wanted, most=1)
    back = address(wanted, "give_back")
    shown = chosen(admin, back)
    time_out()
    (again,) = fetched(wanted, most=1)
    assert told(admin, back, _selected_action=shown) == "Returned 0 of 1."
    assert statuses(wanted) == [IN_FLIGHT, PENDING, PENDING]
    assert acknowledge(wanted.subscriber_id, [again.receipt])[again.receipt].status == 200
    assert not LogEntry.objects.exists()


@pytest.mark.parametrize("forged", ["", "1", "1.", "x.1", "1.1.1", "٣.1"])
def test_what_no_form_sends_returns_nothing(admin: Client, wanted: Subscription, forged: str) -> None:
    fetched(wanted, most=1)
    assert told(admin, address(wanted, "give_back"), _selected_action=forged) == "Returned 0 of 0."
    assert statuses(wanted) == [IN_FLIGHT, PENDING, PENDING]


def test_where_nothing_is_in_flight_nothing_is_asked(admin: Client, wanted: Subscription) -> None:
    answer = admin.get(address(wanted, "give_back"), follow=True)
    assert answer.redirect_chain == [(address(wanted), 302)]
    assert [*map(str, answer.context["messages"])] == ["Nothing of it is in flight."]


@pytest.mark.behaviour("9.7")
def test_it_is_purged_once_that_is_confirmed(admin: Client, wanted: Subscription) -> None:
    (one,) = fetched(wanted, most=1)
    purge = address(wanted, "purge")
    assert (
        "Cancel all that is in this mailbox: 2 available, 0 waiting, and 1 in flight, unless acknowledged?"
        in text_of(admin, purge)
    )
    assert CANCELLED not in statuses(wanted)
    note = "Cancelled 2 deliveries; 1 in flight end so unless they are acknowledged."
    assert told(admin, purge) == note
    assert statuses(wanted) == [IN_FLIGHT, CANCELLED, CANCELLED]
    acknowledge(wanted.subscriber_id, [one.receipt])
    assert statuses(wanted) == [DeliveryStatus.DELIVERED, CANCELLED, CANCELLED]
    assert LogEntry.objects.get().get_change_message() == note


@pytest.mark.parametrize("what", ["give_back", "purge"])
def test_whoever_may_only_look_takes_nothing_out(client: Client, wanted: Subscription, what: str) -> None:
    (one,) = fetched(wanted, most=1)
    looker = User.objects.create(username="looker", is_staff=True)
    looker.user_permissions.add(Permission.objects.get(codename="view_mailbox"))
    client.force_login(looker)
    assert address(wanted, what) not in client.get(address(wanted)).content.decode()
    assert client.post(address(wanted, what), {"_selected_action": f"{one.delivery_id}.1"}).status_code == 403
    assert statuses(wanted) == [IN_FLIGHT, PENDING, PENDING]
