"""An observer that nobody has replaced takes everything and keeps nothing."""

from pgbridge.bridge.runtime.observer import BatchReport, Observer
from pgbridge.protocol.lsn import Lsn


def test_it_does_nothing():
    observer = Observer()
    observer.stream_begins(Lsn(1), Lsn(2))
    observer.received(1, Lsn(1))
    observer.durable(Lsn(1))
    observer.applied(BatchReport(Lsn(1), 1, 1, 1, 1, {}))
    observer.stream_ended()
    assert vars(observer) == {}
