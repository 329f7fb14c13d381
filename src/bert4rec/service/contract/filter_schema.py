"""`where` in a request. What it asks for is checked by the model, which knows the attributes; here it is bounded."""

from typing import Annotated, Any

from pydantic import AfterValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

MAX_VALUES = 1000


def _bounded(where: dict[str, Any]) -> dict[str, Any]:
    if _size(where) > MAX_VALUES:
        raise PydanticCustomError("too_long", f"must hold at most {MAX_VALUES:,} values")
    return where


def _size(value: Any) -> int:
    """How many values there are, at any depth that means something."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 1 if inside is None else sum(map(_size, inside))


_VALUE = {"type": ["string", "number", "boolean"]}
_VALUES = {"anyOf": [_VALUE, {"type": "array", "items": _VALUE}]}
Where = Annotated[
    dict[str, Any],
    AfterValidator(_bounded),
    WithJsonSchema(
        {
            "type": "object",
            "description": "By attribute, all of which must hold: a value, a list of alternatives, or comparisons. "
            "Which attributes there are depends on the model.",
            "examples": [{"category": ["tea"], "price": {"<": 20}}],
            "additionalProperties": {
                "anyOf": [
                    *_VALUES["anyOf"],
                    {
                        "type": "object",
                        "properties": {**dict.fromkeys(("<", "<=", ">", ">="), _VALUE), "not": _VALUES},
                        "additionalProperties": False,
                        "minProperties": 1,
                    },
                ]
            },
        }
    ),
]
