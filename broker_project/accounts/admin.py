"""Users, groups and failed logins in the admin; only superusers assign permissions.

Nobody changes a user who may do more than they, for example by a new password: that would be to become that user.
"""

from typing import Any, Final, cast

from django.apps import apps
from django.contrib import admin, messages
from django.contrib.auth.admin import GroupAdmin, UserAdmin
from django.contrib.auth.models import Group, Permission, User
from django.contrib.contenttypes.models import ContentType
from django.db.models import Q
from django.forms import ModelMultipleChoiceField
from django.http import HttpRequest, HttpResponse

from broker_project.accounts import mfa
from broker_project.accounts.login_throttle import MAX_PER_ADDRESS, MAX_PER_NAME, PAUSE
from broker_project.accounts.models import FailedLogin, second_factor_of
from broker_project.core.admin.model_admin import (
    ModelAdmin,
    action,
    after_dialog,
    column,
    dialog,
    never,
    superusers_only,
)
from broker_project.core.admin.theme import ActionVariant, AdminPasswordChangeForm, UserChangeForm, UserCreationForm

POWERS: Final = ("is_staff", "is_superuser", "groups", "user_permissions")
"""The fields that only superusers change: anyone else could give them to themselves."""


class PermissionsField(ModelMultipleChoiceField):  # type: ignore[type-arg]  # no brackets at run time
    """A choice of permissions."""

    def label_from_instance(self, obj: Permission) -> str:
        """Return a permission's name and description."""
        return f"{obj.content_type.app_label}.{obj.codename}: {obj.name}"


class GivingAdmin(ModelAdmin):
    """Users and groups, to which permissions are given; offered are those of models with pages."""

    def formfield_for_manytomany(self, db_field: Any, request: HttpRequest, **options: Any) -> Any:
        """Return the form's field for links to many."""
        if db_field.related_model is Permission:
            shown = [model for model in apps.get_models() if self.admin_site.is_registered(model)]
            kinds = ContentType.objects.get_for_models(*shown, for_concrete_models=False)
            offered = Permission.objects.filter(content_type__in=kinds.values()).select_related("content_type")
            options |= {"queryset": offered, "form_class": PermissionsField}
        return super().formfield_for_manytomany(db_field, request, **options)


admin.site.unregister([User, Group])


@admin.register(User)
class ThemedUserAdmin(GivingAdmin, UserAdmin):  # type: ignore[misc, type-arg]  # their stubs differ
    """Users of the admin; those who leave are made inactive, so that the history still shows what they did."""

    when_empty = "No user. Create one with manage.py createsuperuser."
    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm
    add_fieldsets = ((None, {"fields": ("username", "password1", "password2")}),)
    list_display = ("username", "email", "is_staff", "is_superuser", "has_second_factor", "last_login")
    list_select_related = ("second_factor",)
    actions_detail = ("reset_second_factor",)

    def get_readonly_fields(self, request: HttpRequest, obj: User | None = None) -> tuple[str, ...]:
        """Return what the user may see but not change."""
        given = tuple(super().get_readonly_fields(request, obj))
        return given if request.user.is_superuser else (*given, *POWERS)

    def has_change_permission(self, request: HttpRequest, obj: User | None = None) -> bool:
        """Tell whether the user may change this person, password included: one who may do no more than they."""
        if not super().has_change_permission(request, obj):
            return False
        if request.user.is_superuser or obj is None:
            return True
        return not obj.is_superuser and _permissions_of(obj) <= _permissions_of(request.user)

    has_delete_permission = never
    """The history of what somebody did would be deleted along."""
    has_reset_second_factor_permission = superusers_only
    has_second_factor = column("second factor", lambda person: second_factor_of(person) is not None, boolean=True)

    @action(
        description="Reset second factor",
        permissions=["reset_second_factor"],
        icon="phonelink_erase",
        variant=ActionVariant.DANGER,
        dialog=dialog(
            "Reset the second factor?",
            "From now on the password alone lets this person in. Verify who is asking, and that nobody else has the "
            "password: changing the password ends every session.",
            "Reset second factor",
            variant=ActionVariant.DANGER,
        ),
        offered=second_factor_of,
    )
    def reset_second_factor(self, request: HttpRequest, _form: object, object_id: str) -> HttpResponse:
        """Remove the second factor of somebody who has lost the phone."""
        person = User.objects.get(pk=object_id)  # `action` has answered 404 for an unknown id
        if mfa.remove(person):
            mfa.write_history(person, "Reset the second factor.", by=cast("int", request.user.pk))
            self.message_user(request, "The second factor is reset.", messages.SUCCESS)
        return after_dialog(request, self.change_url(person.pk))


def _permissions_of(person: Any) -> set[int]:
    """Return the permissions of a user, also of an inactive one who cannot use them now."""
    given = Permission.objects.filter(Q(user=person.pk) | Q(group__user=person.pk))
    return {*given.values_list("pk", flat=True)}


@admin.register(Group)
class ThemedGroupAdmin(GivingAdmin, GroupAdmin):  # type: ignore[misc]
    """Groups; only superusers change what they may do."""

    when_empty = "No group. Run the migrations again, which install three roles; or create one of your own."
    has_add_permission = has_change_permission = has_delete_permission = superusers_only


@admin.register(FailedLogin)
class FailedLoginAdmin(ModelAdmin):
    """Failed logins of the last minutes; superusers delete them to let somebody try again."""

    when_empty = "Nobody has failed to log in lately. There is nothing to do."
    list_display = ("username", "ip_address", "failures_since_start", "attempt_time", "locked_until")
    list_before_template = "accounts/failed_logins.html"
    search_fields = ("username", "ip_address")
    ordering = ("-attempt_time",)
    list_display_links = None
    show_full_result_count = False

    has_add_permission = has_change_permission = never
    has_delete_permission = superusers_only
    locked_until = column("locked until", lambda failed: failed.attempt_time + PAUSE)

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, object] | None = None) -> HttpResponse:
        """Show the list, and above it what is counted."""
        limits = {"max_per_name": MAX_PER_NAME, "max_per_address": MAX_PER_ADDRESS}
        return super().changelist_view(request, {**(extra_context or {}), **limits})
