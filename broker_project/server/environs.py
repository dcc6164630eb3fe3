"""WSGI's variables of a request, out of what RSGI says of it."""

import io
import sys
from collections.abc import Iterable
from typing import Any, Final

from django.conf import settings

from broker_project.server.proxies import origin_of
from broker_project.server.request_head import Headers

FILTER_STRING: Final = "filter_string"
"""The only name with an underscore that says anything."""
AMBIGUOUS: Final = "broker.ambiguous_headers"
"""The WSGI variables for which two header names with different values were sent."""


def environ_of(scope: Any, headers: Headers, body: bytes) -> dict[str, Any]:
    """Return the variables of a request whose body has been read."""
    server_name, _, server_port = scope.server.rpartition(":")
    # Under these very names: with underscores no proxy overwrites them.
    said_for, said_scheme = (",".join(scope.headers.get_all(name)) for name in ("x-forwarded-for", "x-forwarded-proto"))
    origin = origin_of(scope.client, scope.scheme, said_for, said_scheme, settings.PROXIES)
    environ: dict[str, Any] = {
        "REQUEST_METHOD": scope.method,
        "SCRIPT_NAME": "",
        "PATH_INFO": scope.path.encode().decode("latin-1"),
        "QUERY_STRING": scope.query_string,
        "SERVER_NAME": server_name,
        "SERVER_PORT": server_port,
        "SERVER_PROTOCOL": f"HTTP/{scope.http_version}",
        "REMOTE_ADDR": origin.address,
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": origin.scheme,
        "wsgi.input": io.BytesIO(body),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
        AMBIGUOUS: set(),
    }
    _add_headers(environ, headers)
    environ["CONTENT_TYPE"] = environ.pop("HTTP_CONTENT_TYPE", "")
    environ.pop("HTTP_CONTENT_LENGTH", None)
    environ["CONTENT_LENGTH"] = str(len(body))
    return environ


def _add_headers(environ: dict[str, Any], headers: Iterable[tuple[str, str]]) -> None:
    """Join headers sent twice under one name; note where two names with different values share a variable.

    Names with underscores are left out, as most proxies do: in WSGI they would be those with hyphens.
    """
    sent_as: dict[str, str] = {}
    for name, value in headers:
        if "_" in name and name != FILTER_STRING:
            continue
        variable = "HTTP_" + name.upper().replace("-", "_")
        if sent_as.setdefault(variable, name) == name:
            joint = "; " if name == "cookie" else ","
            environ[variable] = f"{environ[variable]}{joint}{value}" if variable in environ else value
        elif environ[variable] != value:
            environ[AMBIGUOUS].add(variable)
