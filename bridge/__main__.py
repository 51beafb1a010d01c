"""`python -m bridge` is `python -m pgbridge`."""

from pgbridge.__main__ import main

if __name__ == "__main__":
    main()
