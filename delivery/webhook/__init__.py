"""The requests that endpoints get.

Read `parts` (content and destination), `content` and `destination` (loading them), `headers_policy`, `transform`
(scripts), then `request`. `redact` removes secrets from answers.
"""
