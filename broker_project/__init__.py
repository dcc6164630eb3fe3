"""The Django project, and everything that knows no domain.

Read `environment` and `settings`, `urls` and `celery`, then `core` (database, encryption, egress, API and admin
machinery; below every app), `server` (the web server's entry), `accounts` (users of the admin site) and `stack` (what
`./broker` starts). `beat` is the scheduler, `checks` and `health` what is checked before and during operation,
`logging` what is redacted, `read_only_flower` Flower, `postgresql` the database engine, `admin` and
`navigation` the frame of the admin site.
"""

from broker_project.server.runtime import load_without_collecting

load_without_collecting()
