"""Exceptions of polydraft. Messages are the library's: the operation, the expected value, the actual value."""

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
    """Base class of all polydraft exceptions."""


class InvalidInput(Error, ValueError):
    """Invalid distributions, arrays of the wrong shape or dtype, settings out of range, unknown names."""


class Unsupported(Error, ValueError):
    """A combination for which an algorithm is not exact, such as a single-path verifier with a tree of several paths."""


class TooLarge(Error, ValueError):
    """A problem that needs too much time or memory."""


class SolverError(Error, ArithmeticError):
    """A numerical solver failed to converge."""


class ModelError(Error, RuntimeError):
    """A model that could not be loaded or whose computation failed."""


class InternalError(Error, RuntimeError):
    """A bug in polydraft: a panic of the Rust code."""
