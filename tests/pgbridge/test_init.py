"""The names that users import."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys

import pytest

import pgbridge
from pgbridge import session


def test_every_public_name_is_there():
    for name in pgbridge.__all__:
        assert getattr(pgbridge, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = pgbridge.nothing


def test_public_classes_and_functions_say_what_they_are():
    for name in set(pgbridge.__all__) - {"__version__"}:
        assert getattr(pgbridge, name).__doc__, name


def test_the_command_line_does_not_wait_for_spark():
    code = "import sys, pgbridge; from pgbridge import Subscription; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_package_alone_imports_neither_spark_nor_arrow():
    """The command line begins with it, and must answer at once."""
    code = "import sys, pgbridge; assert not {'pyspark', 'pyarrow', 'psycopg'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_name_whose_library_is_missing_says_what_installs_it():
    code = "import sys, pgbridge; sys.modules['structlog'] = None; pgbridge.Subscription"
    said = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True).stderr
    wanted = "ImportError: pgbridge.Subscription needs structlog, which is not installed; pip install .*'structlog>="
    assert re.search(wanted, said)


def test_a_stream_needs_delta_only_to_write_it():
    """And what installs Delta leaves PySpark as it is."""
    code = (
        "import sys, pgbridge; from pgbridge.bridge.source.stream import Stream; sys.modules['delta'] = None\n"
        "made = Stream(None, {'connection': '', 'publication': 'p', 'table': 'public.t', 'slot': 's'})\n"
        "print(pgbridge.stream.__doc__ is not None); made.to_delta('/t', checkpoint='/c')"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.stdout == "True\n"
    version = importlib.metadata.version("pyspark")
    wanted = f"to_delta needs delta.*, which is not installed; pip install delta-spark==.* pyspark=={version}"
    assert re.search(f"ImportError: {wanted}", done.stderr), done.stderr


def test_a_session_whose_library_is_missing_says_what_installs_it():
    code = "import sys; from pgbridge import session; sys.modules['tenacity'] = None; session.start"
    said = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True).stderr
    assert "ImportError: pgbridge.session.start needs tenacity, which is not installed; pip install" in said
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = session.nothing
