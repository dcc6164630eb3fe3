"""The form in which a subscription's messages are sent (contract 2.12)."""

from django.db.models import TextChoices


class PayloadFormat(TextChoices):
    """How a message is represented in a request."""

    AS_PUBLISHED = "AS_PUBLISHED"
    """Unchanged."""

    CLOUDEVENTS_BINARY = "CLOUDEVENTS_BINARY", "CloudEvents, binary"
    """The data is the body, the attributes are headers."""

    CLOUDEVENTS_STRUCTURED = "CLOUDEVENTS_STRUCTURED", "CloudEvents, structured"
    """Data and attributes are one JSON document."""
