"""Errors a user can cause. Each says what was given, what was expected and what to do.

Everything else that raises is a bug of ours and keeps its traceback.
"""


class OutpaceError(Exception):
    """Base of every error with a message meant for the user."""


class OptionError(OutpaceError, ValueError):
    """An option, parameter or prompt that cannot be honoured as given."""


class ModelError(OutpaceError):
    """A model that cannot be found, read, or run by this engine."""


class DownloadError(ModelError):
    """A model file that could not be fetched or did not match its hash."""


class ContextLengthError(OptionError):
    """A prompt that does not fit in the model's context."""
