"""People who log in, in browsers at addresses of their own."""

from functools import cache

from django.contrib.auth.hashers import make_password
from django.contrib.auth.models import User
from django.test import Client

from tests.clients import Answer

PASSWORD = "correct horse battery staple"
LOGIN = "/admin/login/"


@cache
def _hashed(password: str) -> str:
    """Hashing takes long, and its result is as good for the next person."""
    return make_password(password)


def person(name: str = "ann", **fields: bool) -> User:
    """Store somebody who may use the admin."""
    powers = {"is_staff": True, "is_superuser": True, **fields}
    return User.objects.create(username=name, password=_hashed(PASSWORD), **powers)


def browser(address: str = "198.51.100.1") -> Client:
    """Return a browser of somebody at an address, which is the one of the connection as the server sees it."""
    return Client(REMOTE_ADDR=address)


def log_in(client: Client, name: str = "ann", password: str = PASSWORD) -> Answer:
    return client.post(LOGIN, {"username": name, "password": password, "next": "/admin/"})
