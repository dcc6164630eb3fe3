"""`/livez` and `/readyz`."""

import pytest
from django.db import connection
from django.test import Client, override_settings


def test_a_living_process_says_so_without_a_database() -> None:
    answer = Client().get("/livez")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


@pytest.mark.django_db
def test_a_process_with_a_migrated_database_is_ready() -> None:
    answer = Client().get("/readyz")
    assert (answer.status_code, answer.json()) == (
        200,
        {"status": "ok", "database": "ok", "migrations": "ok", "redis": "ok"},
    )


@pytest.mark.django_db
@override_settings(REDIS_URL="redis://127.0.0.1:9/0")
def test_redis_away_is_told_but_does_no_harm() -> None:
    answer = Client().get("/readyz")
    assert (answer.status_code, answer.json()["redis"]) == (200, "does not answer")


@pytest.mark.django_db
def test_a_missing_migration_makes_it_unready() -> None:
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM django_migrations WHERE app = 'sessions'")
    answer = Client().get("/readyz")
    assert (answer.status_code, answer.json()["migrations"]) == (503, "1 not applied")


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
def test_health_is_only_read(path: str) -> None:
    assert Client().post(path).status_code == 405
