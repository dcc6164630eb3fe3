"""In which form a subscription's messages are sent (contract 2.12)."""

from django.db.models import TextChoices


class PayloadFormat(TextChoices):
    """How what a publisher sent stands in a request."""

    AS_PUBLISHED = "AS_PUBLISHED"
    """As it came."""

    CLOUDEVENTS_BINARY = "CLOUDEVENTS_BINARY", "CloudEvents, binary"
    """The data is the body, the attributes are headers."""

    CLOUDEVENTS_STRUCTURED = "CLOUDEVENTS_STRUCTURED", "CloudEvents, structured"
    """Both are one JSON document."""
