"""One subscription's failure does not keep a command from the others."""

from __future__ import annotations

import pytest

from pgbridge.bridge.config.config import Subscription
from pgbridge.bridge.config.each_subscription import each
from pgbridge.bridge.runtime.errors import PublisherError, SparkLost

A, B = (Subscription(name=name, connection="", publications=("p",), warehouse="/lake") for name in "ab")


def do(subscription):
    if subscription is A:
        raise PublisherError("it is away")
    return subscription.name


def test_several():
    assert each([A, B], do, lambda one, error: f"{one.name}: {error}") == ["a: it is away", "b"]


def test_the_only_one_raises():
    with pytest.raises(PublisherError):
        each([A], do, lambda *_: "")


def test_without_spark_there_are_none():
    def lost(_):
        raise SparkLost("it has died")

    with pytest.raises(SparkLost):
        each([A, B], lost, lambda *_: "")
