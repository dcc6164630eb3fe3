"""The configuration: event types, publishers, keys, subscribers and subscriptions; which subscriptions match a message.

Read `models`, then the rules that they use (`names`, `endpoints`, `headers`, `retry_policies`, `filters`, `schemas`),
`matching` with `lookup_keys` (who gets a message), `scripting` (scripts in processes of their own), `edit` (create,
change, delete), `credentials`, `import_export`, and the interfaces `api`, `admin` and `management`.
"""
