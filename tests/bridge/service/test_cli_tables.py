"""The commands that start Spark: what they refuse before that, their options and exit codes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pgbridge.bridge.runtime.errors import PublisherError, SparkLost
from pgbridge.bridge.snapshots import snapshot
from pgbridge.bridge.verify import command

TABLE: dict[str, Any] = {
    "relation": "public.t",
    "rows": 3,
    "could_not": None,
    "changelog": False,
    "left_out": 0,
    "partly": False,
    "repaired": False,
    "shown": [],
}


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["verify", "--max-rate", "fast"], 2, '--max-rate is bytes a second, as 50MB, not "fast"'),
        (["verify", "nothing"], 2, "nothing"),
        (["snapshot", "--at", "soon"], 2, '"soon" is not a position'),
        (["replay", "shop", "--lsn", "here"], 2, "here"),
        (["skip", "shop", "--lsn", "0/18", "--show"], 1, "was skipped by subscription"),
    ],
)
def test_what_is_refused_before_spark_starts(two, arguments, code, text):
    found, out, err = two(*arguments)
    assert (found, out) == (code, "")
    assert text in err


@pytest.mark.parametrize("code", [command.EQUAL, command.DIFFERENT, command.UNVERIFIED])
def test_verify_hands_its_options_on_and_ends_with_the_commands_exit_code(two, monkeypatch, code):
    given: dict[str, Any] = {}

    def collect(_config, chosen, **options):
        given.update(options, chosen=[one.name for one in chosen])
        table = TABLE | {"equal": code == command.EQUAL, "differences": {"missing": 1}}
        return {"subscriptions": [{"subscription": "shop", "lsn": "0/10", "tables": [table]}], "exit_code": code}

    monkeypatch.setattr(command, "collect", collect)
    options = ("--table", "t", "--table", "s.u", "--max-rate", "2kB", "--repair", "--wait", "5", "--shown", "1")
    found, out, _ = two("verify", "shop", *options)
    assert found == code
    assert "public.t" in out
    given.pop("progress")
    assert given == {
        "chosen": ["shop"],
        "tables": ["t", "s.u"],
        "max_rate": 2048,
        "patience_s": 5.0,
        "repaired": True,
        "shown": 1,
    }


@pytest.mark.parametrize(("error", "code"), [(PublisherError("it is away"), 2), (SparkLost("it is away"), 3)])
def test_nothing_verified_is_no_difference(two, monkeypatch, error, code):
    def collect(*_, **__):
        raise error

    monkeypatch.setattr(command, "collect", collect)
    assert two("verify", "shop") == (code, "", "pgbridge: it is away\n")


@pytest.mark.parametrize(("error", "code"), [(None, 0), ("its files are gone", 1)])
def test_a_version_that_is_gone_is_an_exit_code(two, monkeypatch, error, code):
    entry = {"table": "public.t", "path": "/lake/public/t", "version": 3, "error": error, "view": None}
    one = {"subscription": "shop", "wanted": "now", "lsn": "0/10", "commit_time": "2026-01-01T00:00:00+00:00"}
    document = {"snapshots": [one | {"remote_lsn": "0/10", "tables": [entry]}]}
    monkeypatch.setattr(snapshot, "collect", lambda *_, **__: document)
    found, out, _ = two("snapshot", "shop", "--json")
    assert (found, json.loads(out)) == (code, document)
