"""The management API: who calls and what a key may do, and the views of what is configured.

Read `authentication` and `permissions`, then `resources` (what all records share) and one module per record. `urls` has
the addresses. Problems, JSON, pagination and views are in `broker_project.core.api`.
"""
