"""Prepare the database before the application starts: migrations, and a first login for the admin site.

Run as a module, with the application's environment; ADMIN_PASSWORD is the password of that first login. The last
line it prints says whether that login is good.
"""

import os

import django
from django.contrib.auth import get_user_model
from django.core.management import call_command

ADMIN = "admin"
GOOD_LOGIN = "the login is good"


def main() -> None:
    """Migrate; make a superuser if there is none yet."""
    django.setup()
    call_command("migrate", interactive=False, verbosity=1)
    users, password = get_user_model().objects, os.environ["ADMIN_PASSWORD"]
    if not users.filter(is_superuser=True).exists():
        users.create_superuser(ADMIN, password=password)
    admin = users.filter(username=ADMIN).first()
    print(GOOD_LOGIN if admin and admin.check_password(password) else "the login is another by now")


if __name__ == "__main__":
    main()
