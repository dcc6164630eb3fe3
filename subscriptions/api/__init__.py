"""The management API: keys and problems every API view uses, and the views of what is configured.

`authentication` (who calls), `permissions` and `scopes` (what a key opens), `parsing` and `rendering` (JSON in and
out), `problems` (RFC 9457), `preconditions` and `pagination`, then one module a resource, put together in `urls`.
"""
