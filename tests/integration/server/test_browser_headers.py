"""Security headers of every address."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from django.core.handlers.wsgi import WSGIRequest
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

from broker_project.wsgi import application

pytestmark = pytest.mark.django_db

IDS = {"int": "1", "message_id": "1", "delivery_id": "1"}
SAMPLES = IDS | {"name": "nothing", "slug": "nothing", "path": "nothing", "str": "nothing"}
PARAMETER = re.compile(r"<(?:(\w+):)?\w+>")
EVERYWHERE = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
FRAMES_AND_FORMS = {
    "default-src 'none'",
    "object-src 'none'",
    "base-uri 'self'",
    "form-action 'self'",
    "frame-ancestors 'none'",
}
DOCUMENT = FRAMES_AND_FORMS | {"sandbox"}
PAGE = FRAMES_AND_FORMS | {"img-src 'self' data:", "font-src 'self'", "connect-src 'self'"}
DOCUMENTATION = PAGE | {"script-src 'self'", "style-src 'self'"}
ADMIN = PAGE | {"script-src 'self' 'unsafe-eval'", "style-src 'self' 'unsafe-inline'"}


def addresses(resolver: URLResolver | None = None, before: str = "/") -> Iterator[str]:
    """Yield one address of every route, with sample parameters."""
    for pattern in (resolver or get_resolver()).url_patterns:
        route = before + re.sub(r"\\Z|[$^?]|\(.*\)", "", str(pattern.pattern))
        if isinstance(pattern, URLPattern):
            yield PARAMETER.sub(lambda parameter: SAMPLES[parameter[1] or "str"], route)
        else:
            yield from addresses(pattern, route)


def policy(headers: Mapping[str, str]) -> set[str]:
    return {directive.strip() for directive in headers["Content-Security-Policy"].split(";")}


def security_headers(headers: Mapping[str, str]) -> dict[str, Any]:
    return {name: headers.get(name) for name in EVERYWHERE}


def test_every_address_has_its_content_security_policy(admin: Client, management: Client) -> None:
    walked = sorted(set(addresses()))
    assert len(walked) > 200
    for address in walked:
        if address.startswith("/portal/"):  # its own tests see to that
            continue
        answer = (admin if address.startswith("/admin/") else management).get(address)
        expected = ADMIN if address.startswith("/admin/") else DOCUMENT
        expected = DOCUMENTATION if address.startswith("/api/docs/") else expected
        assert (address, security_headers(answer.headers), policy(answer.headers)) == (address, EVERYWHERE, expected)
        assert "camera=()" in answer.headers["Permissions-Policy"]


@pytest.mark.parametrize(
    "address", ["/nowhere", "/api/nowhere", "/static/drf_spectacular_sidecar/swagger-ui-dist/swagger-ui.css"]
)
def test_static_files_and_missing_pages_have_the_strictest_policy(address: str) -> None:
    answer = Client().get(address)
    answer.close()
    assert (security_headers(answer.headers), policy(answer.headers)) == (EVERYWHERE, DOCUMENT)
    assert "Access-Control-Allow-Origin" not in answer.headers


def test_only_the_admin_site_has_the_relaxed_policy(client: Client) -> None:
    for address in ("/administrator", "/api/admin/", "/api/docs/../admin/", "/Admin/"):
        assert policy(client.get(address).headers) & {"script-src 'self' 'unsafe-eval'"} == set()


def test_admin_and_api_answers_are_not_stored(admin: Client, management: Client) -> None:
    for client, address in ((admin, "/admin/"), (admin, "/admin/nowhere/"), (management, "/api/v1/api-keys")):
        assert client.get(address).headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize("address", ["/api/v1/api-keys", "/api/docs/", "/api/nowhere"])
def test_web_server_skips_the_middleware_of_pages_for_the_api(management: Client, address: str) -> None:
    through_all = management.get(address)
    request = WSGIRequest(through_all.wsgi_request.environ)
    answer = application.get_response(request)
    assert (answer.status_code, answer.headers) == (through_all.status_code, through_all.headers)
    assert not hasattr(request, "session")


def test_documentation_loads_only_own_scripts_and_styles() -> None:
    page = Client().get("/api/docs/").content.decode()
    assert re.findall(r'(?:src|href)="(?!/static/)', page) == []
    assert re.findall(r"<script(?! src=)|<style|\son\w+=|javascript:", page) == []


def test_cookies_are_same_site_and_http_only(client: Client) -> None:
    cookie = Client().get("/admin/login/").cookies["broker_csrf"]
    assert (cookie["httponly"], cookie["samesite"], cookie["path"], cookie["domain"]) == (True, "Strict", "/", "")


@pytest.mark.parametrize(
    "address", ["/admin/login/", "/admin/logout/", "/admin/auth/group/add/", "/admin/second-factor/begin/"]
)
def test_forms_of_other_sites_are_refused(admin: Client, address: str) -> None:
    elsewhere = Client(enforce_csrf_checks=True)
    elsewhere.cookies = admin.cookies
    assert elsewhere.post(address, {"name": "all"}).status_code == 403
    assert elsewhere.get("/admin/").status_code == 200
