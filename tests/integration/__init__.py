"""Tests on a real PostgreSQL and Redis, with a real receiver, by package of the product."""
