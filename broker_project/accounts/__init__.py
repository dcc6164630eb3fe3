"""Logins of the admin site; the user model is Django's.

Read `models` (second factors, failed logins), `login_throttle`, `mfa` (the second factor), `sessions`, then `views`,
`admin`, `roles` and `tasks` (what expires).
"""
