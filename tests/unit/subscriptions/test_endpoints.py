"""Which URLs an endpoint and a monitor may have, however disguised what they name is."""

import pytest
from django.core.exceptions import ValidationError

from broker_project.core.egress import EgressPolicy, networks_in
from subscriptions.endpoints import check_reach, parse_endpoint, validate_endpoint, validate_monitor_url


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
    ],
)
def test_an_invalid_monitor_url_is_refused(url: str, says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        validate_monitor_url(url)


BROKEN = {
    "Write an IPv4 address as four decimal numbers": """
        http://0x7f.1/ http://0x7f000001/ http://2130706433/ http://017700000001/ http://0177.0.0.1/
        http://127.1/ http://127.0.0.1./ http://1.2.3.4.5/ http://256.1.1.1/ http://a.example.0X7F/
        http://127%2e0.0.1/
    """,
    "Leave the login out": """
        http://me:secret@a.example/ http://me@a.example/ http://@a.example/ http://127.0.0.1@a.example/
    """,
    "port from 1 to 65535": """
        http://a.example:0/ http://a.example:99999/ http://a.example:/ http://a.example:+80/
        http://a.example:80:90/ http://a.example:80a/
    """,
    "Leave the #fragment out": "http://a.example/#up",
    "Give an absolute": """
        /up http:///path http:a.example //a.example/ http://?a=b ftp://a.example/ file:///etc/passwd
        gopher://a.example/
    """,
    "Use a host name of letters": """
        http://:80/ http://my_host.example/ http://.a.example/ http://a..example/ http://-a.example/
        http://a.example../ http://a%00.example/
    """,
    "Remove the zone": "http://[fe80::1%25eth0]/ http://[fe80::1%eth0]/",
    "not a URL": "http://[::1/ http://::1]/",
    "port from 1": "http://::1/",
    "not a URL|not an IPv6 address|Write the host": "http://[]/ http://[127.0.0.1]/ http://[::1]a/ http://a[::1]/",
    "not an IPv6 address": "http://[v1.a]/",
}
"""URLs by what the error says of them."""
ODD = [
    ("http://a.example\\@b.example/", "Percent-encode"),
    ("http:\\\\a.example/", "Percent-encode"),
    ("http://a.example/\n", "Percent-encode"),
    ("http://a.example\n", "Percent-encode"),
    ("\nhttp://a.example/", "Percent-encode"),
    ("http://a.example/\x00", "Percent-encode"),
    ("http://a.ex\tample/", "Percent-encode"),
    ("http://b\u00fccher.example/", "ASCII form, xn--"),
    ("http://\u2460.example/", "ASCII form, xn--"),
    ("http://a.example/" + "a" * 2032, "at most 2048 characters, this one 2049"),
    ("http://" + "a" * 64 + ".example/", "Use a host name of letters"),
    ("http://" + "a." * 130 + "example/", "Use a host name of letters"),
]


@pytest.mark.behaviour("1.5")
@pytest.mark.parametrize(("url", "says"), [*((url, says) for says in BROKEN for url in BROKEN[says].split()), *ODD])
def test_invalid_and_disguised_urls_are_refused(url: str, says: str) -> None:
    for validate in (validate_endpoint, validate_monitor_url):
        with pytest.raises(ValidationError, match=says):
            validate(url)


@pytest.mark.behaviour("1.5")
@pytest.mark.parametrize(
    "url",
    [
        "http://a.example",
        "https://A.Example.:8443/x/?y=[z]&a@b:c",
        "https://xn--bcher-kva.example/",
        "http://3com.example/",
        "http://123.example/",
        "http://my-host/",
        "http://192.0.2.1:65535/",
        "http://[2001:db8::1]:80/",
        "HTTP://a.example/",
        "http://a.example/" + "a" * 2031,
    ],
)
def test_unusual_valid_urls_are_accepted(url: str) -> None:
    assert parse_endpoint(url).url == url


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://169.254.169.254/latest/meta-data/", "cloud metadata.*name that address itself"),
        ("PATCH:http://10.0.0.1/", "private network.*name its network"),
        ("http://[::ffff:127.0.0.1]/", "IPv4-mapped"),
        ("http://[::1]:8080/", "loopback"),
        ("http://[fe80::1]/", "link-local"),
        ("http://localhost/", "loopback"),
        ("http://LocalHost.:80/", "loopback"),
        ("http://a.localhost/", "loopback"),
    ],
)
def test_a_blocked_address_is_refused_when_saved(url: str, says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        check_reach(url, EgressPolicy())


@pytest.mark.parametrize("url", ["", "webr://here", "http://8.8.8.8/", "http://db.internal/", "POST:http://127.0.0.1/"])
def test_an_allowed_address_is_accepted(url: str) -> None:
    check_reach(url, EgressPolicy(networks_in("127.0.0.0/8")))
