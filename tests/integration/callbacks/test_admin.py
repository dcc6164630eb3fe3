"""Callbacks in the admin site."""

from datetime import UTC, datetime

import pytest
from django.db import connection
from django.db.models.functions import Now
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils.dateparse import parse_datetime

from delivery.models import Attempt, Callback, Delivery, Hold, Line
from tests.support.admin import browser_with, view_permissions
from tests.support.api import (
    REPLY_URL,
    callback_address,
    callback_path,
    create_callback,
    post_reply,
)

LIST = "/admin/delivery/callback/"
LATER = datetime(2999, 1, 2, 3, 4, 5, tzinfo=UTC)


def text_of(admin: Client, path: str) -> str:
    answer = admin.get(path, follow=False)
    assert answer.status_code == 200, answer
    return answer.content.decode()


def test_the_list_shows_how_each_callback_stands(admin: Client, client: Client, callback: Callback) -> None:
    child = create_callback(client, callback_address(callback))
    assert text_of(admin, LIST).count("WAITING") == 2
    post_reply(child)
    page = text_of(admin, LIST)
    assert ("PASSED_ON" in page, "REPLIED" in page, "WAITING" in page) == (True, True, False)
    assert ("https://shop.example.org" in page, "/done" in page) == (True, False)


def test_the_original_address_is_shown_to_those_who_may_see_contents(callback: Callback) -> None:
    pages = (LIST, f"{LIST}{callback.pk}/change/", f"/admin/delivery/message/{callback.message_id}/change/")
    without = [text_of(browser_with(*view_permissions()), page) for page in pages]
    assert [("https://shop.example.org" in page, "job=7" in page) for page in without] == [(True, False)] * 3
    assert REPLY_URL in text_of(browser_with(*view_permissions(), "delivery.view_payload"), pages[1])


def test_a_list_takes_the_same_number_of_queries_at_any_size(admin: Client, client: Client, callback: Callback) -> None:
    def cost() -> int:
        with CaptureQueriesContext(connection) as queries:
            text_of(admin, LIST)
        return len(queries)

    post_reply(callback)
    first = cost()
    for _ in range(5):
        post_reply(create_callback(client))
    assert cost() == first


def test_a_page_leads_to_the_message_the_reply_and_its_delivery(admin: Client, callback: Callback) -> None:
    assert REPLY_URL in text_of(admin, f"{LIST}{callback.pk}/change/")
    reply_id = post_reply(callback, b'{"printed": true}').json()["id"]
    delivery = Delivery.objects.get(message=reply_id)
    Line.objects.filter(callback=callback).update(due_at=Now())
    page = text_of(admin, f"{LIST}{callback.pk}/change/")
    for model, pk in (("message", callback.message_id), ("message", reply_id), ("delivery", delivery.pk)):
        assert f"/admin/delivery/{model}/{pk}/change/" in page
    assert "{&quot;printed&quot;: true}" in page
    assert "Waiting, attempts: 0" in page


def test_a_message_shows_its_callbacks_and_a_reply_what_it_answers(admin: Client, callback: Callback) -> None:
    reply_id = post_reply(callback).json()["id"]
    message = text_of(admin, f"/admin/delivery/message/{callback.message_id}/change/")
    assert f"{LIST}{callback.pk}/change/" in message
    assert "Reply on its way" in message
    reply = text_of(admin, f"/admin/delivery/message/{reply_id}/change/")
    assert f"/admin/delivery/message/{callback.message_id}/change/" in reply
    assert "who gets it, and why" not in reply.lower()


def test_callback_lines_are_listed_until_the_reply_ends(admin: Client, client: Client, callback: Callback) -> None:
    ended = create_callback(client)
    for one in (callback, ended):
        post_reply(one)
    Hold.objects.filter(line__callback=ended).delete()
    Hold.objects.filter(line__callback=callback).update(reason="answered 503")

    def listed(query: str = "") -> list[Line]:
        return [*admin.get(f"/admin/delivery/line/{query}").context["cl"].result_list]

    assert listed()[0].callback == callback  # what is held comes first
    assert {one.callback for one in listed()} == {None, callback}
    assert {one.callback for one in listed("?lane__exact=callback")} == {callback, ended}


def test_replies_are_not_listed_as_published(admin: Client, callback: Callback) -> None:
    reply_id = post_reply(callback).json()["id"]
    link = f"/admin/delivery/message/{reply_id}/change/"
    assert link not in text_of(admin, "/admin/delivery/message/")
    assert link in text_of(admin, f"/admin/delivery/message/?q={reply_id}")


def test_reply_deliveries_show_callback_and_next_try(admin: Client, management: Client, callback: Callback) -> None:
    delivery = Delivery.objects.get(message=post_reply(callback).json()["id"])
    attempt = Attempt.objects.create(delivery=delivery, number=1, started_at=callback.created_at, duration_ms=1)
    Attempt.objects.create(delivery=delivery, number=2, started_at=callback.created_at, duration_ms=1)
    Hold.objects.update(due_at=LATER)
    for path in (f"delivery/{delivery.pk}/change/", "delivery/", "attempt/", f"attempt/{attempt.pk}/change/"):
        text = text_of(admin, f"/admin/delivery/{path}")
        assert f"callback {callback.pk}" in text
        assert ("2999-01-02" in text) == path.startswith("delivery")
    assert str(callback.event_type) in text_of(admin, "/admin/delivery/delivery/")
    shown = management.get(f"/api/v1/deliveries/{delivery.pk}").json()
    assert shown["due_at"] == management.get(f"/api/v1/callbacks/{callback.pk}").json()["delivery"]["due_at"]
    assert parse_datetime(shown["due_at"]) == LATER
    Line.objects.filter(callback=callback).delete()
    assert f"callback {callback.pk}" in text_of(admin, "/admin/delivery/delivery/")


@pytest.mark.behaviour("6.10")
def test_no_page_has_a_token(admin: Client, callback: Callback) -> None:
    token = callback_path(callback).rpartition("/")[2]
    reply_id = post_reply(callback).json()["id"]
    delivery, line = Delivery.objects.get(message=reply_id), Line.objects.get(callback=callback)
    pages = [LIST, f"{LIST}{callback.pk}/change/", *(f"/admin/delivery/{model}/" for model in ("message", "line"))]
    for model, pk in (("message", reply_id), ("delivery", delivery.pk), ("line", line.pk)):
        pages.append(f"/admin/delivery/{model}/{pk}/change/")
    for page in pages:
        text = text_of(admin, page)
        assert token not in text
        assert bytes(callback.token_hash).hex() not in text


def test_callbacks_cannot_be_edited(admin: Client, callback: Callback) -> None:
    assert admin.get(f"{LIST}add/").status_code == 403
    assert admin.post(f"{LIST}{callback.pk}/delete/").status_code == 403
