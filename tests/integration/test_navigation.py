"""The admin's side bar, and its looks."""

from contextlib import closing

import pytest
from django.test import Client

from broker_project.navigation import GROUPS

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
