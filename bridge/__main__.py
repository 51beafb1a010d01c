"""`python -m bridge`: the same as the console script."""

from bridge.cli import main

main()
