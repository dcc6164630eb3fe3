"""Which records a key can see (behaviour 1.2); whatever it cannot see does not exist for it."""

from django.db.models import QuerySet

from delivery.models import Delivery
from subscriptions.models import ApiKey, KeyKind


def deliveries_for(key: ApiKey) -> QuerySet[Delivery]:
    """Return what the key can see: management all, a subscriber its own."""
    deliveries = Delivery.objects.select_related("subscription__subscriber", "line")
    return (
        deliveries if key.kind == KeyKind.MANAGEMENT else deliveries.filter(subscription__subscriber=key.subscriber_id)
    )
