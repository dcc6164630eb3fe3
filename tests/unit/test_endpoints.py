"""Which URLs a monitor may have."""

import pytest
from django.core.exceptions import ValidationError

from subscriptions.endpoints import validate_monitor_url


@pytest.mark.behaviour("5.6")
@pytest.mark.parametrize("url", ["http://a.example/up", "https://a.example:8443/up?deep=yes", "http://[::1]/"])
def test_a_monitor_is_an_http_or_https_url(url: str) -> None:
    validate_monitor_url(url)


@pytest.mark.behaviour("5.6")
@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("GET:http://a.example/", "Leave the method out"),
        ("webr://script", "Give an absolute http"),
        ("ftp://a.example/", r"Give an absolute http:// or https:// URL\.'"),
        ("/up", "Give an absolute http"),
        ("http://me:secret@a.example/", "Leave the login out"),
        ("http://a.example/#up", "Leave the #fragment out"),
        ("http://a.example/a b", "Percent-encode"),
        ("http://a.example/" + "a" * 2048, "at most 2048"),
    ],
)
def test_what_cannot_be_asked_is_no_monitor(url: str, says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        validate_monitor_url(url)
