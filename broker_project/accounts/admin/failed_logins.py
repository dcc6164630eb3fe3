"""Failed logins in the admin: who is locked out where, and how a superuser lets them try again."""

from django.contrib import admin
from django.http import HttpRequest, HttpResponse

from broker_project.accounts.login_throttle import MAX_PER_ADDRESS, MAX_PER_NAME, PAUSE
from broker_project.accounts.models import FailedLogin
from broker_project.core.admin.theme import ModelAdmin, display


@admin.register(FailedLogin)
class FailedLoginAdmin(ModelAdmin):
    """What counts of the last minutes; deleting it lets whoever it was try again."""

    list_display = ("username", "ip_address", "failures_since_start", "attempt_time", "free_at")
    list_before_template = "accounts/failed_logins.html"
    search_fields = ("username", "ip_address")
    ordering = ("-attempt_time",)
    list_display_links = None
    show_full_result_count = False

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, object] | None = None) -> HttpResponse:
        """Say over the list what is counted."""
        limits = {"of_a_name": MAX_PER_NAME, "of_an_address": MAX_PER_ADDRESS}
        return super().changelist_view(request, {**(extra_context or {}), **limits})

    def has_add_permission(self, request: HttpRequest) -> bool:  # noqa: ARG002 - Django's signature
        """Nobody adds one."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: FailedLogin | None = None) -> bool:  # noqa: ARG002
        """Nobody changes one."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: FailedLogin | None = None) -> bool:  # noqa: ARG002
        """Superusers let people try again."""
        return bool(request.user.is_superuser)

    @display(description="counts until")
    def free_at(self, failed: FailedLogin) -> object:
        """Return when it counts no more."""
        return failed.attempt_time + PAUSE
