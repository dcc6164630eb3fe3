"""Filters of lists: choosing an entry is all that it takes."""

from typing import Any

from tests.support import factories
from tests.support.chromium import Page


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
