"""The permissions to choose from: those of what has pages, by the names that code and documentation have for them."""

from typing import Any

from django.apps import apps
from django.contrib.admin import AdminSite
from django.contrib.auth.models import Permission
from django.contrib.contenttypes.models import ContentType
from django.db.models import QuerySet
from django.forms import ModelMultipleChoiceField
from django.http import HttpRequest

from broker_project.core.admin.theme import ModelAdmin


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
