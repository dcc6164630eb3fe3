"""What a replay or backfill is of, as it is told over the API: by the names and ids that it is asked for by."""

from collections.abc import Iterable
from typing import Any, Final

from rest_framework import serializers

from delivery.models import Replay
from subscriptions.models import EventType, Subscriber

NAMED: Final[dict[str, type[Subscriber] | type[EventType]]] = {"subscriber": Subscriber, "event_type": EventType}
"""What is stored as an id, and told as a name."""
TOLD: Final = "_told"
"""Where a replay keeps what is told of its selection, once that is known."""


class SelectionSerializer(serializers.Serializer[Any]):
    """Which deliveries, or of a backfill from when on."""

    subscriber = serializers.CharField(allow_null=True, help_text="Its name; null once it is deleted.")
    subscriptions = serializers.ListField(child=serializers.IntegerField(), help_text="Their ids.")
    statuses = serializers.ListField(child=serializers.CharField(), required=False)
    event_type = serializers.CharField(
        required=False, allow_null=True, help_text="Its name; null: of whatever type, or it is deleted."
    )
    to = serializers.DateTimeField(required=False, allow_null=True)
    since = serializers.DateTimeField(required=False, allow_null=True, help_text="Of a backfill.")

    def get_fields(self) -> dict[str, Any]:
        """Return the fields, with the one that Python would take for a word of its own."""
        return {**super().get_fields(), "from": serializers.DateTimeField(required=False, allow_null=True)}


def keep_told(replays: Iterable[Replay]) -> None:
    """Let replays know what is told of their selections: two queries for all of them."""
    chosen = [*replays]
    for replay in chosen:
        vars(replay)[TOLD] = {**replay.selection}
    for field, model in NAMED.items():
        asked = [vars(replay)[TOLD] for replay in chosen if field in replay.selection]
        ids = {told[field] for told in asked} - {None}
        names = dict(model._default_manager.filter(pk__in=ids).values_list("pk", "name"))  # noqa: SLF001 - documented
        for told in asked:
            told[field] = names.get(told[field])


def told_of(replay: Replay) -> dict[str, Any]:
    """Return its selection as it is told: as its list has read it, or read for it alone."""
    if TOLD not in vars(replay):
        keep_told([replay])
    told: dict[str, Any] = vars(replay)[TOLD]
    return told
