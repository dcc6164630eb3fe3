"""What can be read off a filter's tree."""

from collections.abc import Iterator

from subscriptions.filters.tree import All, Comparison, Constant, Node, Not, Path, Some, Term


def terms_of(node: Node) -> Iterator[Term]:
    """Yield the terms of a tree in the order of its text."""
    match node:
        case All(parts) | Some(parts):
            for part in parts:
                yield from terms_of(part)
        case Not(part):
            yield from terms_of(part)
        case _:
            yield node


def paths_of(term: Term) -> list[Path]:
    """Return the places a term looks at, in the order of its text."""
    sides = [term.left, term.right] if isinstance(term, Comparison) else [term.path]
    return [side for side in sides if isinstance(side, Path)]


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
