"""Addresses that people type."""

import pytest
from django.test import Client


@pytest.mark.parametrize(
    ("short", "full"),
    [
        ("/", "/admin/"),
        ("/admin", "/admin/"),
        ("/api", "/api/docs/"),
        ("/api/", "/api/docs/"),
        ("/api/docs", "/api/docs/"),
    ],
)
def test_a_short_address_leads_to_the_full_one(short: str, full: str) -> None:
    answer = Client().get(short)
    assert (answer.status_code, answer["Location"]) == (302, full)


def test_browsers_that_ask_for_an_icon_get_none() -> None:
    assert Client().get("/favicon.ico").status_code == 204
