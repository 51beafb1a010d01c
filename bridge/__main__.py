"""Starts the command line: the console script, and `python -m bridge`."""

from __future__ import annotations

import sys

from bridge.quick_status import answer


def main() -> None:
    """Run a command. `status --json` of a running daemon is answered before anything else is loaded."""
    if (text := answer(sys.argv[1:])) is not None:
        sys.stdout.buffer.write(text)
        return
    from bridge import cli  # noqa: PLC0415 - it takes a quarter of a second

    cli.main()


if __name__ == "__main__":
    main()
