"""Summaries of what happened: Spark reads what is finished, keeps it as a lake, and loads what the admin shows.

Spark's executors import this package, where there is no Django: nothing is imported here.
"""
