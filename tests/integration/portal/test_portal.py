"""The portal: a link opens one subscriber's pages and nobody else's, in a session of its own."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any
from unittest.mock import Mock

import pytest
from django.conf import settings as configured
from django.db import OperationalError, transaction
from django.template import Context, Template
from django.test import Client
from django.urls import URLPattern, reverse
from django.utils import timezone
from structlog.testing import capture_logs

from broker_project.core.admin.theme import badge
from broker_project.core.api import history, pagination
from broker_project.portal import session, urls, views
from broker_project.portal.operations import OPERATIONS
from broker_project.portal.session import FORM_TOKEN
from broker_project.stack.load.receiver import Receiver, answer
from delivery.models import Delivery, Lane, Message, Replay
from delivery.statuses import DeliveryStatus
from subscriptions import edit
from subscriptions.credentials.portal_links import PORTAL_SCOPES, forget_ended_portal_keys, note_form
from subscriptions.models import ApiKey, EventKind, KeyKind, Subscriber, Subscription
from tests.support import broker, factories
from tests.support.api import JSON, Answer
from tests.support.database import execute, in_other_thread
from tests.support.html_form import Form

pytestmark = [pytest.mark.django_db, pytest.mark.behaviour("1.10")]

COOKIE = configured.PORTAL_COOKIE_NAME
OWN_PAGE = {"Sec-Fetch-Site": "same-origin"}


@pytest.fixture
def own(db: None) -> Subscription:
    return factories.subscription(factories.subscriber("warehouse"), factories.event_type("Shop.Order.Paid"))


@pytest.fixture
def theirs(db: None) -> dict[str, int]:
    """What another subscriber has, by the API's names for records."""
    made = factories.subscription(factories.subscriber("somebody"), endpoint="https://somebody.example/")
    sent = delivered(made)
    numbers = {"subscriptions": made.pk, "deliveries": sent.pk, "messages": sent.message_id or 0}
    return {**numbers, "replays": replayed(made).pk}


def delivered(to: Subscription) -> Delivery:
    body = b'{"state": "open"}'
    message = Message.objects.create(
        event_type=to.event_type, body=body, size=len(body), content_type=JSON, outcome="ROUTED"
    )
    line = to.subscriber.lines.get(lane=Lane.MAIN)
    return Delivery.objects.create(message=message, subscription=to, line=line, size=2)


def replayed(of: Subscription) -> Replay:
    return Replay.objects.create(subscription=of, selection={"subscriber": of.subscriber_id}, created_by="somebody")


def linked(management: Client, name: str = "warehouse", **asked: Any) -> dict[str, Any]:
    made = management.post(f"/api/v1/subscribers/{name}/portal-links", asked, "application/json")
    assert made.status_code == 201
    found: dict[str, Any] = made.json()
    return found


def opened(link: dict[str, Any]) -> Client:
    """Return a browser in which a person has opened a link."""
    browser = Client(enforce_csrf_checks=True, headers=OWN_PAGE)
    assert browser.post(path_of(link)).status_code == 302
    return browser


@pytest.fixture
def portal(management: Client, own: Subscription) -> Client:
    return opened(linked(management, scopes=[*PORTAL_SCOPES]))


def path_of(link: dict[str, Any]) -> str:
    return str(link["url"].removeprefix(configured.PUBLIC_URL))


def token_in(portal: Client) -> str:
    """Return the token of a form of the portal; empty without a session."""
    found = re.search(rf'name="{FORM_TOKEN}" value="([^"]+)"', portal.get("/portal/").text)
    return found[1] if found else ""


def send(portal: Client, address: str, **fields: str) -> Answer:
    """Send a form of the portal, with the token that its pages have."""
    return portal.post(address, {FORM_TOKEN: token_in(portal), **fields})


def patterns() -> list[URLPattern]:
    return [one for one in urls.urlpatterns if one.name != "theme"]


def addresses_of_one(numbers: dict[str, int]) -> Iterator[str]:
    """Yield the address of every page, and of every operation, on one record of each kind."""
    for pattern in patterns():
        if "operation" in pattern.pattern.converters:
            for records, operations in OPERATIONS.items():
                yield from (reverse("portal:operate", args=[records, numbers[records], one]) for one in operations)
        elif "id" in pattern.pattern.converters:
            yield reverse(f"portal:{pattern.name}", args=[numbers[str(pattern.pattern).partition("/")[0]]])


def pages() -> list[str]:
    named = [pattern.name for pattern in patterns() if not pattern.pattern.converters and pattern.name != "leave"]
    return [reverse(f"portal:{name}") for name in named]


def test_another_subscribers_records_do_not_exist(portal: Client, theirs: dict[str, int]) -> None:
    unknown = dict.fromkeys(theirs, 10**17)
    walked = [*zip(addresses_of_one(theirs), addresses_of_one(unknown), strict=True)]
    assert len(walked) == 4 + sum(map(len, OPERATIONS.values()))
    for address, nobodys in walked:
        shown = portal.get(address, follow=True)
        assert (shown.status_code, b"somebody" in shown.content) == (200 if "/replays/" in address else 404, False)
        refused, of_nobody = send(portal, address, save="", endpoint="http://127.0.0.1/"), send(portal, nobodys)
        assert (refused.status_code, b"somebody" in refused.content) == (404, False)
        assert refused.content == of_nobody.content
    assert Subscription.objects.get(pk=theirs["subscriptions"]).version == 1
    assert [one.status for one in Delivery.objects.filter(subscription__subscriber__name="somebody")] == ["PENDING"]


def test_lists_have_nothing_of_others(portal: Client, own: Subscription, theirs: dict[str, int]) -> None:
    mine = delivered(own)
    for address in (*pages(), f"/portal/deliveries?subscription={theirs['subscriptions']}"):
        content = portal.get(address).text
        assert "somebody" not in content
        assert not any(re.search(rf"\b{number}\b", content) for name, number in theirs.items() if name == "deliveries")
    assert str(mine.pk) in portal.get("/portal/deliveries").text
    refused = send(portal, "/portal/replays", subscription=str(theirs["subscriptions"]), start="")
    assert (refused.status_code, Replay.objects.count()) == (400, 1)


def test_without_a_session_no_page_opens(own: Subscription, theirs: dict[str, int]) -> None:
    _, token = factories.api_key()
    for address in (*pages(), *addresses_of_one(theirs), "/portal/leave"):
        for cookie in ("", "brk_" + "A" * 43, token):
            browser = Client()
            browser.cookies[COOKIE] = cookie
            assert [browser.get(address).status_code, browser.post(address).status_code] == [401, 401]


def test_a_link_opens_once_and_asks_before(management: Client, own: Subscription) -> None:
    link = linked(management, label="ann")
    address = path_of(link)
    asked = Client().get(address)
    assert (asked.status_code, asked.cookies) == (200, {})
    assert opened(link).get("/portal/").status_code == 200
    assert [
        Client(headers=OWN_PAGE).post(address).status_code,
        Client(headers=OWN_PAGE).post("/portal/open/unknown").status_code,
    ] == [410, 410]
    key = ApiKey.objects.get(pk=link["api_key"])
    assert (key.kind, key.scopes, key.is_portal, key.label) == (KeyKind.SUBSCRIBER, ["read", "operate"], True, "ann")
    assert address.rpartition("/")[2] not in Client().get(address).text


def test_a_session_ends_with_its_key_and_is_forgotten(management: Client, own: Subscription) -> None:
    link, other = linked(management, expires_in_seconds=60), linked(management)
    portal = opened(link)
    assert management.post(f"/api/v1/api-keys/{link['api_key']}/revoke").status_code == 200
    assert portal.get("/portal/").status_code == 401
    assert management.post(f"/api/v1/api-keys/{other['api_key']}/revoke").status_code == 200
    assert Client(headers=OWN_PAGE).post(path_of(other)).status_code == 410
    forget_ended_portal_keys(timezone.now() + timedelta(days=30, seconds=61))
    assert [key.pk for key in ApiKey.objects.filter(is_portal=True)] == [other["api_key"]]


def test_who_leaves_has_left(portal: Client, own: Subscription) -> None:
    cookie = portal.cookies[COOKIE].value
    assert send(portal, "/portal/leave").status_code == 200
    portal.cookies[COOKIE] = cookie
    assert portal.get("/portal/").status_code == 401


def test_a_narrow_link_only_shows(management: Client, own: Subscription) -> None:
    portal = opened(linked(management, scopes=[]))
    page = portal.get(f"/portal/subscriptions/{own.pk}").text
    assert ("<button>Pause" in page, "Save" in page) == (False, False)
    assert ("<fieldset disabled>" in page, portal.get("/portal/subscriptions/new").status_code) == (True, 403)
    assert send(portal, f"/portal/subscriptions/{own.pk}/pause").status_code == 403
    assert send(portal, f"/portal/subscriptions/{own.pk}", endpoint="http://127.0.0.1/").status_code == 403


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Origin": "http://testserver"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({}, 403),
        ({"Origin": "http://testserver"}, 302),
        ({"Sec-Fetch-Site": "none"}, 302),
        ({"Origin": "http://["}, 403),
    ],
)
def test_only_the_links_own_page_opens_it(
    management: Client, own: Subscription, headers: dict[str, str], status: int
) -> None:
    address = path_of(linked(management))
    assert Client(headers=headers).post(address).status_code == status


def test_a_link_ends_the_session_that_it_replaces(management: Client, own: Subscription, portal: Client) -> None:
    former = portal.cookies[COOKIE].value
    key = ApiKey.objects.get(is_portal=True)
    with capture_logs() as logs:
        portal.post(path_of(linked(management)))
    assert [one["key"] for one in logs if one["event"] == "portal.left"] == [key.pk]
    assert portal.get("/portal/").status_code == 200
    portal.cookies[COOKIE] = former
    assert portal.get("/portal/").status_code == 401


def test_a_form_that_is_sent_again_does_nothing(portal: Client, own: Subscription) -> None:
    fields = {FORM_TOKEN: token_in(portal), "event_type": "Shop.*", "endpoint": "https://a.example/", "start": ""}
    one = f"/portal/subscriptions/{own.pk}"
    assert portal.post(f"{one}/rotate-secret", fields).status_code == 200
    secret = Subscription.objects.get(pk=own.pk).signing_secret
    for address in (f"{one}/rotate-secret", "/portal/subscriptions/new", "/portal/replays"):
        assert b"This was done already" in portal.post(address, fields).content
    assert (Subscription.objects.get().signing_secret, Replay.objects.count()) == (secret, 0)
    assert portal.get(f"{one}/rotate-secret").headers["Location"] == one


def test_a_form_that_fails_can_be_sent_again(
    portal: Client, own: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {FORM_TOKEN: token_in(portal), "event_type": "Shop.*", "endpoint": "https://a.example/"}
    assert portal.post("/portal/subscriptions/new", fields | {"endpoint": "nowhere"}).status_code == 400
    portal.raise_request_exception = False
    for failure, status in ((RuntimeError("broken"), 500), (OperationalError("no database"), 503)):
        with monkeypatch.context() as broken:
            broken.setattr(edit, "create", Mock(side_effect=failure))
            assert portal.post("/portal/subscriptions/new", fields).status_code == status
    assert b"Signing secret" in portal.post("/portal/subscriptions/new", fields).content
    assert b"This was done already" in portal.post("/portal/subscriptions/new", fields).content
    assert Subscription.objects.exclude(pk=own.pk).count() == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("fails", "status"), [(False, 409), (True, 302)])
def test_a_form_waits_for_the_same_one(portal: Client, own: Subscription, *, fails: bool, status: int) -> None:
    fields = {FORM_TOKEN: token_in(portal)}
    key, address = ApiKey.objects.get(is_portal=True), f"/portal/subscriptions/{own.pk}/pause"
    with ExitStack() as threads:
        with transaction.atomic():
            note_form(key.pk, fields[FORM_TOKEN][: session.NONCE_CHARACTERS])
            second = threads.enter_context(in_other_thread(lambda: portal.post(address, fields)))
            assert not second.done()
            Subscription.objects.select_for_update(nowait=True).get(pk=own.pk)  # the second has not begun to pause it
            transaction.set_rollback(fails)
        assert second.result().status_code == status


def test_links_and_forms_outlive_the_secret_key(
    management: Client, own: Subscription, portal: Client, settings: Any
) -> None:
    link, withdrawn = (path_of(linked(management)) for _ in range(2))
    form = {FORM_TOKEN: token_in(portal)}
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "another", ["between", settings.SECRET_KEY]
    assert b"data-send" in portal.get(link).content
    assert portal.post(f"/portal/subscriptions/{own.pk}/pause", form).status_code == 302
    assert Client(headers=OWN_PAGE).post(link).status_code == 302
    settings.SECRET_KEY_FALLBACKS = []
    assert Client(headers=OWN_PAGE).post(withdrawn).status_code == 410
    assert portal.post(f"/portal/subscriptions/{own.pk}/resume", form).status_code == 403
    assert send(portal, f"/portal/subscriptions/{own.pk}/resume").status_code == 302


def test_a_page_counts_as_one_request(own: Subscription) -> None:
    _, token = factories.api_key(requests_per_minute=9)
    browser = opened(linked(Client(headers={"Authorization": f"Bearer {token}"})))
    first = delivered(own)
    for _ in range(7):
        Delivery.objects.create(message=first.message, subscription=own, line=first.line, size=2)
    addresses = [f"/portal/messages/{first.message_id}", "/portal/", "/portal/deliveries"] * 3
    assert [browser.get(one).status_code for one in addresses] == [200] * 9
    refused = browser.get("/portal/")
    assert (refused.status_code, 0 < int(refused["Retry-After"]) <= 7) == (429, True)


def test_a_message_tells_of_its_newest_deliveries_and_leads_to_the_others(portal: Client, own: Subscription) -> None:
    first = delivered(own)
    for _ in range(6):
        Delivery.objects.create(message=first.message, subscription=own, line=first.line, size=2)
    told, _, older = portal.get(f"/portal/messages/{first.message_id}").text.partition("Older deliveries")
    ids = [*Delivery.objects.order_by("-pk").values_list("pk", flat=True)]
    assert [one for one in ids if f'aria-label="Delivery dlv_{one}"' in told] == ids[:5]
    assert [one for one in ids if f'href="/portal/deliveries/{one}"' in older] == ids[5:]


def test_a_refusal_keeps_the_status_of_the_api(
    management: Client, portal: Client, own: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow = opened(linked(management, scopes=[]))
    changed = send(portal, f"/portal/subscriptions/{own.pk}/filter", filter="", save="", version="99")
    forbidden = send(narrow, "/portal/replays", start="")
    monkeypatch.setattr(pagination.Search, "found", Mock(side_effect=OperationalError("no database")))
    away = portal.get("/portal/deliveries?from=2026-01-01T00:00")
    assert [(one.status_code, one.headers.get("Retry-After")) for one in (changed, forbidden, away)] == [
        *((412, None), (403, None), (503, "1"))
    ]


def test_only_what_works_is_offered(portal: Client, own: Subscription, management: Client) -> None:
    asked = factories.subscription(own.subscriber, factories.event_type("Shop.Ask", kind=EventKind.SYNC))
    answered = factories.subscription(
        own.subscriber, factories.event_type("Shop.Answer", kind=EventKind.SYNC), endpoint="webr://", script="({})"
    )
    buttons = ("Pause", "Send test event")
    shown = {one.pk: portal.get(f"/portal/subscriptions/{one.pk}").text for one in (own, asked, answered)}
    assert {pk: [name for name in buttons if f"<button>{name}" in page] for pk, page in shown.items()} == {
        own.pk: ["Pause", "Send test event"],
        asked.pk: ["Send test event"],
        answered.pk: [],
    }


def test_all_subscriptions_and_topics_can_be_chosen_until_there_are_too_many(
    portal: Client, own: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "AT_ONCE", 2)
    for number in range(4):
        factories.event_type(f"A.{number}", kind=EventKind.SYNC)
        factories.subscription(own.subscriber, factories.event_type(f"B.{number}"))
    for limit, listed, suggested in ((100, 5, 5), (4, 4, 0)):
        monkeypatch.setattr(views, "MAX_CHOICES", limit)
        choice, new = (portal.get(f"/portal/{one}").text for one in ("replays", "subscriptions/new"))
        assert (choice.count("<option"), "There are more than these" in choice) == (1 + listed, listed < 5)
        assert (new.count("<option"), "There are more event types" in new) == (suggested, suggested < 5)


def test_saving_leaves_alone_what_was_not_changed(portal: Client, own: Subscription) -> None:
    execute("UPDATE subscriptions_subscription SET headers = 'gone'")
    address, tried = f"/portal/subscriptions/{own.pk}", "$$->'Body'->>'state' = 'open'"
    shown = portal.get(address).text
    version = Subscription.objects.get().version
    fields = {"endpoint": own.endpoint, "filter": tried, "header_filter_string": "", "headers": ""}
    assert "nothing is sent until you write them again" in shown
    assert send(portal, address, **fields, version=str(version)).status_code == 302
    stored = Subscription.objects.get()
    assert (stored.filter, stored.unreadable) == (tried, ["headers"])
    written = {**fields, "headers": "X-Team: blue", "version": str(stored.version)}
    assert send(portal, address, **written).status_code == 302
    assert Subscription.objects.get().headers == {"X-Team": "blue"}


def test_a_subscription_zero_does_not_exist(portal: Client) -> None:
    assert portal.get("/portal/subscriptions/0").status_code == 404
    assert (
        send(portal, "/portal/subscriptions/0", event_type="Shop.*", endpoint="https://a.example/").status_code == 404
    )


def test_a_message_is_shown_by_its_own_deliveries(portal: Client, own: Subscription, theirs: dict[str, int]) -> None:
    mine = delivered(own)
    Delivery.objects.filter(pk=theirs["deliveries"]).update(message=mine.message_id)
    shown = portal.get(f"/portal/messages/{mine.message_id}").text
    assert (f"dlv_{mine.pk}" in shown, f"dlv_{theirs['deliveries']}" in shown) == (True, False)
    assert f'href="/portal/messages/{mine.message_id}"' in portal.get(f"/portal/deliveries/{mine.pk}").text


def test_a_link_for_another_subscriber_asks_before_it_replaces_a_session(
    management: Client, own: Subscription, theirs: dict[str, int], portal: Client
) -> None:
    same, other = (path_of(linked(management, name)) for name in ("warehouse", "somebody"))
    assert b"data-send" in portal.get(same).content
    asked = portal.get(other).content
    assert (b"data-send" in asked, b"You are in the portal of warehouse." in asked) == (False, True)
    assert portal.get("/portal/").status_code == 200


def test_numbers_that_no_record_has_are_refused(portal: Client, own: Subscription) -> None:
    many = "9" * 5_000
    assert portal.get(f"/portal/deliveries/{delivered(own).pk}?attempt={many}").status_code == 200
    assert send(portal, f"/portal/subscriptions/{own.pk}/filter", message_id=many).status_code == 400
    assert send(portal, "/portal/replays", subscription=many).status_code == 400
    unknown = portal.get(f"/portal/subscriptions/{own.pk}/dance")
    assert (unknown.status_code, b"There is nothing at this address" in unknown.content) == (404, True)


def test_whoever_guesses_links_has_to_wait(settings: Any, own: Subscription) -> None:
    settings.FAILURES_PER_MINUTE = 2
    browser = Client(headers=OWN_PAGE, REMOTE_ADDR="192.0.2.77")
    answers = [browser.post("/portal/open/unknown") for _ in range(3)]
    assert [one.status_code for one in answers] == [410, 410, 429]
    assert f"Try again in {answers[2]['Retry-After']} seconds" in answers[2].text


def test_a_limited_key_makes_links_that_are_limited_too_and_logged_with_their_label(own: Subscription) -> None:
    _, token = factories.api_key(requests_per_minute=77)
    with capture_logs() as logs:
        browser = opened(linked(Client(headers={"Authorization": f"Bearer {token}"}), label="ann"))
        send(browser, f"/portal/subscriptions/{own.pk}/pause")
        send(browser, "/portal/leave")
    key = ApiKey.objects.get(is_portal=True)
    assert key.requests_per_minute == 77
    named = {"key": key.pk, "prefix": key.prefix, "subscriber": "warehouse", "label": "ann", "log_level": "info"}
    seen = [one for one in logs if one["event"].startswith("portal.")]
    assert seen == [{"event": f"portal.{what}", **named} for what in ("link_created", "opened", "left")]
    assert [one.get("label") for one in logs if one["event"] == "api.changed"] == ["", "ann"]


def test_a_subscriber_is_not_told_of_settings(portal: Client, own: Subscription) -> None:
    refused = send(portal, f"/portal/subscriptions/{own.pk}", endpoint="http://10.0.0.1/", version="1").content
    assert (b"ask whoever runs this service" in refused, b"BROKER_" in refused) == (True, False)


def test_links_open_no_more_than_their_issuer(own: Subscription) -> None:
    _, token = factories.api_key(scopes=["keys", "read"])
    issuer = Client(headers={"Authorization": f"Bearer {token}"})
    address = "/api/v1/subscribers/warehouse/portal-links"
    assert issuer.post(address, {}, "application/json").json()["code"] == "beyond_issuer"
    assert issuer.post(address, {"scopes": ["read"]}, "application/json").status_code == 201


def test_forms_of_other_sites_are_refused(portal: Client, own: Subscription) -> None:
    for address in (
        *addresses_of_one({"subscriptions": own.pk, "deliveries": 1, "messages": 1, "replays": 1}),
        "/portal/leave",
    ):
        assert portal.post(address, {FORM_TOKEN: "of another"}).status_code == 403
    assert portal.get("/portal/").status_code == 200


def test_only_chosen_sites_frame_the_portal(management: Client, own: Subscription, settings: Any) -> None:
    address = path_of(linked(management))
    page = Client().get(address)
    assert ("frame-ancestors 'none'" in page["Content-Security-Policy"], page["X-Frame-Options"]) == (True, "DENY")
    assert (page["Referrer-Policy"], page["Cache-Control"]) == ("strict-origin", "no-store")
    settings.PORTAL_ORIGINS, settings.PORTAL_LOGO = ["https://app.example.org"], "https://www.example.org/logo.svg"
    page = Client().get(address)
    policy = page["Content-Security-Policy"].split("; ")
    assert {"frame-ancestors https://app.example.org", "img-src 'self' data: https://www.example.org"} <= {*policy}
    assert "X-Frame-Options" not in page
    name, *flags = Client(headers=OWN_PAGE).post(address)["Set-Cookie"].split("; ")
    assert name.startswith(COOKIE)
    assert {"HttpOnly", "Path=/", "SameSite=None", "Secure", "Partitioned"} <= {*flags}


@pytest.mark.parametrize(("colour", "on_it"), [("#ffee00", "#000"), ("#1d4ed8", "#fff")])
def test_colour_and_logo_are_settings(settings: Any, colour: str, on_it: str) -> None:
    settings.PORTAL_COLOR, settings.PORTAL_LOGO = colour, "https://www.example.org/logo.svg"
    assert Client().get("/portal/theme.css").text == f":root {{ --brand: {colour}; --on-brand: {on_it}; }}\n"
    shown = Client().get("/portal/open/link").text
    assert ('href="/portal/theme.css"' in shown, 'src="https://www.example.org/logo.svg"' in shown) == (True, True)


def test_a_cookie_is_for_pages_of_the_portal_itself(management: Client, own: Subscription) -> None:
    cookie = opened(linked(management, expires_in_seconds=600)).cookies[COOKIE]
    assert (cookie["httponly"], cookie["samesite"], cookie["domain"], 590 < cookie["max-age"] <= 600) == (
        *(True, "Lax", ""),
        True,
    )


def test_a_subscription_is_made_changed_and_operated(portal: Client, own: Subscription, receiver: Receiver) -> None:
    fields = {"event_type": "Shop.*", "endpoint": receiver.url("/a"), "headers": "X-Team: blue\r\n", "filter": ""}
    made = send(portal, "/portal/subscriptions/new", **fields)
    stored = Subscription.objects.exclude(pk=own.pk).get()
    assert (stored.event_pattern, stored.subscriber, stored.headers) == ("Shop.*", own.subscriber, {"X-Team": "blue"})
    assert stored.signing_secret in made.text
    address = f"/portal/subscriptions/{stored.pk}"
    kept = {"headers": "X-Team:", "endpoint": receiver.url("/b"), "version": str(stored.version)}
    assert send(portal, address, **kept).headers["Location"] == f"{address}?done=saved"
    stored.refresh_from_db()
    assert (stored.endpoint, stored.headers) == (receiver.url("/b"), {"X-Team": "blue"})
    assert b"Somebody has changed this meanwhile" in send(portal, address, **kept).content
    wrong = {b"Nothing has this name": {"event_type": "Nope"}, b"there twice": {"headers": "X-A: 1\r\nX-A: 2"}}
    for why, given in wrong.items():
        assert why in send(portal, "/portal/subscriptions/new", **fields | given).content
    refused = send(portal, "/portal/subscriptions/new", **fields | {"endpoint": "a" * 2049})
    assert refused.text.count("<code>endpoint</code>") == 2, "it is too long, and no URL"
    assert b"Answered 200" in send(portal, f"{address}/send-test-event").content
    for operation, status in (("pause", "ACTIVE"), ("resume", "ACTIVE"), ("inactivate", "INACTIVE")):
        done = send(portal, f"{address}/{operation}")
        assert done.headers["Location"] == f"{address}?done={operation}"
        assert OPERATIONS["subscriptions"][operation].done in portal.get(done.headers["Location"]).text
        stored.refresh_from_db()
        assert (stored.status, stored.paused_since is not None) == (status, operation == "pause")
    rotated = send(portal, f"{address}/rotate-secret").text
    stored.refresh_from_db()
    assert stored.signing_secret in rotated
    assert send(portal, f"{address}/delete").headers["Location"] == "/portal/?done=delete"


def test_a_filter_is_tried_before_it_is_saved(portal: Client, own: Subscription) -> None:
    address, tried = f"/portal/subscriptions/{own.pk}/filter", "$$->'Body'->>'state' = 'open'"
    shown = send(portal, address, filter=tried, body='{"state": "shut"}').text
    assert ("No match" in shown, "<code>shut</code>" in shown) == (True, True)
    assert b"Match" in send(portal, address, filter=tried, message_id=str(delivered(own).message_id)).content
    assert send(portal, address, filter="$$->", body="{}").status_code == 400
    blanks = {"header_filter_string": " eu ", "filter_string": " eu ", "body": '{"state": "open"}'}
    assert b"<strong>Match" in send(portal, address, filter=tried, **blanks).content
    assert send(portal, address, filter=tried, **blanks, save="", version="1").status_code == 302
    assert [*Subscription.objects.values_list("filter", "header_filter_string")] == [(tried, " eu ")]


@pytest.mark.parametrize(("milliseconds", "text"), [(None, "-"), (999, "999 ms"), (54_247, "54.2 s")])
def test_times_of_a_second_or_more_are_shown_in_seconds(milliseconds: int | None, text: str) -> None:
    assert Template("{% load portal %}{{ it|duration }}").render(Context({"it": milliseconds})) == text


def test_the_word_for_held_is_explained_in_both_sites(portal: Client, own: Subscription) -> None:
    Delivery.objects.filter(pk=delivered(own).pk).update(status="HELD", waits_for="RELEASE", due_at=None)
    hint = 'title="HELD: its filter or script failed'
    assert hint in portal.get("/portal/deliveries").text
    assert hint in badge(DeliveryStatus.HELD, {})
    assert 'title="FAILED"' in badge(DeliveryStatus.FAILED, {})


def test_a_change_is_done_if_it_cannot_be_noted_in_the_history(
    portal: Client, own: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "_pk_of", lambda *_: execute("SELECT 1 / 0"))
    assert send(portal, f"/portal/subscriptions/{own.pk}/pause").status_code == 302
    assert Subscription.objects.get().paused_since


def test_a_failed_delivery_is_looked_into_and_sent_again(storage: None, management: Client, receiver: Receiver) -> None:
    receiver.on("/a", answer(404, b"<gone>"))
    own = factories.subscription(factories.subscriber("warehouse"), endpoint=receiver.url("/a"))
    broker.publish_bodies(own.event_type, b"{}")
    broker.run_worker_until_done()
    failed, portal = Delivery.objects.get(), opened(linked(management))
    listed = portal.get("/portal/deliveries?status=REJECTED&from=2026-01-01T00:00").text
    assert f"{failed.pk}</span></a>" in listed
    page = portal.get(f"/portal/deliveries/{failed.pk}").text
    sent = (f"POST {own.endpoint}", "webhook-signature: ***", "&lt;gone&gt;", "ends the delivery")
    assert [text for text in sent if text not in page] == []
    again = send(portal, f"/portal/deliveries/{failed.pk}/resubmit")
    new = Delivery.objects.get(resubmit_of=failed.pk)
    assert again.headers["Location"] == f"/portal/deliveries/{new.pk}?done=resubmit"


def test_the_overview_says_what_is_wrong_and_what_is_missing(portal: Client, own: Subscription) -> None:
    shown = portal.get("/portal/").text
    assert ('<p class="note">' in shown, "Ended without success" in shown) == (True, False)
    Subscriber.objects.update(status="INACTIVE")
    assert '<p class="problem">It is inactive' in portal.get("/portal/").text
    Subscriber.objects.update(status="ACTIVE")
    own.delete()
    assert '<p class="note">No subscription yet.' in portal.get("/portal/").text


def test_a_search_that_is_not_finished_goes_on(
    portal: Client, own: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = delivered(own)
    monkeypatch.setattr(pagination.Search, "found", lambda *_: ([], looked_at.pk))
    found = portal.get("/portal/deliveries?utm_source=mail&from=2026-01-01T00:00")
    until = f"Searched back to {looked_at.created_at:%Y-%m-%d %H:%M} UTC, nothing found so far."
    assert (found.status_code, until in found.text) == (200, True)
    assert "?cursor=" in found.text.partition(until)[2].partition(">Go on searching")[0]


def test_a_replay_starts_what_was_counted(portal: Client, own: Subscription) -> None:
    assert b"0 deliveries would be sent again" in send(portal, "/portal/replays").content
    ended = {"status": "EXPIRED", "closed_on": timezone.now().date(), "finished_at": timezone.now()}
    Delivery.objects.filter(pk=delivered(own).pk).update(**ended)
    counted = send(portal, "/portal/replays", subscription=str(own.pk), **{"from": "2026-01-01T00:00"}).text
    (form,) = [one for one in re.findall(r"(?s)<form.*?</form>", counted) if "Start the replay" in one]
    assert ("<select" in form, [*Form(form).fields]) == (False, [FORM_TOKEN, *views.REPLAY_FIELDS])
    started = portal.post("/portal/replays", Form(form).fields | {"start": ""})
    assert b"The replay has started." in portal.get(started.headers["Location"]).content
    assert (started.status_code, Replay.objects.get().selection["from"][:16]) == (302, "2026-01-01T00:00")
