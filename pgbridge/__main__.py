"""`python -m pgbridge`, and what the console script calls."""

from bridge.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
