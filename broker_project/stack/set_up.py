"""Set up the database before the application starts: migrations, and a first login for the admin site.

Run as a module in the application's environment, with the password of the first login in ADMIN_PASSWORD. The last line
of the output says whether that login is valid. With the exit status WRONG_SETTINGS it says what to set.
"""

import os
import sys

import django
import psycopg
import redis
from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.db import connection

from broker_project.core.database_server import unmet_requirements
from broker_project.redis_transport import CLUSTER, is_redis_cluster
from broker_project.stack.variables import ADMIN

VALID_LOGIN = "the login is valid"
WRONG_SETTINGS = 3


def main() -> None:
    """Migrate, and create a superuser if there is none."""
    django.setup()
    check_stores()
    call_command("migrate", interactive=False, verbosity=1)
    users, password = get_user_model().objects, os.environ["ADMIN_PASSWORD"]
    if not users.filter(is_superuser=True).exists():
        users.create_superuser(ADMIN, password=password)
    admin = users.filter(username=ADMIN).first()
    print(VALID_LOGIN if admin and admin.check_password(password) else "the login has been changed")


def check_stores() -> None:
    """Raise `ImproperlyConfigured` with the reason if PostgreSQL or Redis cannot be reached or used."""
    store = "database of DATABASE_URL"
    try:
        with psycopg.connect(**connection.get_connection_params()) as server:
            unmet = unmet_requirements(server)
        store = "Redis of REDIS_URL"
        is_cluster = is_redis_cluster(settings.REDIS_URL)
    except (psycopg.Error, redis.RedisError, ValueError) as problem:
        reason = " ".join(str(problem).split())
        raise ImproperlyConfigured(f"the {store} cannot be reached: {reason}") from problem
    for essential in (one for one in unmet if one.is_essential):
        raise ImproperlyConfigured(essential.otherwise)
    if is_cluster:
        raise ImproperlyConfigured(CLUSTER)


if __name__ == "__main__":
    try:
        main()
    except ImproperlyConfigured as problem:
        print(problem)
        sys.exit(WRONG_SETTINGS)
