"""All URLs of the broker."""

from django.contrib import admin
from django.http import HttpResponse
from django.urls import include, path
from django.views.generic import RedirectView, TemplateView

from broker_project.accounts.views import change_password
from broker_project.core.api.openapi import openapi_document, problems_page
from broker_project.health import livez, readyz
from broker_project.navigation import find

urlpatterns = [
    path("api/v1/", include("delivery.api.urls")),
    path("api/v1/", include("subscriptions.api.urls")),
    path("api/v1/", include("analytics.api.urls")),
    path("api/v1/openapi.json", openapi_document, {"form": "json"}, name="openapi"),
    path("api/v1/openapi.yaml", openapi_document, {"form": "yaml"}),
    path("api/docs/", TemplateView.as_view(template_name="broker_project/api_docs.html"), name="api-docs"),
    path("api/docs/problems", problems_page),
    path("portal/", include("broker_project.portal.urls")),
    path("", RedirectView.as_view(pattern_name="admin:index")),
    path("admin", RedirectView.as_view(pattern_name="admin:index")),
    path("admin/second-factor/", include("broker_project.accounts.urls")),
    path("admin/find/", admin.site.admin_view(find), name="find"),
    path("admin/password_change/", admin.site.admin_view(change_password)),
    path("admin/", admin.site.urls),
    *(path(short, RedirectView.as_view(pattern_name="api-docs")) for short in ("api", "api/", "api/docs")),
    path("favicon.ico", lambda _: HttpResponse(status=204)),  # browsers request an icon unasked
    path("livez", livez),
    path("readyz", readyz),
]

handler400 = "broker_project.accounts.views.bad_request"
handler403 = "broker_project.accounts.views.permission_denied"
handler404 = "broker_project.accounts.views.not_found"
handler500 = "broker_project.core.api.problems.server_error"
