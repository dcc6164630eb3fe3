"""Beat's schedules in the admin, in its theme."""

from typing import Any, ClassVar, Final

from celery.schedules import ParseException
from django import forms
from django.contrib import admin
from django.http import HttpRequest
from django_celery_beat import admin as beat
from django_celery_beat.models import ClockedSchedule, CrontabSchedule, IntervalSchedule, PeriodicTask, SolarSchedule

from broker_project.celery import app
from broker_project.core.admin.model_admin import ModelAdmin
from broker_project.core.admin.theme import UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget

admin.site.unregister([PeriodicTask, IntervalSchedule, CrontabSchedule, ClockedSchedule, SolarSchedule])


WHAT: Final = ("name", "task", "args", "kwargs", "queue", "expires", "expire_seconds")
"""What superusers change, who may run anything anyhow: which task an entry sends, and with what."""


class TaskSelect(UnfoldAdminSelectWidget, beat.TaskSelectWidget):  # type: ignore[misc]
    """A choice among the tasks there are."""


class PeriodicTaskForm(beat.PeriodicTaskForm):  # type: ignore[misc]
    """An entry as it is edited."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["regtask"].widget = TaskSelect()
        self.fields["task"].widget = UnfoldAdminTextInputWidget()


class CrontabForm(forms.ModelForm):  # type: ignore[type-arg]
    """Times that come, as Celery reads them."""

    class Meta:
        model = CrontabSchedule
        fields = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week", "timezone")
        help_texts = {"day_of_week": 'Days of the week; "*" for all, Sunday is 0, Monday is 1. (Example: "0,5")'}

    def clean(self) -> dict[str, Any]:
        """Refuse what beat could not send: a day that no such month has, or what only other crons understand."""
        fields: dict[str, Any] = super().clean() or {}
        crontab = CrontabSchedule(**fields)
        crontab.clean_fields()
        try:
            crontab.schedule  # noqa: B018 - reads them
        except (ValueError, ParseException) as why:
            raise forms.ValidationError(f"This would never run. {why}") from None
        return fields


@admin.register(PeriodicTask)
class ThemedPeriodicTaskAdmin(beat.PeriodicTaskAdmin, ModelAdmin):  # type: ignore[misc]
    """Which task is sent when. What the broker needs itself can be changed and switched off, not deleted.

    Who is no superuser changes when the broker's own are sent, and whether, and sends nothing else.
    """

    form = PeriodicTaskForm
    actions: ClassVar[tuple[str, ...]] = ()
    """Switched on and off on its page: the history says so then."""
    change_form_template = None
    date_hierarchy = None
    ordering = ("name",)
    list_display = ("name", "task", "enabled", "scheduler", "last_run_at", "total_run_count")
    list_filter = ("enabled", "task")
    readonly_fields = ("last_run_at", "total_run_count")
    fieldsets = (
        (None, {"fields": ("name", "regtask", "task", "enabled", "description")}),
        ("When", {"fields": ("interval", "crontab", "clocked", "start_time", "one_off", *readonly_fields)}),
        ("How", {"fields": ("args", "kwargs", "queue", "expires", "expire_seconds")}),
    )

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        """Return what can be done with several: not deleting, which the broker's own would refuse without a word."""
        actions: dict[str, Any] = super().get_actions(request)
        actions.pop("delete_selected", None)
        return actions

    def get_form(self, request: HttpRequest, obj: PeriodicTask | None = None, change: bool = False, **more: Any) -> Any:
        """Return the form, for others than superusers without what chooses the task."""
        own = {} if request.user.is_superuser else {"form": forms.ModelForm}
        return super().get_form(request, obj, change, **{**own, **more})

    def get_fieldsets(self, request: HttpRequest, obj: PeriodicTask | None = None) -> Any:
        """Return what is shown."""
        parts = super().get_fieldsets(request, obj)
        if request.user.is_superuser:
            return parts
        return [(title, {"fields": [name for name in part["fields"] if name != "regtask"]}) for title, part in parts]

    def get_readonly_fields(self, request: HttpRequest, obj: PeriodicTask | None = None) -> tuple[str, ...]:
        """Return what the user does not change."""
        fields = tuple(super().get_readonly_fields(request, obj))
        return fields if request.user.is_superuser else (*fields, *WHAT)

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Tell whether the user may have other tasks sent."""
        return request.user.is_superuser and super().has_add_permission(request)

    def has_change_permission(self, request: HttpRequest, obj: PeriodicTask | None = None) -> bool:
        """Tell whether the user may change it: an entry of somebody's own only superusers."""
        return super().has_change_permission(request, obj) and (request.user.is_superuser or _is_ours(obj))

    def has_delete_permission(self, request: HttpRequest, obj: PeriodicTask | None = None) -> bool:
        """Refuse to delete what beat would add again, as it was in the beginning."""
        may = request.user.is_superuser and super().has_delete_permission(request, obj)
        return may and not (obj and obj.name in app.conf.beat_schedule)


@admin.register(IntervalSchedule)
class ThemedIntervalScheduleAdmin(beat.IntervalScheduleAdmin, ModelAdmin):  # type: ignore[misc]
    """Every so often."""


@admin.register(CrontabSchedule)
class ThemedCrontabScheduleAdmin(beat.CrontabScheduleAdmin, ModelAdmin):  # type: ignore[misc]
    """At certain times of the day, the week or the year."""

    form = CrontabForm


@admin.register(ClockedSchedule)
class ThemedClockedScheduleAdmin(beat.ClockedScheduleAdmin, ModelAdmin):  # type: ignore[misc]
    """Once, at an instant."""


def _is_ours(entry: PeriodicTask | None) -> bool:
    """Tell whether an entry is one of the broker's own, or none is asked for."""
    return entry is None or entry.name in app.conf.beat_schedule
