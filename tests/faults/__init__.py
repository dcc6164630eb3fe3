"""What no fault may break, shown with real processes under load.

In reading order: figures · load · the tests.
"""
