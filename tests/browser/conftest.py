"""The admin site of a test's database in a browser, where a superuser is logged in."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import settings

from tests.support.api import client_of_admin
from tests.support.chromium import BINARY, Page, running_browser


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A browser, for all tests of this process."""
    if not BINARY:
        pytest.skip("Debian's package chromium is not installed")
    with running_browser(tmp_path_factory.mktemp("browser")) as page:
        yield page


@pytest.fixture
def page(browser: Page, live_server: Any) -> Page:
    """A browser in which a superuser is logged in at the test's site."""
    session = client_of_admin().cookies[settings.SESSION_COOKIE_NAME].value
    browser.set_cookie(live_server.url, settings.SESSION_COOKIE_NAME, session)
    return browser
