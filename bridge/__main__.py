"""Starts the command line: the console script, and `python -m bridge`."""

from pgbridge.bridge.service.cli import main

if __name__ == "__main__":
    main()
