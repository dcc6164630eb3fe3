"""Configuration in the admin: `ids` (those that nothing has), `theme` (all that comes from unfold), `configured` (what
all have in common), `showing_once` (secrets), then one module a model.
"""

from subscriptions.admin import api_keys, event_types, publishers, subscribers, subscriptions

__all__ = ["api_keys", "event_types", "publishers", "subscribers", "subscriptions"]
