"""Pages for all: axe-core finds nothing serious, a keyboard reaches their rows, and a telephone shows them whole."""

from importlib.resources import files
from typing import Any, Final

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from delivery.models import Delivery
from subscriptions.credentials.portal_links import issue_link
from subscriptions.credentials.scopes import Issuer, Scope
from tests.support import broker, factories
from tests.support.admin import one_of_each, page_addresses
from tests.support.chromium import Page

AXE: Final = files("axe_core_python").joinpath("axe.min.js").read_text()
PLAIN_COLOURS: Final = """
    (() => {
        const context = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
        const plain = (value) => {
            if (typeof value !== "string" || !/^(oklab|oklch|lab|lch|color)[(]/.test(value)) return value;
            context.clearRect(0, 0, 1, 1);
            context.fillStyle = value;
            context.fillRect(0, 0, 1, 1);
            const [red, green, blue, alpha] = context.getImageData(0, 0, 1, 1).data;
            return `rgba(${red}, ${green}, ${blue}, ${alpha / 255})`;
        };
        const read = window.getComputedStyle;
        window.getComputedStyle = (...asked) => new Proxy(read.apply(window, asked), {get: (style, name) =>
            typeof style[name] === "function" ? (...given) => plain(style[name](...given)) : plain(style[name])});
    })()
"""
"""Lets axe, which is older, read the colours of the theme."""
SERIOUS: Final = """
    axe.run(document, {runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"], resultTypes: ["violations"]}).then(
        ({violations}) => violations.filter(({impact}) => ["serious", "critical"].includes(impact)).map(
            ({id, nodes}) => [id, ...nodes.slice(0, 3).map(({html, failureSummary}) => [html, failureSummary])]))
"""


SHORT_SELECTION: Final = (
    "/admin/",
    "/subscription/set-up/",
    "/subscription/add/",
    "/delivery/delivery/",
    "/group/add/",
)
MAX_TABS: Final = 10


def problems(page: Page, address: str, *, width: int) -> dict[str, Any]:
    """Return what is wrong with a page, as far as a program can tell."""
    page.open(address)
    page.evaluate(PLAIN_COLOURS)
    page.evaluate(AXE)
    found = {
        "axe": page.evaluate(SERIOUS),
        "main parts": page.evaluate("document.querySelectorAll('main').length") - 1,
        "too wide by": page.evaluate("document.documentElement.scrollWidth") - width,
        "no row within ten Tabs": page.evaluate("!!document.querySelector('.data-row a')") and not reaches_row(page),
    }
    return {what: one for what, one in found.items() if one}


def reaches_row(page: Page) -> bool:
    """Tell whether the skip link and further Tabs lead to a row."""
    page.press("Tab", 9)
    page.press("Enter", 13, "\r")
    for _ in range(MAX_TABS - 1):
        page.press("Tab", 9)
        if page.evaluate("!!document.activeElement.closest('.data-row')"):
            return True
    return False


def addresses_of(selection: tuple[str, ...]) -> list[str]:
    """Return the addresses of pages that end so; other answers than pages are no part of it."""
    person = Client()
    person.force_login(User.objects.get())
    found = [address for address in page_addresses() if address.endswith(selection)]
    answers = {address: person.get(address) for address in found}
    return [
        address
        for address, answer in answers.items()
        if answer.status_code == 200 and answer["Content-Type"].startswith("text/html")
    ]


@pytest.mark.parametrize(("width", "is_dark"), [(1400, False), (390, True)])
@pytest.mark.parametrize(
    "selection", [SHORT_SELECTION, pytest.param(("",), marks=pytest.mark.lengthy)], ids=["some", "all"]
)
def test_everybody_can_use_the_pages(
    page: Page, live_server: Any, selection: tuple[str, ...], width: int, *, is_dark: bool
) -> None:
    one_of_each()
    broker.publish_numbered(factories.subscription(factories.subscriber("warehouse")).event_type, 3)
    page.resize(width, dark=is_dark)
    addresses = addresses_of(selection)
    found = {address: problems(page, live_server.url + address, width=width) for address in addresses}
    page.resize(1400)
    assert len(addresses) >= len(selection)
    assert {address: one for address, one in found.items() if one} == {}


@pytest.mark.parametrize("is_dark", [False, pytest.param(True, marks=pytest.mark.lengthy)])
def test_everybody_can_use_the_portal(page: Page, live_server: Any, *, is_dark: bool) -> None:
    wanted = factories.subscription(factories.subscriber("warehouse"))
    broker.publish_numbered(wanted.event_type, 3)
    _, link = issue_link(
        wanted.subscriber, now=timezone.now(), issuer=Issuer("ann"), scopes=[Scope.CONFIGURE, Scope.OPERATE]
    )
    visitor = Client(headers={"Sec-Fetch-Site": "same-origin"})
    assert visitor.post(f"/portal/open/{link}").status_code == 302
    page.set_cookie(live_server.url, settings.PORTAL_COOKIE_NAME, visitor.cookies[settings.PORTAL_COOKIE_NAME].value)
    page.resize(390, dark=is_dark)
    about = {"subscriptions": wanted.pk, "deliveries": Delivery.objects.latest("pk").pk}
    found = {
        path: problems(page, f"{live_server.url}/portal/{path}", width=390)
        for path in (
            *("", "deliveries", "replays", "subscriptions/new"),
            *(f"{records}/{pk}" for records, pk in about.items()),
            f"subscriptions/{wanted.pk}/filter",
        )
    }
    page.resize(1400)
    assert {path: one for path, one in found.items() if one} == {}
