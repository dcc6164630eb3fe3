"""The search for messages."""

from typing import Any

from delivery.models import Message
from tests.support import broker, factories
from tests.support.chromium import Page


def test_messages_are_found_by_their_body(page: Page, live_server: Any) -> None:
    broker.publish_numbered(factories.subscription().event_type, 5)
    page.open(f"{live_server.url}/admin/delivery/message/search/")
    page.evaluate("""document.querySelector('#search [name=filter]').value = "$$->'Body' < '2'" """)
    page.click("#search button", "Search")
    page.wait_for("document.body?.innerText.includes('2 messages')")
    rows = page.evaluate("[...document.querySelectorAll('#content section tbody tr a')].map(row => row.innerText)")
    assert rows == [str(pk) for pk in Message.objects.order_by("-pk").values_list("pk", flat=True)][3:]
