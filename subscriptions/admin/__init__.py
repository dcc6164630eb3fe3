"""Configuration pages: `configured` is the base of all, `show_once` of those with secrets; then the models' modules."""

from subscriptions.admin import api_keys, event_types, publishers, subscriptions

__all__ = ["api_keys", "event_types", "publishers", "subscriptions"]
