"""Prepare the database before the application starts: migrations, and a first login for the admin site.

Run as a module, with the application's environment; ADMIN_PASSWORD is the password of that first login.
"""

import os

import django
from django.contrib.auth import get_user_model
from django.core.management import call_command

ADMIN = "admin"


def main() -> None:
    """Migrate; make a superuser if there is none yet."""
    django.setup()
    call_command("migrate", interactive=False, verbosity=1)
    users = get_user_model().objects
    if not users.filter(is_superuser=True).exists():
        users.create_superuser(ADMIN, password=os.environ["ADMIN_PASSWORD"])
        print(f"made the login {ADMIN!r}")


if __name__ == "__main__":
    main()
