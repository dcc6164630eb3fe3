"""Who wants what: event types, publishers, keys, subscribers and their subscriptions; configuration only.

In the order in which a message meets them: `names`, `endpoints`, `headers`, `signing_secrets` (rules) · `models` ·
`database` (the prepared cursor both apps use) · `matching` · `api`, `admin`.
"""
