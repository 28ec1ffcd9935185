"""What polydraft raises. Messages are the library's: the operation, what it expected, what it got."""

__all__ = [
    "Error",
    "InvalidInput",
    "Unsupported",
    "TooLarge",
    "SolverError",
    "ModelError",
    "InternalError",
]


class Error(Exception):
    """Everything that polydraft raises."""


class InvalidInput(Error, ValueError):
    """Numbers that make no distribution, arrays of the wrong shape or kind, settings out of range, unknown names."""


class Unsupported(Error, ValueError):
    """A combination that an algorithm is not exact for, such as a verifier of one path and a tree of several."""


class TooLarge(Error, ValueError):
    """A problem that would take too long, or too much memory."""


class SolverError(Error, ArithmeticError):
    """A numerical solver gave up."""


class ModelError(Error, RuntimeError):
    """A model that could not be loaded, or failed to compute."""


class InternalError(Error, RuntimeError):
    """A bug in polydraft: where a Rust program would panic."""
