"""Who wants what: event types, publishers, keys, subscribers and their subscriptions; configuration only.

In the order in which a message meets them: `names`, `patterns`, `networks`, `reach` (where requests may go), `hosts`,
`endpoints`, `headers`, `filters`, `filter_terms`, `learned_paths`, `probes`, `verdicts`, `media_types`, `schemas`,
`samples`, `key_tokens`, `signing_secrets`, `keyring`, `json_equality`, `event_type_files`, `retry_terms`,
`retry_limits`, `outputs`, `rates` (rules) · `sealing` (the keyrings of the settings) · `models` · `database` (the
prepared cursor both apps use), `niceness`, `scripts` (in processes of their own) · `authenticating`, `throttling`,
`validating`, `candidates`, `matching`, `directing`, `configuring`, `rotating`, `resealing`, `removing`, `key_issuing`,
`exchanging`, `installing` (use cases) · `checks`, `api`, `admin`.
"""
