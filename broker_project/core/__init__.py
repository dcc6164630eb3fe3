"""Machinery that knows no domain; every app imports it, and it imports none of them.

`db` (prepared statements), `encryption` (keyring and encrypted fields), `egress` (which addresses may be called),
`rate_limit` and `fair_share` (limits), `json`, `subprocesses`, then `api` and `admin` (shared by views and pages).
"""
