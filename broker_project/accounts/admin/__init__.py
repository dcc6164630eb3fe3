"""People in the admin: `users` (who may use it, and what groups may do), `failed_logins` (who is locked out)."""

from broker_project.accounts.admin import failed_logins, users

__all__ = ["failed_logins", "users"]
