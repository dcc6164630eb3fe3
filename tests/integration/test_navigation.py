"""The admin's side bar."""

import pytest
from django.test import Client

from broker_project.navigation import GROUPS

pytestmark = pytest.mark.django_db


def test_every_page_in_the_side_bar_opens(admin: Client) -> None:
    links = [item["link"] for group in admin.get("/admin/").context["sidebar_navigation"] for item in group["items"]]
    assert len(links) == sum(map(len, GROUPS.values()))
    assert {link: admin.get(link).status_code for link in links} == dict.fromkeys(links, 200)
