"""Tests without a database or a network, by package of the product."""
