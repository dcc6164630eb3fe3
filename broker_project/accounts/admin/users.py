"""Django's own users and groups, in the admin's theme; only superusers say who may do what.

Nobody touches, by a password say, who may do more than they: that would be to become that person.
"""

from typing import Any, Final

from django.apps import apps
from django.contrib import admin, messages
from django.contrib.admin import AdminSite
from django.contrib.auth.admin import GroupAdmin, UserAdmin
from django.contrib.auth.models import Group, Permission, User
from django.contrib.contenttypes.models import ContentType
from django.db.models import Q, QuerySet
from django.forms import ModelMultipleChoiceField
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse

from broker_project.accounts import mfa
from broker_project.accounts.audit_log import note
from broker_project.accounts.models import second_factor_of
from broker_project.core.admin.theme import (
    ActionVariant,
    AdminPasswordChangeForm,
    ModelAdmin,
    UserChangeForm,
    UserCreationForm,
    action,
    after_dialog,
    dialog,
    display,
)

POWERS: Final = ("is_staff", "is_superuser", "groups", "user_permissions")
"""Whoever could give these could give them to themselves."""


class PermissionsField(ModelMultipleChoiceField):  # type: ignore[type-arg]  # no brackets at run time
    """A choice of permissions."""

    def label_from_instance(self, obj: Permission) -> str:
        """Return what a permission is called, and what it says."""
        return f"{obj.content_type.app_label}.{obj.codename}: {obj.name}"


class GivingAdmin(ModelAdmin):
    """Those whom permissions are given to."""

    def formfield_for_manytomany(self, db_field: Any, request: HttpRequest, **options: Any) -> Any:
        """Return the form's field for links to many."""
        if db_field.related_model is Permission:
            options |= {"queryset": _of_what_has_pages(self.admin_site), "form_class": PermissionsField}
        return super().formfield_for_manytomany(db_field, request, **options)


def _of_what_has_pages(site: AdminSite) -> "QuerySet[Permission]":
    shown = [model for model in apps.get_models() if site.is_registered(model)]
    kinds = ContentType.objects.get_for_models(*shown, for_concrete_models=False)
    return Permission.objects.filter(content_type__in=kinds.values()).select_related("content_type")


admin.site.unregister([User, Group])


@admin.register(User)
class ThemedUserAdmin(GivingAdmin, UserAdmin):  # type: ignore[misc, type-arg]  # their stubs differ
    """Who may use the admin; whoever leaves is made inactive, so that the history says what they did."""

    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm
    add_fieldsets = ((None, {"fields": ("username", "password1", "password2")}),)
    list_display = ("username", "email", "is_staff", "is_superuser", "has_second_factor", "last_login")
    list_select_related = ("second_factor",)
    actions_detail = ("reset_second_factor",)

    def get_readonly_fields(self, request: HttpRequest, obj: User | None = None) -> tuple[str, ...]:
        """Return what the user may see but not change: powers, unless they have them all."""
        given = tuple(super().get_readonly_fields(request, obj))
        return given if request.user.is_superuser else (*given, *POWERS)

    def has_change_permission(self, request: HttpRequest, obj: User | None = None) -> bool:
        """Tell whether the user may change this one, whose password and address are among it."""
        return super().has_change_permission(request, obj) and _may_touch(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: User | None = None) -> bool:  # noqa: ARG002
        """Keep all: with a person goes the history of what they did."""
        return False

    def has_reset_second_factor_permission(self, request: HttpRequest, _object_id: object = None) -> bool:
        """Tell whether the user may let others in without one: superusers."""
        return bool(request.user.is_superuser)

    def get_actions_detail(self, request: HttpRequest, object_id: int) -> list[Any]:
        """Offer to reset only what there is."""
        person = _with_factors().filter(pk=object_id).first()
        return super().get_actions_detail(request, object_id) if person and second_factor_of(person) else []

    @display(description="second factor", boolean=True)
    def has_second_factor(self, person: User) -> bool:
        """Return whether the person's login asks for a code."""
        return second_factor_of(person) is not None

    @action(
        description="Reset second factor",
        permissions=["reset_second_factor"],
        icon="phonelink_erase",
        variant=ActionVariant.DANGER,
        dialog=dialog(
            "Reset the second factor?",
            "From now on the password alone lets this person in. Make sure who asks for it, and that nobody else has "
            "the password: changing that ends every session.",
            "Reset",
        ),
    )
    def reset_second_factor(self, request: HttpRequest, _form: object, object_id: str) -> HttpResponse:
        """Take it away from somebody who has lost the telephone."""
        person = _with_factors().filter(pk=object_id).first()
        if person is None:
            raise Http404
        if mfa.remove(person):
            note(request, person, "Reset the second factor.")
            self.message_user(request, "Reset.", messages.SUCCESS)
        return after_dialog(request, reverse("admin:auth_user_change", args=[person.pk]))


@admin.register(Group)
class ThemedGroupAdmin(GivingAdmin, GroupAdmin):  # type: ignore[misc]
    """What groups of them may do."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Tell whether the user may make one, which is to say what people may do."""
        return bool(request.user.is_superuser) and super().has_add_permission(request)

    def has_change_permission(self, request: HttpRequest, obj: Group | None = None) -> bool:
        """Tell whether the user may change one."""
        return bool(request.user.is_superuser) and super().has_change_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Group | None = None) -> bool:
        """Tell whether the user may delete one."""
        return bool(request.user.is_superuser) and super().has_delete_permission(request, obj)


def _may_touch(request: HttpRequest, person: User | None) -> bool:
    if request.user.is_superuser or person is None:
        return True
    return not person.is_superuser and _permissions_of(person) <= _permissions_of(request.user)


def _permissions_of(person: Any) -> set[int]:
    """Return the permissions of somebody, also of one who is inactive and cannot use them now."""
    given = Permission.objects.filter(Q(user=person.pk) | Q(group__user=person.pk))
    return {*given.values_list("pk", flat=True)}


def _with_factors() -> "QuerySet[User]":
    return User.objects.select_related("second_factor")
