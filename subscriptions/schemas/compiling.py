"""Validators as all of them are made: no network, no files, no backtracking, formats checked, values not shown."""

from typing import Any, Final

import jsonschema_rs

from subscriptions.schemas.limits import BrokenSchema

Validator = jsonschema_rs.Validator

TYPES: Final = ("array", "boolean", "integer", "null", "number", "object", "string")

_OPTIONS: Final[dict[str, Any]] = {
    "offline": True,
    "pattern_options": jsonschema_rs.RegexOptions(),
    "validate_formats": True,
    "mask": "this value",
}
"""`RegexOptions` is the engine without look-around and back references, linear in the text's length."""


def validator_of(schema: dict[str, Any]) -> Validator:
    """Return what tells whether a value satisfies `schema`; of draft 2020-12 unless `$schema` says another.

    Raises:
        BrokenSchema: it is not valid by its draft.

    """
    try:
        return jsonschema_rs.validator_for(schema, **_OPTIONS)
    except jsonschema_rs.ValidationError as broken:
        raise BrokenSchema(_said(broken), tuple(broken.instance_path)) from None
    except ValueError as broken:
        raise BrokenSchema(f"{broken}.") from None


def validators_of(schema: dict[str, Any]) -> jsonschema_rs.ValidatorMap:
    """Return a validator for each part of a schema that is valid, by its pointer as a URI fragment."""
    return jsonschema_rs.validator_map_for(schema, **_OPTIONS)


def _said(broken: jsonschema_rs.ValidationError) -> str:
    match broken.kind:
        case jsonschema_rs.ValidationErrorKind.Format("regex"):
            return f"{str(broken.instance)[:100]!r} is no pattern; look-around and back references are not served."
        case jsonschema_rs.ValidationErrorKind.AnyOf() if [*broken.instance_path][-1:] == ["type"]:
            return f"{str(broken.instance)[:100]!r} is no type; give one of {', '.join(TYPES)}, or a list of them."
        case jsonschema_rs.ValidationErrorKind.AnyOf():
            return f"{str(broken.instance)[:100]!r} is nothing that may stand here."
    return f"{broken.message[:300]}."
