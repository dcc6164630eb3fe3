"""Trying whether what is suspended works again.

`probing` (by its own next delivery, or a request to its monitor URL).
"""
