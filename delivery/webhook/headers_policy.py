"""Which of a publisher's headers are kept, which go on to endpoints, and whose value wins (contract 2.11)."""

from collections.abc import Iterable, Mapping
from typing import Final

from subscriptions.headers import OF_THE_CONNECTION

NEVER_KEPT: Final = OF_THE_CONNECTION | {"authorization", "callbackurl"}
"""The publisher's own credentials, a callback's address being one, and what belongs to its connection."""

FORWARDED: Final = frozenset({"content-type", "traceparent"})
FORWARDED_PREFIXES: Final = ("ce-", "x-")
NOT_FORWARDED: Final = frozenset(
    {
        "x-anonymous-consumer",
        "x-host",
        "x-scheme",
        "x-true-client-ip",
        "x-url-scheme",
        "x-userinfo",
    }
)
NOT_FORWARDED_PREFIXES: Final = (
    "x-forwarded",
    "x-real-",
    "x-remote-",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-original-",
    "x-originating-",
    "x-rewrite-",
    "x-http-method",
    "x-method-override",
    "x-accel-",
    "x-sendfile",
    "x-envoy-",
    "x-amzn-oidc-",
    "x-goog-authenticated-user-",
    "x-goog-iap-",
    "x-ms-client-principal",
    "x-arr-",
    "x-auth-request-",
    "x-authenticated-",
    "x-azure-",
    "x-consumer-",
    "x-credential-",
    "x-token-",
    "x-webauth-",
    "x-ssl-",
    "x-script-name",
)
"""What the subscriber's own proxies say, and are told, about a request: where it came from, who asks, what is meant by
it. A publisher would speak to them in the broker's name. Of those in use; nobody knows them all."""

Header = tuple[str, str]


def kept(headers: Iterable[Header]) -> list[Header]:
    """Return the headers that are stored with the message and can be filtered on."""
    return [(name, value) for name, value in headers if name.lower() not in NEVER_KEPT]


def forwarded(headers: Iterable[Header]) -> list[Header]:
    """Return the stored headers that endpoints get too."""
    return [(name, value) for name, value in headers if _goes_on(name.lower())]


def _goes_on(name: str) -> bool:
    # Behind CGI, WSGI and PHP an underscore is a hyphen.
    plain = name.replace("_", "-")
    is_of_a_proxy = plain in NOT_FORWARDED or plain.startswith(NOT_FORWARDED_PREFIXES)
    return name in FORWARDED or (name.startswith(FORWARDED_PREFIXES) and not is_of_a_proxy)


def merged(*layers: Mapping[str, str]) -> dict[str, str]:
    """Return all headers of the layers; of equal names, in whatever case, the later layer's wins."""
    by_name = {name.lower(): (name, value) for layer in layers for name, value in layer.items()}
    return dict(by_name.values())
