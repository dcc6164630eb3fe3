"""What is asked before something is done: what it does is said, and so are what is lost and what each button does."""

from typing import Any

from delivery.models import Replay, ReplayKind
from subscriptions.models import Status, Subscription
from tests.support import broker, factories
from tests.support.chromium import Page

ACTIONS = "[...document.querySelectorAll('header a')]"


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
    page.wait_for("document.body.innerText.includes('In the last 24 hours that would have been 3 deliveries')")
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
