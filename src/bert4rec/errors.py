"""The errors a user can act on.

    Bert4RecError
    ├── UsageError      wrong or contradictory parameters         exit code 2
    ├── DataError       the data is not what it should be         exit code 3
    └── NotFoundError   a file, folder or id does not exist       exit code 4

Each message says what is wrong, where, what was expected and what to do. Parameters are written in
backticks; the command line prints them as options. Any other exception is a bug of ours.
"""

from collections.abc import Iterable


class Bert4RecError(Exception):
    """An error that the user can correct; the message says how."""

    exit_code = 1


class UsageError(Bert4RecError):
    """Parameters are wrong or contradict each other."""

    exit_code = 2


class DataError(Bert4RecError):
    """The data is damaged, empty or not in the expected form."""

    exit_code = 3


class NotFoundError(Bert4RecError):
    """A named file, folder, data set or id does not exist."""

    exit_code = 4


def one_of(parameter: str, value: object, choices: Iterable[str]) -> None:
    """Refuse a value that is not one of the choices of a parameter.

    Parameters
    ----------
    parameter
        Its name, for the message.
    value
        What was passed.
    choices
        What may be passed.
    """
    known = tuple(choices)
    if not isinstance(value, str) or value not in known:
        raise UsageError(f"`{parameter}` must be one of {', '.join(map(repr, known))}; found {value!r}.")


def is_out_of_memory(error: BaseException) -> bool:
    """What torch raises is recognised by its name and words, because torch may not be loaded."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or "can't allocate memory" in str(error)
    )
