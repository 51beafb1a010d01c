"""The names that users import."""

from __future__ import annotations

import subprocess
import sys

import pytest

import pgbridge
from bridge.source.export import export_snapshot
from bridge.source.register import register


def test_names():
    assert pgbridge.register is register
    assert pgbridge.export_snapshot is export_snapshot
    for name in pgbridge.__all__:
        assert getattr(pgbridge, name)
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        _ = pgbridge.other


def test_the_package_alone_imports_neither_spark_nor_arrow():
    """The command line begins with it, and must answer at once."""
    code = "import sys, pgbridge; assert not {'pyspark', 'pyarrow', 'psycopg'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)
