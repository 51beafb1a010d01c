"""Files and folders are flushed, and an error names the path."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from pgbridge.bridge.runtime.process import fsync


def test_files_and_folders(tmp_path, monkeypatch):
    flushed = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: flushed.append(Path(f"/proc/self/fd/{descriptor}").readlink()))
    file = tmp_path / "file"
    file.touch()
    open_before = len(list(Path("/proc/self/fd").iterdir()))
    fsync(file)
    fsync(str(tmp_path))
    assert flushed == [file, tmp_path]
    assert len(list(Path("/proc/self/fd").iterdir())) == open_before


def test_what_is_not_there_or_not_taken_is_named(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError):
        fsync(tmp_path / "gone")

    def full(_descriptor):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="Input/output error") as caught:
        fsync(tmp_path)
    assert caught.value.filename == str(tmp_path)
