"""`./broker screenshots`: take the pictures of the documentation, with what the last `./broker demo` has left."""

import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Final

from broker_project.stack.bootstrap import say
from broker_project.stack.demo.demo import FOLDER
from broker_project.stack.folders import ROOT
from broker_project.stack.load.management_client import Management
from broker_project.stack.running_stack import running_stack
from broker_project.stack.up import run_command
from tests.support.chromium import BINARY, Page, running_browser

IMAGES: Final = ROOT / "docs" / "images"
WIDTH: Final = 1280
HEIGHT: Final = 680
AUDIT: Final = "audit"
"""The subscriber of the demo that rejects some events: its pages have something to tell."""
MAX_BYTES: Final = 150_000
"""Of a picture: they stay in the history of the repository."""
PAGES: Final = {
    "dashboard": "",
    "live-numbers": "analytics/run/live/",
    "set-up": "subscriptions/subscription/set-up/",
    "subscriber": "subscriptions/subscriber/{subscriber}/overview/",
    "message": "delivery/message/{message}/change/",
    "delivery": "delivery/delivery/{delivery}/change/",
    "dead-letters": "delivery/deadletter/",
}
"""Pages of the admin site, by the names of their pictures."""


def screenshots() -> int:
    """Run the demo's stack, and take a picture of each page; return 1 if that cannot be, or one is too large."""
    if not BINARY or not FOLDER.exists():
        say("install Debian's package chromium, and run ./broker demo first")
        return 1
    with (
        running_stack(FOLDER, say=say) as stack,
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
        running_browser(Path(profile)) as page,
    ):
        page.resize(WIDTH, HEIGHT)
        site = f"{stack.web}/admin/"
        _log_in(page, site, stack.admin_login)
        api = Management.of(stack)
        retried = next(one for one in api.every("deliveries", status="DELIVERED") if one["attempts"] > 1)
        about = {"delivery": retried["id"], "message": retried["message_id"]}
        about["subscriber"] = _subscriber_id(page, site, AUDIT)
        sizes = []
        for name, path in PAGES.items():
            page.open(site + path.format(**about))
            sizes.append(_size_of_picture(page, name))
        _open_portal(page, api, AUDIT)
        sizes.append(_size_of_picture(page, "portal"))
    return 1 if max(sizes) > MAX_BYTES else 0


def _size_of_picture(page: Page, name: str) -> int:
    """Take the picture of the page that is open; return how many bytes it has."""
    page.wait_for("document.fonts.status === 'loaded'")
    picture = IMAGES / f"{name}.png"
    page.screenshot(picture)
    size = picture.stat().st_size
    say(f"{picture.relative_to(ROOT)}: {size // 1000} kB{', too large' if size > MAX_BYTES else ''}")
    return size


def _log_in(page: Page, site: str, login: str) -> None:
    """Log in as the demo's administrator."""
    page.open(f"{site}login/?next=/admin/")
    for field, value in zip(("username", "password"), login.split(":", 1), strict=True):
        page.evaluate(f"document.querySelector('[name={field}]').focus()")
        page.type(value)
    page.click("button[type=submit]")
    page.wait_for(f"location.href === '{site}'")


def _subscriber_id(page: Page, site: str, name: str) -> str:
    """Return the id of a subscriber, which only the addresses of its pages have."""
    page.open(f"{site}subscriptions/subscriber/?q={name}")
    address = page.evaluate("document.querySelector('#result_list a[href*=\"/subscriber/\"]').pathname")
    return str(re.findall(r"[0-9]+", address)[0])


def _open_portal(page: Page, api: Management, subscriber: str) -> None:
    """Open the portal of a subscriber, as a link does, and wait for its first page."""
    link = api.create(f"subscribers/{subscriber}/portal-links", scopes=["configure", "operate"])
    page.evaluate(f"location.assign({json.dumps(link['url'])})")
    page.wait_for("location.pathname === '/portal/' && document.readyState === 'complete'")


if __name__ == "__main__":
    sys.exit(run_command(screenshots))
