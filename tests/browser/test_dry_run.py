"""The dry run: who would get an event, asked from its event type's page."""

from typing import Any

from delivery.models import Message
from tests.support import factories
from tests.support.chromium import Page


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
    assert ["warehouse" in rows[0], "RECEIVES" in rows[0], "There is no filter." in rows[0]] == [True] * 3
    assert ["billing" in rows[1], "FILTER" in rows[1], "open" in rows[1], "'paid'" in rows[1]] == [True] * 4
    assert len(rows) == 2
    assert not Message.objects.exists()
