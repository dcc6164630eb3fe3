"""Fixtures of the tests of workers."""

from tests.support.side_operations import policies as policies
