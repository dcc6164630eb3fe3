"""Which of a publisher's headers are kept, which are forwarded to endpoints, and which value wins (2.11)."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

from subscriptions.headers import OF_THE_CONNECTION

NEVER_KEPT: Final = OF_THE_CONNECTION | {"authorization", "callbackurl"}
"""The publisher's credentials, which include a callback's address, and headers of its connection."""

FORWARDED: Final = frozenset({"content-type", "traceparent"})
FORWARDED_PREFIXES: Final = ("ce-", "x-")
NOT_FORWARDED: Final = frozenset(
    {"x-anonymous-consumer", "x-host", "x-scheme", "x-true-client-ip", "x-url-scheme", "x-userinfo"}
)
NOT_FORWARDED_PREFIXES: Final = (
    # where a request comes from
    *("x-forwarded", "x-real-", "x-remote-", "x-client-ip", "x-cluster-client-ip", "x-originating-"),
    # what it asks for
    *("x-original-", "x-rewrite-", "x-http-method", "x-method-override", "x-script-name", "x-sendfile"),
    # who asks
    *("x-auth-request-", "x-authenticated-", "x-consumer-", "x-credential-", "x-token-", "x-webauth-", "x-ssl-"),
    # all that one product adds
    *("x-accel-", "x-amzn-oidc-", "x-arr-", "x-azure-", "x-envoy-", "x-goog-authenticated-user-", "x-goog-iap-"),
    "x-ms-client-principal",
)
"""Headers in which proxies pass on a request's origin, user and target: a publisher could forge them in the broker's
name. These are the known ones; there may be others."""

Header = tuple[str, str]


def kept(headers: Iterable[Header]) -> list[Header]:
    """Return the headers that are stored with the message and can be filtered on."""
    return [(name, value) for name, value in headers if name.lower() not in NEVER_KEPT]


@lru_cache(maxsize=1024)
def is_forwarded(name: str) -> bool:
    """Tell whether endpoints get a stored header of this name too."""
    lower = name.lower()
    plain = lower.replace("_", "-")  # behind CGI, WSGI and PHP an underscore is a hyphen
    is_of_a_proxy = plain in NOT_FORWARDED or plain.startswith(NOT_FORWARDED_PREFIXES)
    return lower in FORWARDED or (lower.startswith(FORWARDED_PREFIXES) and not is_of_a_proxy)


def merged(*layers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of all layers; of equal names, in any case, the later layer's wins."""
    by_name = {name.lower(): (name, value) for layer in layers for name, value in layer.items()}
    return dict(by_name.values())
