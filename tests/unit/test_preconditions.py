"""`If-Match`."""

import pytest
from django.test import RequestFactory
from rest_framework.request import Request

from subscriptions.api.preconditions import expected_versions


@pytest.mark.parametrize(
    ("header", "versions"),
    [
        ('"7"', {7}),
        ('"7", "12"', {7, 12}),
        ("*", None),
        ('W/"7"', set()),
        ("7", set()),
        ('"seven"', set()),
        ('"\u0667"', set()),
        ("", set()),
        ('"-1"', set()),
    ],
)
def test_if_match_names_versions(header: str, versions: set[int] | None) -> None:
    request = Request(RequestFactory().get("/", headers={"If-Match": header}))
    assert expected_versions(request) == versions


def test_without_if_match_any_version_will_do() -> None:
    assert expected_versions(Request(RequestFactory().get("/"))) is None
