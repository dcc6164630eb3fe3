"""Every address of the broker."""

from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView
from drf_spectacular.views import SpectacularJSONAPIView, SpectacularSwaggerView, SpectacularYAMLAPIView

from broker_project.health import livez, readyz

urlpatterns = [
    path("", RedirectView.as_view(pattern_name="admin:index")),
    path("admin/", admin.site.urls),
    path("api/v1/", include("subscriptions.api.urls")),
    path("api/v1/", include("delivery.api.urls")),
    path("api/v1/openapi.json", SpectacularJSONAPIView.as_view(), name="openapi"),
    path("api/v1/openapi.yaml", SpectacularYAMLAPIView.as_view()),
    path("api/docs/", SpectacularSwaggerView.as_view(url_name="openapi")),
    path("livez", livez),
    path("readyz", readyz),
]

handler400 = "subscriptions.api.fallbacks.bad_request"
handler403 = "subscriptions.api.fallbacks.permission_denied"
handler404 = "subscriptions.api.fallbacks.not_found"
handler500 = "subscriptions.api.fallbacks.server_error"
