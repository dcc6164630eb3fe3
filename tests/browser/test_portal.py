"""What only a browser shows of the portal: a link that opens itself, once."""

from typing import Any

import pytest
from django.conf import settings
from django.utils import timezone

from subscriptions.credentials.portal_links import issue_link
from subscriptions.credentials.scopes import Issuer
from tests.support import factories
from tests.support.chromium import Page

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.behaviour("1.10")]


def link_of(name: str) -> str:
    return issue_link(factories.subscriber(name), now=timezone.now(), issuer=Issuer("ann"))[1]


def test_a_link_opens_itself_and_a_second_press_does_nothing(page: Page, live_server: Any) -> None:
    page.set_cookie(live_server.url, settings.PORTAL_COOKIE_NAME, "none")
    page.open(f"{live_server.url}/portal/theme.css")
    page.evaluate(f"void (location.href = '/portal/open/{link_of('warehouse')}')")
    page.wait_for("document.querySelector('header strong')?.innerText === 'warehouse'")
    page.open(f"{live_server.url}/portal/open/{link_of('somebody')}")
    assert "You are in the portal of warehouse." in page.text()
    assert page.evaluate("(one => { one.click(); return one.disabled; })(document.querySelector('#open button'))")
    page.wait_for("document.querySelector('header strong')?.innerText === 'somebody'")
