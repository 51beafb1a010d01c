"""`python -m pgbridge`, and what the console script calls."""

import sys

from pgbridge.bridge.runtime import remedies


def main() -> None:
    """Run the command line. A library of an extra that is not installed is named, with what installs it."""
    try:
        from pgbridge.bridge.service import cli  # noqa: PLC0415 - typer may be missing

        cli.main()
    except ModuleNotFoundError as error:
        if (error.name or __package__).startswith(__package__):
            raise
        print(f"pgbridge: this needs {error.name}, which is not installed", file=sys.stderr)  # noqa: T201
        print(f"HINT:  {remedies.install_library(error.name or '')}", file=sys.stderr)  # noqa: T201
        sys.exit(1)


if __name__ == "__main__":
    main()
