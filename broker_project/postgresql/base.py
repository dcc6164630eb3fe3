"""The engine of `DATABASES`, where Django looks for it."""

from broker_project.core.db import DatabaseWrapper

__all__ = ["DatabaseWrapper"]
