"""`./broker screenshots`: take the pictures of the documentation, with what the last `./broker demo` has left."""

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
HEIGHT: Final = 720
MAX_BYTES: Final = 150_000
"""Of a picture: they stay in the history of the repository."""
PAGES: Final = {
    "dashboard": "",
    "live-numbers": "analytics/run/live/",
    "set-up": "subscriptions/subscription/set-up/",
    "subscriber": "subscriptions/subscriber/{subscriber}/change/",
    "message": "delivery/message/{message}/change/",
    "delivery": "delivery/delivery/{delivery}/change/",
    "find": "delivery/deadletter/",
    "summaries": "analytics/run/summaries/",
}
"""Pages of the admin site, by the names of their pictures."""


def screenshots() -> int:
    """Run the demo's stack, and take a picture of each page; return 1 if that cannot be, or one is too large."""
    if not BINARY or not FOLDER.exists():
        say("install Debian's package chromium, and run ./broker demo first")
        return 1
    with (
        running_stack(FOLDER, say=say) as stack,
        tempfile.TemporaryDirectory() as profile,
        running_browser(Path(profile)) as page,
    ):
        page.resize(WIDTH, HEIGHT)
        site = f"{stack.web}/admin/"
        _log_in(page, site, stack.admin_login)
        about = _chosen(page, site, Management.of(stack))
        sizes = [_size_of_picture(page, site + path.format(**about), name) for name, path in PAGES.items()]
    return 1 if max(sizes) > MAX_BYTES else 0


def _size_of_picture(page: Page, address: str, name: str) -> int:
    """Take the picture of a page; return how many bytes it has."""
    page.open(address)
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


def _chosen(page: Page, site: str, api: Management) -> dict[str, str]:
    """Return the ids of a delivery that was retried, its message and its subscriber, which has a page of its own."""
    retried = next(one for one in api.every("deliveries", status="DELIVERED") if one["attempts"] > 1)
    page.open(f"{site}subscriptions/subscriber/?q={retried['subscriber']}")
    address = page.evaluate("document.querySelector('#result_list a[href*=\"/change/\"]').pathname")
    subscriber = address.split("/")[-3]
    return {"delivery": retried["id"], "message": retried["message_id"], "subscriber": subscriber}


if __name__ == "__main__":
    sys.exit(run_command(screenshots))
