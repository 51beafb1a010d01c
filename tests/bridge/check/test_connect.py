"""Packages of the extra `connect` that are missing are named, with the command."""

import re
from importlib.util import find_spec

from bridge.check.connect import check_connect
from bridge.check.finding import Level


def test_all_are_there():
    assert check_connect(find_spec).level is Level.PASS


def test_what_is_missing_is_named():
    def find(name: str) -> object | None:
        if name == "google.rpc":
            raise ModuleNotFoundError("google")
        return None if name == "grpc" else name

    found = check_connect(find)
    assert found.level is Level.FAILURE
    assert found.message == "packages are not installed: grpcio, googleapis-common-protos"
    assert re.fullmatch(r"pip install( '[a-z-]+>=[\d.]+')+", found.statement)
    assert "'grpcio>=" in found.statement
