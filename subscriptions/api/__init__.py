"""The management API: who calls and what a key may do, and the views of what is configured.

Read `authentication` and `permissions`, then `resources` and the other records. `urls` has
the addresses. Problems, JSON, pagination and views are in `broker_project.core.api`.
"""
