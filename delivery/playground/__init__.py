"""Try filters and scripts before they are saved (`trials`), endpoints with test events (`test_events`), and publishing
(`dry_run`).
"""
