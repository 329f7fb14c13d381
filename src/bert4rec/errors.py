"""The errors a user can act on.

    Bert4RecError
    ├── UsageError      the request contradicts itself            exit code 2
    ├── DataError       the data is not what it should be         exit code 3
    └── NotFoundError   a file, folder or id does not exist       exit code 4

Each message says where, what was expected, what was found and what to do next. The command line
prints it as one line. Anything else that is raised is a mistake of ours and keeps its traceback.
"""


class Bert4RecError(Exception):
    """Something a user can mend; the message says how."""

    exit_code = 1


class UsageError(Bert4RecError):
    """The request contradicts itself or asks for what cannot be."""

    exit_code = 2


class DataError(Bert4RecError):
    """The data is damaged, empty or not in the expected form."""

    exit_code = 3


class NotFoundError(Bert4RecError):
    """A named file, folder, data set or id does not exist."""

    exit_code = 4
