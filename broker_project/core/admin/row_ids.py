"""Ids out of addresses and forms: what can be no row's id is answered like the id of none."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from django.contrib.admin import widgets
from django.core.exceptions import ValidationError
from django.db.models import Model
from django.http import Http404

Method = TypeVar("Method", bound=Callable[..., Any])


def could_be_of(model: type[Model], given: object) -> bool:
    """Tell whether a row of `model` could have this id."""
    try:
        model._meta.pk.to_python(given)  # noqa: SLF001 - documented by Django
    except ValidationError:
        return False
    return True


def of_existing(method: Method) -> Method:
    """Return an action that finds nothing (404) where its `object_id` is of no row."""

    @wraps(method)
    def checked(admin: Any, *args: Any, **named: Any) -> Any:
        if "object_id" in named and not _exists(admin.model, named["object_id"]):
            raise Http404
        return method(admin, *args, **named)

    return cast("Method", checked)


class KnownOnly(widgets.AutocompleteMixin):
    """Shows as chosen what there is of what was asked for; what else was given its form says."""

    def optgroups(self, name: str, value: Any, attr: Any = None) -> Any:
        """Return the options that are chosen."""
        model = self.field.remote_field.model
        known = [one for one in value if one in self.choices.field.empty_values or could_be_of(model, one)]
        return super().optgroups(name, known, attr)


class AutocompleteSelect(KnownOnly, widgets.AutocompleteSelect):
    """One row, found by what is typed."""


class AutocompleteSelectMultiple(KnownOnly, widgets.AutocompleteSelectMultiple):
    """Many of them."""


def _exists(model: type[Model], given: str) -> bool:
    rows = model._default_manager.all()  # noqa: SLF001 - documented by Django
    return could_be_of(model, given) and rows.filter(pk=given).exists()
