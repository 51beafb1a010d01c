"""Used by every room: errors, the log, threads, the process."""

__version__ = "0.2.0"
