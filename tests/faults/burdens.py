"""Who bears what, where several may have caused it: any of them may, and nobody is blamed for more than must be."""

from collections import defaultdict
from collections.abc import Sequence


def least_burden(wanted: Sequence[Sequence[int]]) -> int:
    """Return how much the one must bear that bears most, where each thing goes to one of those that it names."""
    most, borne = min(1, len(wanted)), defaultdict[int, list[int]](list)
    for thing in range(len(wanted)):
        while not _finds_room(thing, wanted, borne, most, set()):
            most += 1
    return most


def _finds_room(
    thing: int, wanted: Sequence[Sequence[int]], borne: defaultdict[int, list[int]], most: int, full: set[int]
) -> bool:
    """Give a thing to one that it names, if need be by giving another thing of that one to somebody else."""
    for one in wanted[thing]:
        if one in full:
            continue
        full.add(one)
        if len(borne[one]) >= most:
            moved = next((other for other in borne[one] if _finds_room(other, wanted, borne, most, full)), None)
            if moved is None:
                continue
            borne[one].remove(moved)
        borne[one].append(thing)
        return True
    return False
