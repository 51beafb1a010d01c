"""The options by which a JVM uses an archive of its classes, or makes one."""

import shlex

from pgbridge.bridge.spark.launch import making_archive, using_archive


def test_an_archive_is_used_if_there_is_one(tmp_path):
    archive = tmp_path / 'a "b" \\c.jsa'
    assert using_archive("-Xss4m", archive) == "-Xss4m"
    archive.touch()
    # the launcher takes options apart as a shell does
    kept, used, *logs = shlex.split(using_archive("-Xss4m", archive))
    assert (kept, used) == ("-Xss4m", f"-XX:SharedArchiveFile={archive}")
    assert all(log.startswith("-Xlog:cds") for log in logs)
    assert using_archive("", archive).startswith("-XX:")


def test_what_the_user_says_of_archives_stands(tmp_path):
    archive = tmp_path / "classes.jsa"
    archive.touch()
    for own in ("-Xshare:off", "-XX:SharedArchiveFile=mine.jsa", "-XX:ArchiveClassesAtExit=mine.jsa"):
        assert using_archive(f"-Xss4m {own}", archive) == f"-Xss4m {own}"


def test_an_archive_is_made_whatever_the_user_says(tmp_path):
    options = shlex.split(making_archive("-Xss4m -Xshare:off -XX:SharedArchiveFile=mine.jsa", tmp_path / "new"))
    assert options[:2] == ["-Xss4m", f"-XX:ArchiveClassesAtExit={tmp_path / 'new'}"]
