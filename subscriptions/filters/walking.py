"""What can be read off a filter's tree."""

from collections.abc import Iterator

from subscriptions.filters.tree import All, Comparison, Constant, Node, Not, Path, Some


def terms_of(node: Node) -> Iterator[Node]:
    """Yield what AND and OR connect, in the order of the text; a NOT stays with a single term."""
    match node:
        case All(parts) | Some(parts):
            for part in parts:
                yield from terms_of(part)
        case Not(All() | Some() | Not() as part):
            yield from terms_of(part)
        case _:
            yield node


def paths_of(term: Node) -> list[Path]:
    """Return the places a term looks at, in the order of its text."""
    match term:
        case Comparison(left, _, right):
            return [side for side in (left, right) if isinstance(side, Path)]
        case Not(part):
            return paths_of(part)
        case All() | Some():
            return []
        case _:
            return [term.path]


def equality_of(node: Node) -> tuple[str, str] | None:
    """Return the first `path ->> = 'constant'` without which the filter cannot be true: path and constant, or None."""
    match node:
        case All(parts):
            return next((found for part in parts if (found := equality_of(part))), None)
        case Comparison(Path(as_text=True) as path, "=", Constant(text)) | Comparison(
            Constant(text), "=", Path(as_text=True) as path
        ):
            return str(path), text
    return None
