"""The tests; a package, so that no other distribution's `tests` can come before it on the path."""
