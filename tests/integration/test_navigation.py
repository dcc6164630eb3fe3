"""The admin's side bar, and its looks."""

from contextlib import closing

import pytest
from django.test import Client

from broker_project.navigation import GROUPS
from tests.admin_walk import person

pytestmark = pytest.mark.django_db


def test_every_page_in_the_side_bar_opens(admin: Client) -> None:
    links = [item["link"] for group in admin.get("/admin/").context["sidebar_navigation"] for item in group["items"]]
    assert len(links) == sum(map(len, GROUPS.values()))
    assert {link: admin.get(link).status_code for link in links} == dict.fromkeys(links, 200)


def test_pages_have_the_styles_that_the_theme_lacks(admin: Client) -> None:
    styles = "/static/broker_project/admin.css"
    assert f'<link href="{styles}" rel="stylesheet">' in admin.get("/admin/").text
    with closing(admin.get(styles)) as answer:
        assert (answer.status_code, answer["Content-Type"]) == (200, 'text/css; charset="utf-8"')


@pytest.mark.parametrize("permissions", [(), ("subscriptions.view_subscriber",)], ids=["none", "to look"])
def test_a_refusal_says_so_and_whom_to_ask_and_leads_back(permissions: tuple[str, ...]) -> None:
    refused = person(*permissions).get("/admin/subscriptions/subscriber/add/")
    assert (refused.status_code, refused["Cache-Control"]) == (403, "no-store")
    for told in (
        "You have not the permission to do this",
        "Nothing has been changed.",
        "ask one for what you need",
        'href="/admin/"',
    ):
        assert told in refused.text
