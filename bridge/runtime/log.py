"""The log: readable lines on a terminal, elsewhere one JSON object per line."""

from __future__ import annotations

import io
import logging
import re
import sys
from typing import TYPE_CHECKING, Any, Final, TextIO, cast

import structlog

from pgbridge.protocol.lsn import Lsn

if TYPE_CHECKING:
    from structlog.typing import EventDict

# --- Text for a terminal, which obeys control characters: names and messages of a server must not give it orders ------

_ORDERS: Final = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # all of C0 and C1 but tab and newline: ESC and CSI among them
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # they end lines, or turn the direction of writing
    "\ud800-\udfff"  # no terminal's encoding has them
    "]"
)
_NAMES: Final = frozenset(
    {"columns", "leaves", "name", "path", "publications", "relation", "root", "slot_name", "subject"}
)
"""Keys of the commands' documents that have names: one with a newline must not look like two lines."""


def printable(text: str) -> str:
    r"""Return a text with control characters as psql shows them, such as \x1B; newlines and tabs are kept."""
    return _ORDERS.sub(_shown, text)


def one_line(text: str) -> str:
    r"""Return a name, or a sentence with names, as `printable` does, and with \n and \t for newline and tab."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def printable_document(value: Any, key: str = "") -> Any:
    """Return a document of a command with all its texts printable, names in one line.

    Args:
        value: A JSON value.
        key: Its key.
    """
    match value:
        case str():
            return one_line(value) if key in _NAMES else printable(value)
        case list():
            return [printable_document(item, key) for item in value]
        case dict():
            return {name: printable_document(item, name) for name, item in value.items()}
        case _:
            return value


def _shown(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02X}" if code <= 0xFF else f"\\u{code:04X}"


# --- The log ----------------------------------------------------------------------------------------------------------

COPY_PROGRESS: Final = "table copy progress"
"""An event that a terminal does not get: it has a bar for each copy."""

_QUOTED: Final = frozenset(" \t\r\n=\"'")
"""A value with one of these has quotes on a terminal, and there its control characters are escaped."""


def configure(stream: TextIO | None = None, *, level: int = logging.INFO) -> None:
    """Send every event of the process to `stream`, by default standard error.

    An event has `timestamp` (UTC), `level`, `event`, and the keys bound to its logger, such as `subscription`. LSNs are
    logged as text.
    """
    stream = stream or cast("TextIO", _StandardError())
    renderer: structlog.typing.Processor
    if stream.isatty():
        # The default formatter shows local variables, among them connection strings with passwords.
        renderer = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
        tail: list[structlog.typing.Processor] = [
            _without_progress,
            structlog.processors.format_exc_info,
            _printable,
            renderer,
        ]
    else:
        renderer = structlog.processors.JSONRenderer(default=str)
        tail = [structlog.processors.format_exc_info, renderer]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _lsns_as_text,
            *tail,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(stream),
        cache_logger_on_first_use=False,
    )


class _StandardError(io.TextIOBase):
    """Writes to sys.stderr, looked up for each event: progress bars replace it while they are shown.

    An event that cannot be written, because the log's disk is full, is dropped: a worker must not fail by it. The next
    event then begins a new line, because part of the dropped one may be written. Python flushes this at its end, too,
    from version 3.13 on, when `sys` is gone.
    """

    def __init__(self) -> None:
        super().__init__()
        self._cut = False

    def write(self, text: str) -> int:
        try:
            sys.stderr.write(f"\n{text}" if self._cut else text)
            self._cut = False
        except OSError:
            self._cut = True
        return len(text)

    def flush(self) -> None:
        if sys is None:
            return
        try:
            sys.stderr.flush()
        except OSError:
            self._cut = True

    def isatty(self) -> bool:
        return sys.stderr.isatty()


def get(subscription: str | None = None) -> structlog.typing.FilteringBoundLogger:
    """Return a logger, bound to the subscription's name if one is given."""
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger()
    return logger.bind(subscription=subscription) if subscription else logger


def _without_progress(_logger: object, _method: str, event: EventDict) -> EventDict:
    if event["event"] == COPY_PROGRESS:
        raise structlog.DropEvent
    return event


def _printable(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Show what a terminal would obey, where the renderer writes texts as they are."""
    for key, value in event.items():
        if key in {"exception", "stack"}:
            event[key] = printable(str(value))
        elif isinstance(value, str) and (key == "event" or _QUOTED.isdisjoint(value)):
            event[key] = one_line(value)
    return event


def _lsns_as_text(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Turn LSNs into text; JSON would write them as integers."""
    return {key: str(value) if isinstance(value, Lsn) else value for key, value in event.items()}
