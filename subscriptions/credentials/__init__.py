"""API keys and signing secrets (contract 1.2).

`scopes` (what keys open, what may be passed on) · `tokens` (their texts and hashes) · `keys` (authenticate, issue,
rotate, revoke) · `signing_secrets` (rotate them).
"""
