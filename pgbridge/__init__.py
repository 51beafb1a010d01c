"""pgbridge for those who use it: the name that is the same in a checkout and in an installed wheel.

`python -m pgbridge` is the command line, and `pgbridge.session` starts Spark with Delta as the daemon does. In a wheel
the folders `bridge`, `protocol` and `sql` are inside this package; `hatch_build.py` says why and how.
"""

from bridge import __version__

__all__ = ["__version__"]
