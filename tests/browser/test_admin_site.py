"""What only a browser shows: confirmations, filters of lists, operators of filters, forms with results."""

import datetime as dt
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.utils import timezone

from broker_project.stack.load.receiver import Receiver, answer
from delivery.models import Attempt, Delivery, Hold, Message, Replay, ReplayKind
from delivery.statuses import DeliveryStatus
from subscriptions.models import Status, Subscription
from tests.support import broker, factories
from tests.support.chromium import Page

DRAWN_OTHERWISE = """
    (() => {
        const found = [], walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
        for (let node; node = walk.nextNode();) {
            const at = node.data.indexOf("->");
            if (at < 0 || !node.parentElement.checkVisibility()) continue;
            const range = document.createRange(), plain = document.createElement("span");
            range.setStart(node, at);
            range.setEnd(node, at + 2);
            plain.style.fontVariantLigatures = "none";
            plain.textContent = "->";
            node.parentElement.append(plain);
            const widths = [range, plain].map(one => one.getBoundingClientRect().width);
            plain.remove();
            found.push([node.data.trim(), widths[0] !== widths[1]]);
        }
        return found;
    })()
"""
"""Each text with an operator, and whether that is not as wide as one that is drawn character by character."""


def colour(page: Page, selector: str) -> Any:
    return page.evaluate(f"getComputedStyle(document.querySelector('{selector}')).backgroundColor")


def buttons(page: Page, within: str) -> Any:
    """Return the words on the buttons that are to be seen there."""
    shown = (
        f"[...document.querySelector('{within}').querySelectorAll('button, a')].filter(one => one.checkVisibility())"
    )
    return page.evaluate(f"{shown}.map(one => one.lastElementChild?.innerText ?? one.innerText).map(one => one.trim())")


def test_inactivating_says_what_is_lost_and_is_not_taken_for_pausing(page: Page, live_server: Any) -> None:
    wanted = factories.subscription()
    broker.publish_numbered(wanted.event_type, 3)
    address = f"{live_server.url}/admin/subscriptions/subscription/{wanted.pk}/change/"
    page.open(address)
    assert "Inactivate" not in page.text()
    page.click("a", "Pause")
    page.wait_for("document.querySelector('#dialog')?.checkVisibility()")
    assert "No message is lost" in page.text()
    harmless = colour(page, "#dialog button[type=submit]")
    page.open(address)
    page.click("a", "More")
    page.click("nav a", "Inactivate (loses messages)")
    page.wait_for("location.pathname.endsWith('/inactivate/')")
    page.wait_for("document.body?.innerText.includes('In the last 24 hours that would have been 3 deliveries')")
    assert "3 now, are kept" in page.text()
    assert "To lose nothing, pause instead." in page.text()
    assert colour(page, "#content form button[type=submit]") != harmless
    page.click("#content form button", "Inactivate")
    page.wait_for(f"location.href === '{address}'")
    assert Subscription.objects.get().status == Status.INACTIVE


def test_buttons_say_what_they_do(page: Page, live_server: Any) -> None:
    replay = Replay.objects.create(kind=ReplayKind.REPLAY, selection={}, created_by="ann")
    page.open(f"{live_server.url}/admin/delivery/replay/{replay.pk}/change/")
    page.click("a", "Cancel")
    page.wait_for("document.querySelector('#dialog')?.checkVisibility()")
    assert buttons(page, "#dialog") == ["Go back", "Cancel replay"]
    page.click("#dialog a", "Go back")
    page.wait_for("!document.querySelector('#dialog').checkVisibility()")
    wanted = factories.subscription()
    page.open(f"{live_server.url}/admin/subscriptions/subscription/{wanted.pk}/cancel/")
    assert buttons(page, "#content form") == ["Cancel deliveries", "Go back"]


def test_choosing_an_entry_of_a_search_select_filters(page: Page, live_server: Any) -> None:
    shop, store = factories.subscriber("shop"), factories.subscriber("store")
    factories.subscription(shop, endpoint="http://127.0.0.1:9/shop")
    factories.subscription(store, endpoint="http://127.0.0.1:9/store")
    factories.subscription(store, endpoint="http://127.0.0.1:9/off", status="INACTIVE")
    page.open(f"{live_server.url}/admin/subscriptions/subscription/?status__exact=ACTIVE&o=1")
    page.click("a[x-on\\:click='filterOpen = true']")
    page.click("#changelist-filter .select2-selection")
    page.click(".select2-results__option", "store")
    page.wait_for("location.search.includes('subscriber')")
    assert page.evaluate("location.search") == f"?status__exact=ACTIVE&o=1&subscriber__id__exact={store.pk}"
    rows = "[...document.querySelectorAll('#result_list tbody tr')].map(row => row.innerText)"
    page.wait_for(f"{rows}.length === 1")
    assert "/store" in page.evaluate(rows)[0]


def test_the_dashboard_leads_from_the_first_step_to_what_needs_attention(page: Page, live_server: Any) -> None:
    page.open(f"{live_server.url}/admin/")
    assert "Nothing has been published yet" in page.text()
    page.click("li a", "Create a publisher")
    page.wait_for("location.pathname === '/admin/subscriptions/publisher/add/'")
    page.click("a", "Dashboard")
    page.wait_for("location.pathname === '/admin/' && document.body?.innerText.includes('Nothing has been published')")
    wanted = factories.subscription(factories.subscriber("shop"))
    broker.publish_numbered(wanted.event_type, 2)
    delivery = Delivery.objects.earliest("pk")
    since = timezone.now() - dt.timedelta(minutes=2)
    Hold.objects.create(
        delivery=delivery, line_id=delivery.line_id or 0, reason="the endpoint answered 503", failures=1, since=since
    )
    page.wait_for("document.querySelector('#live')?.innerText.includes('the endpoint answered 503')")
    assert "Nothing has been published yet" not in page.text()
    page.click("#live a", "shop")
    page.wait_for(f"location.pathname === '/admin/delivery/line/{delivery.line_id}/change/'")


def test_the_first_field_of_a_form_has_the_focus(page: Page, live_server: Any) -> None:
    page.open(f"{live_server.url}/admin/subscriptions/subscription/set-up/")
    page.wait_for("document.activeElement?.id === 'id_event_type'")


@pytest.mark.usefixtures("calls")
def test_a_webhook_is_set_up_and_tried_within_nine_clicks(page: Page, live_server: Any, receiver: Receiver) -> None:
    receiver.on("/orders", answer(503), answer(200, b"thanks"))
    page.open(f"{live_server.url}/admin/")
    clicks = 0
    for selector, text, typed in (
        ("#live a", "Set up a webhook", "Shop.Order.Placed"),
        ("#id_subscriber", "", "warehouse"),
        ("#id_endpoint", "", receiver.url("/orders")),
        ("#set-up button", "Set up", ""),
        ("button", "Copy", ""),
        ("#test-event button", "Send test event", ""),
    ):
        page.click(selector, text, times=2 if text in {"Set up", "Send test event"} else 1)  # by habit
        clicks += 1
        if typed:
            page.wait_for("document.activeElement?.matches('input[type=text]')")
            page.type(typed)
    page.wait_for("document.querySelector('#test-event').innerText.includes('Answered 503 after')")
    assert len(receiver.of("/orders")) == 1
    page.wait_for("document.querySelector('#test-event').innerText.includes('Answered 200 after')")
    made = Subscription.objects.get()
    assert (clicks, str(made)) == (6, "warehouse ← Shop.Order.Placed")
    assert "thanks" in page.text()
    assert page.evaluate("getSelection().toString()") == made.signing_secret == page.evaluate("secret.innerText")


@pytest.mark.lengthy
def test_a_page_that_cannot_refresh_itself_says_so_and_leads_to_the_login(page: Page, live_server: Any) -> None:
    page.open(f"{live_server.url}/admin/")
    User.objects.update(is_superuser=False)
    page.wait_for("document.body?.innerText.includes('Not refreshed since')")
    User.objects.update(is_superuser=True)
    page.wait_for("!document.body?.innerText.includes('Not refreshed since')")
    Session.objects.all().delete()
    page.wait_for("location.pathname === '/admin/login/'")


@pytest.mark.lengthy
def test_live_numbers_are_sorted_by_a_click_and_refresh_themselves(page: Page, live_server: Any) -> None:
    names = "[...document.querySelectorAll('#live tbody tr')].map(row => row.cells[0].innerText)"
    page.open(f"{live_server.url}/admin/")
    page.click("a", "Live numbers")
    page.wait_for("document.body?.innerText.includes('There are no subscribers yet. Create the first one.')")
    _, store = (factories.subscription(factories.subscriber(name)) for name in ("shop", "store"))
    broker.publish_numbered(store.event_type, 3)
    page.wait_for(f"{names}.length === 2")
    assert page.evaluate(names) == ["store", "shop"], "what has waited longest is first"
    assert "ago" in page.evaluate("document.querySelector('#live tbody time').innerText")
    page.click("th a", "Waiting")
    page.wait_for("document.querySelector('th[aria-sort=descending]')?.innerText.startsWith('Waiting')")
    assert page.evaluate(names) == ["store", "shop"]
    page.click("th a", "Waiting")
    page.wait_for(f"{names}[0] === 'shop'")
    page.click("#live tbody a", "shop")
    page.wait_for("document.body?.innerText.includes('Nothing of shop ended in these minutes.')")


@pytest.mark.parametrize("path", ["subscriptions/subscription/add/", "delivery/message/filter-lab/"])
def test_an_operator_is_read_as_it_is_typed(page: Page, live_server: Any, path: str) -> None:
    broker.publish_numbered(factories.subscription(filter="$$->'Body' IS NOT NULL").event_type, 1)
    page.open(f"{live_server.url}/admin/{path}")
    page.evaluate("document.fonts.ready.then(() => true)")
    operators = page.evaluate(DRAWN_OTHERWISE)
    assert operators
    assert [text for text, is_drawn_otherwise in operators if is_drawn_otherwise] == []


def test_an_event_type_is_asked_who_would_get_its_sample(page: Page, live_server: Any) -> None:
    placed = factories.event_type("Shop.Order.Placed", sample='{"state": "open"}')
    factories.subscription(factories.subscriber("warehouse"), placed)
    factories.subscription(factories.subscriber("billing"), placed, filter="$$->'Body'->>'state' = 'paid'")
    page.open(f"{live_server.url}/admin/subscriptions/eventtype/{placed.pk}/change/")
    page.click("a", "Who would get it?")
    page.wait_for("location.pathname.endsWith('/dry-run/')")
    page.click("#dry-run button", "Who would get it?")
    page.wait_for("document.body?.innerText.includes('ROUTED, 1 delivery')")
    rows = page.evaluate("[...document.querySelectorAll('#content section tbody tr')].map(row => row.innerText)")
    assert ["warehouse" in rows[0], "Gets it" in rows[0], "There is no filter." in rows[0]] == [True] * 3
    assert [word in rows[1] for word in ("billing", "Filter does not match", "open", "'paid'")] == [True] * 4
    assert len(rows) == 2
    assert not Message.objects.exists()


def test_the_deliveries_of_a_message_fit_a_window_of_1280_pixels(page: Page, live_server: Any) -> None:
    wanted = factories.subscription(factories.subscriber("search-index"), factories.event_type("Tracker.Issue.Created"))
    broker.publish_numbered(wanted.event_type, 1)
    page.resize(1280)
    page.open(f"{live_server.url}/admin/delivery/message/{Message.objects.get().pk}/change/")
    boxes = "[...document.querySelectorAll('.readonly div:has(> table)')].filter(one => one.innerText.includes('dlv_'))"
    assert page.evaluate(f"{boxes}.map(one => one.scrollWidth <= one.clientWidth)") == [True]
    page.resize(1400)


@pytest.mark.parametrize("is_dark", [False, pytest.param(True, marks=pytest.mark.lengthy)])
def test_the_page_of_the_api_names_problems_and_follows_the_colours(
    page: Page, live_server: Any, *, is_dark: bool
) -> None:
    page.resize(390, dark=is_dark)
    page.open(f"{live_server.url}/api/docs/")
    page.click("button", "Publish an event")
    page.wait_for("document.body.innerText.includes('event_type_not_allowed: the publisher can publish only others')")
    assert '"order": 4711' in page.text()
    assert colour(page, "body") == ("rgb(28, 32, 34)" if is_dark else "rgb(250, 250, 250)")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    page.resize(1400)


def test_a_subscriber_leads_to_what_blocks_it_and_that_to_its_request(page: Page, live_server: Any) -> None:
    wanted = factories.subscription(factories.subscriber("shop"), endpoint="http://127.0.0.1:9/hook")
    broker.publish_bodies(wanted.event_type, b'{"order": 7}', b"{}", headers=[("X-Api-Key", "tell-nobody")])
    delivery = Delivery.objects.earliest("pk")
    line_id = delivery.line_id or 0
    Hold.objects.create(delivery=delivery, line_id=line_id, reason="answered 503", failures=1)
    Attempt.objects.create(
        delivery=delivery,
        number=1,
        started_at=timezone.now(),
        duration_ms=12,
        status_code=503,
        answer_headers=b"HTTP/1.1 503 -",
        answer_excerpt=b"later",
    )
    page.open(f"{live_server.url}/admin/subscriptions/subscriber/")
    page.click("#result_list a", "shop")
    page.wait_for("document.body?.innerText.includes('answered 503') && location.pathname.endsWith('/overview/')")
    assert "2 deliveries wait, the oldest for" in page.text()
    page.click("nav[aria-label=Subscriber] a", "Settings")
    page.wait_for("location.pathname.endsWith('/change/') && document.body?.innerText.includes('2 deliveries wait')")
    page.click("nav[aria-label=Subscriber] a", "Overview")
    page.wait_for("location.pathname.endsWith('/overview/')")
    page.click(f"#live button[aria-label='Copy id dlv_{delivery.pk}']")
    page.wait_for(f"getSelection().toString() === 'dlv_{delivery.pk}'")
    page.click("#live td a", str(delivery.pk))
    page.wait_for("document.querySelector('.timeline')?.innerText.includes('Attempt 1: 503 in 12 ms')")
    assert "503 holds the line" in page.text()
    assert "Nothing overtakes it." in page.text()
    assert "later" not in page.text()
    page.click(".timeline summary", "POST http://127.0.0.1:9/hook")
    page.wait_for("document.querySelector('.exchange').checkVisibility()")
    assert "X-Api-Key: ***" in page.text()
    page.click("button[aria-label='Copy as cURL']")
    page.wait_for("getSelection().toString().startsWith('curl --globoff --request POST http://127.0.0.1:9/hook')")
    assert "--data-raw '{\"order\": 7}'" in page.evaluate("getSelection().toString()")


def test_filters_are_applied_and_removed_by_clicks_and_all_that_they_find_is_released(
    page: Page, live_server: Any
) -> None:
    wanted = factories.subscription(filter="$$->'Body'->'n' > '0'")
    broker.publish_bodies(wanted.event_type, *(b'{"n": 1e200000}' for _ in range(3)), b'{"n": 1}')
    rows = "document.querySelectorAll('#result_list .data-row').length"
    page.open(f"{live_server.url}/admin/delivery/delivery/")
    page.click("a[x-on\\:click='filterOpen = true']")
    page.click("#changelist-filter label", DeliveryStatus.HELD.label)
    page.click("#filter-form button[type=submit]")
    page.wait_for(f"location.search.includes('HELD') && {rows} === 3")
    assert page.evaluate("location.search") == "?status__exact=HELD"
    page.evaluate("""document.querySelector('[name=filter]').value = "$$->'Body'->'n' < '2'" """)
    page.evaluate("document.querySelector('#filter-form').requestSubmit()")
    page.wait_for("document.body?.innerText.includes('Nothing matches')")
    page.open(f"{live_server.url}/admin/delivery/delivery/?status__exact=HELD")
    page.click("a", "Act on all")
    page.click("button", "Release 3")
    page.wait_for("document.body?.innerText.includes('Released: 3 deliveries.')")
    page.click("ul[aria-label=Filters] a")
    page.wait_for(f"location.search === '' || location.search === '?' && {rows} === 4")
