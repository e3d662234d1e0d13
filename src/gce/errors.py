"""The one exception for input that a person can put right."""


class InputError(ValueError):
    """Says what was found, where, and what to do about it; the command line prints it and exits with status 2."""
