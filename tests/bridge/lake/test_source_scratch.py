"""Scratch files are this user's alone, and go: at the end, or when the next process finds that theirs was killed."""

from __future__ import annotations

import os
import subprocess
import sys

from pgbridge.bridge.lake import source


def test_what_a_killed_process_left_is_removed(scratch_base):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    numbers = (ended.pid, os.getpid(), os.getppid())  # in a container the process before had this one's number
    left, same, running = (scratch_base / f"pgbridge-scratch-{pid}-x" for pid in numbers)
    for one in (left, same, running):
        one.mkdir()
        (one / "rows-1.parquet").write_bytes(b"x")
    own = source._folder()
    assert sorted(scratch_base.iterdir()) == sorted([running, own])


def test_a_folder_that_was_cleaned_away_is_made_again(scratch_base):
    own = source._folder()
    own.rmdir()
    with source.scratch_file() as path:
        assert path.parent == own
        assert path.stat().st_mode & 0o777 == 0o600


def test_a_scratch_folder_goes_with_all_that_is_in_it(scratch_base):
    with source.scratch_folder() as path:
        (path / "a").mkdir()
        assert path.stat().st_mode & 0o777 == 0o700
    assert not path.exists()
