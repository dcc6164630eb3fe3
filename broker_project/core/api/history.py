"""Changes over the API in the history of the admin site, beside those of people.

Django's history wants a user: it is an inactive one, who can do nothing, and whose name no form accepts.
"""

import datetime as dt
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import structlog
from django.apps import apps
from django.contrib.admin.models import ADDITION, CHANGE, DELETION, LogEntry
from django.contrib.auth.models import User
from django.contrib.contenttypes.models import ContentType
from django.db import Error, transaction
from django.db.models import Model

from broker_project.core.api.fields import id_of

API_USER: Final = "(API)"
KEPT: Final = dt.timedelta(days=400)
"""As long as summaries are, by default; what people did is kept for good."""
ROOT: Final = "/api/v1/"
MAX_NAME: Final = 200
"""As the column has it."""

_NOTED: Final = re.compile(rf"(.*): ([A-Z]+ {ROOT}.*)", re.DOTALL)
"""Greedy: a key's label may be anything, the call is not."""

log = structlog.get_logger(__name__)


class Changed(NamedTuple):
    """A record that was created or changed, and which fields of it."""

    record: Model
    is_new: bool
    fields: Sequence[str]


def write_history(
    *, by: str, method: str, path: str, fields: Sequence[str], created: str, changed: Sequence[Changed] | None
) -> None:
    """Note a change that was made with the key `by`; one that cannot be noted is in the log only.

    `created` is the name or id of what it has created, if that is in the path of nothing else. `changed` are the
    records that it is about; None: the one that the path names.
    """
    try:
        with transaction.atomic():  # of its own: it must not undo a change that is in a transaction still
            user, _ = User.objects.get_or_create(username=API_USER, defaults={"is_active": False, "password": "!"})
            call = f"{by}: {method} {path}"
            about = [_in_path(method, path, created)] if changed is None else [*map(_about, changed)]
            named = [fields] if changed is None else [one.fields for one in changed]
            LogEntry.objects.bulk_create(
                LogEntry(user=user, change_message=call + (f": {', '.join(names)}" if names else ""), **columns)
                for columns, names in zip(about, named, strict=True)
            )
    except Error as failure:
        log.warning("api.change_not_in_history", path=path, reason=failure)


def author_and_call(message: str) -> tuple[str, str]:
    """Return the key, by prefix and label, and the call with the fields that a change over the API is noted with."""
    found = _NOTED.fullmatch(message)
    return (found[1], found[2]) if found else (message, "")


def _about(one: Changed) -> dict[str, Any]:
    """Return the columns that say what a change is about, for a record."""
    return {
        "content_type": ContentType.objects.get_for_model(one.record, for_concrete_model=False),
        "object_id": str(one.record.pk),
        "object_repr": str(one.record)[:MAX_NAME],
        "action_flag": ADDITION if one.is_new else CHANGE,
    }


def _in_path(method: str, path: str, created: str) -> dict[str, Any]:
    """Return the same for what an address is about."""
    kind, given = _kind_and_name(path, created)
    pk = _pk_of(kind, given) if kind else None
    is_one = kind and (pk is not None or method == "DELETE")
    return {
        "content_type": ContentType.objects.get_for_model(kind, for_concrete_model=False) if kind else None,
        "object_id": None if pk is None else str(pk),
        "object_repr": (given if is_one else "/".join(filter(None, (path.removeprefix(ROOT), created))))[:MAX_NAME],
        "action_flag": ADDITION if created else DELETION if method == "DELETE" else CHANGE,
    }


def _kind_and_name(path: str, created: str) -> tuple[type[Model] | None, str]:
    """Return the model that an address is about, None if it is about none, and the id or name in it."""
    listed, _, rest = path.removeprefix(ROOT).partition("?")[0].partition("/")
    singular = re.sub("ies$", "y", listed).removesuffix("s").replace("-", "")
    found = [model for model in apps.get_models() if model._meta.model_name == singular]  # noqa: SLF001 - documented
    return (found[0] if len(found) == 1 else None), rest.partition("/")[0] or created


def _pk_of(kind: type[Model], given: str) -> int | None:
    """Return the id of a record that an address names; None if it is gone."""
    if not hasattr(kind, "name"):
        return id_of(given.rpartition("_")[2])
    return kind._default_manager.filter(name=given).values_list("pk", flat=True).first()  # noqa: SLF001 - documented


def forget_old_changes(now: dt.datetime) -> None:
    """Delete changes over the API that are older than `KEPT`."""
    LogEntry.objects.filter(user__username=API_USER, action_time__lt=now - KEPT).delete()
