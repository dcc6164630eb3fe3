"""Trying whether what is suspended works again.

`monitors` (asking a URL) · `probing` (that, or its own next delivery).
"""
