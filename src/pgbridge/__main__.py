"""`python -m pgbridge`, and what the console script calls."""

from pgbridge.bridge.service.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
