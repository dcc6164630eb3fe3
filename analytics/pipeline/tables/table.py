"""A table of the lake: its columns, as Spark writes them, and what is unique in it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Table:
    """One table of one layer."""

    layer: str
    name: str
    columns: str
    """A Spark DDL schema."""
    key: tuple[str, ...] = ()
    """What no two rows of a window (of a day, for a table made of whole days) have in common; none: not checked."""

    @property
    def path(self) -> str:
        """Where it is below the lake's root."""
        return f"{self.layer}/{self.name}"
