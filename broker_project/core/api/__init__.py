"""Plumbing of the API that knows no domain.

Read `problems` (exceptions become answers), `bodies` (bytes and JSON), `fields` (serializers that never coerce),
`pagination` (lists and their filters), `records` (what views declare), `openapi` (what documents them), `examples`.
"""
