"""What a changed configuration means: every difference is applied or refused, and nothing else is touched."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from pgbridge.bridge.config.config import Config, Subscription
from pgbridge.bridge.config.daemon_tables import Http, Spark
from pgbridge.bridge.service.reload import plan

VALUES: dict[str, list[Any]] = {
    "connection": ["host=a", "host=b password=hunter2"],
    "publications": [("pub",), ("pub", "more")],
    "warehouse": ["/lake", "/elsewhere"],
    "slot_name": ["one", "two"],
    "enabled": [True, False],
    "conflict": ["error", "apply_remote"],
    "batch": [{"max_rows": 1}, {"max_rows": 2}],
}
NAMES = ["shop", "crm", "hr"]


def subscription(name: str = "shop", **options: Any) -> Subscription:
    return Subscription(name=name, **{key: values[0] for key, values in VALUES.items()} | options)


def config(*subscriptions: Subscription, **keys: Any) -> Config:
    return Config(subscription={one.name: one for one in subscriptions or (subscription(),)}, **keys)


options = st.fixed_dictionaries({key: st.sampled_from(values) for key, values in VALUES.items()})
configs = st.builds(
    lambda tables, state_dir, workers, spark, http: config(
        *(subscription(name, **table) for name, table in tables.items()),
        state_dir=state_dir,
        max_logical_replication_workers=workers,
        spark=spark,
        http=http,
    ),
    st.dictionaries(st.sampled_from(NAMES), options, min_size=1),
    st.sampled_from([Path("/state"), Path("/other")]),
    st.sampled_from([None, 3]),
    st.builds(
        Spark,
        master=st.sampled_from(["local[2]", "yarn"]),
        conf=st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from([1, True, "1"])),
    ),
    st.sampled_from([None, Http(), Http(listen="127.0.0.1:1")]),
)
begun = st.sets(st.sampled_from(NAMES))


@given(configs, begun)
def test_the_same_file_changes_nothing(same, started):
    planned = plan(same, same, begun=started)
    assert planned.config == same
    assert planned.lines() == ["nothing has changed"]
    assert planned.outdated == frozenset()


def changed(planned, name: str) -> set[str]:
    """The keys and tables that a plan changes of a subscription."""
    begin = f'subscription "{name}" changed: '
    lines = [line.removeprefix(begin) for line in planned.applied if line.startswith(begin)]
    return {key.split(".")[0] for line in lines for key in line.split(", ")}


@given(configs, configs, begun)
def test_every_difference_is_applied_or_refused(old, new, started):
    """Key by key, the configuration to go on with has the new value, or the old one if the key is refused."""
    planned = plan(old, new, begun=started)
    assert planned.config.subscription.keys() == new.subscription.keys()
    before, after = old.subscription.keys(), new.subscription.keys()
    for what, names in (("added", after - before), ("removed", before - after)):
        assert {line.split('"')[1] for line in planned.applied if f'" {what}' in line} == names
    for name in old.subscription.keys() & new.subscription.keys():
        for key in Subscription.model_fields:
            before, wanted, now = (getattr(each.subscription[name], key) for each in (old, new, planned.config))
            refused = f"subscription.{name}.{key}" in planned.refused
            assert now == (before if refused else wanted)
            assert (key in changed(planned, name)) == (before != now)
            assert refused == (before != wanted and name in started and key in {"slot_name", "warehouse"})
    assert (planned.config.state_dir, planned.config.spark) == (old.state_dir, old.spark)
    assert planned.config.http == old.http
    assert any(key.startswith("http") for key in planned.refused) == (old.http != new.http)
    assert ("state_dir" in planned.refused) == (old.state_dir != new.state_dir)
    assert ("spark.master" in planned.refused) == (old.spark.master != new.spark.master)
    assert planned.config.max_logical_replication_workers == new.max_logical_replication_workers
    texts = [json.dumps(one.model_dump(mode="json"), sort_keys=True) for one in (planned.config, new)]
    assert (texts[0] == texts[1]) == (not planned.refused)  # in a text 1 is not true, as for Spark


@given(configs, configs, begun)
def test_a_second_reload_of_the_file_only_refuses_again(old, new, started):
    first = plan(old, new, begun=started)
    second = plan(first.config, new, begun=started)
    assert (second.applied, second.outdated) == ((), frozenset())
    assert second.refused.keys() == first.refused.keys()
    assert second.config == first.config


@given(configs, configs, begun)
def test_no_line_has_a_password(old, new, started):
    assert not any("hunter2" in line for line in plan(old, new, begun=started).lines())


@pytest.mark.parametrize(
    ("changes", "restarted"),
    [
        ({"enabled": False}, set()),  # the catalog has that: the worker looks there
        ({"conflict": "apply_remote"}, {"shop"}),
        ({"enabled": False, "conflict": "apply_remote"}, {"shop"}),
    ],
)
def test_workers_that_must_end(changes, restarted):
    assert plan(config(), config(subscription(**changes))).outdated == restarted


def test_definitions_that_are_rewritten_in_place():
    """The key stays the same, but the next stream must have the file's new content."""
    definitions = subscription()
    planned = plan(config(definitions), config(definitions), rewritten=["shop"])
    assert planned.applied == ('subscription "shop" changed: publication_definitions',)
    assert planned.outdated == {"shop"}


def test_the_lines():
    old = config(
        subscription(),
        subscription("crm", slot_name="crm_slot"),
        subscription("new"),
        state_dir=Path("/state"),
        http=Http(),
    )
    new = config(
        subscription(warehouse="/elsewhere", slot_name="two", batch={"max_rows": 2}),
        subscription("hr"),
        state_dir=Path("/other"),
        spark=Spark(master="yarn", conf={"spark.driver.memory": "9g"}),
        max_logical_replication_workers=9,
        http=Http(listen="127.0.0.1:9", token_file="/token"),
    )
    start = "to apply it, restart the daemon"
    http = f"metrics and the status page are served as at the start; {start}"
    drop = "to drop it: SELECT pg_drop_replication_slot('crm_slot');"
    stay = 'the subscription has tables in "/lake", and they stay there; put it back, or restart the daemon: '
    slot = 'the subscription has begun with the slot "one", which would go on retaining WAL; put it back, or '
    assert plan(old, new, begun=["shop", "crm"]).lines() == [
        "max_logical_replication_workers changed",
        'subscription "shop" changed: batch.max_rows',
        'subscription "hr" added',
        f'subscription "crm" removed; its slot stays on the server and retains WAL, {drop}',
        'subscription "new" removed; it has not begun',
        f"state_dir not changed: the daemon works on /state; {start}",
        f"http.listen not changed: {http}",
        f"http.token_file not changed: {http}",
        f"spark.master not changed: Spark has been started; {start}",
        f'spark.conf."spark.driver.memory" not changed: Spark has been started; {start}',
        f"subscription.shop.slot_name not changed: {slot}restart the daemon: its start checks the other slot",
        f"subscription.shop.warehouse not changed: {stay}tables that come later then go to the other warehouse",
    ]


@pytest.mark.parametrize(("old", "new"), [(None, Http()), (Http(), None)])
def test_an_http_table_that_comes_or_goes(old, new):
    planned = plan(config(http=old), config(http=new))
    assert planned.refused.keys() == {"http"}
    assert planned.config.http == old


@pytest.mark.parametrize("conf", [{}, {"spark.sql.catalogImplementation": "hive"}])
def test_spark_without_a_metastore_takes_no_warehouse_in_its_catalog(conf):
    """Its catalog would forget the tables."""
    old = config(subscription(), spark=Spark(conf=conf))
    moved = subscription(warehouse="catalog:spark_catalog.shop")
    found = plan(old, config(moved, subscription("crm", warehouse="catalog:spark_catalog"), spark=Spark(conf=conf)))
    if conf:
        assert not found.refused
        assert found.outdated == {"shop"}
        assert found.config.subscription.keys() == {"shop", "crm"}
        return
    assert found.refused.keys() == {"subscription.shop.warehouse", "subscription.crm"}
    assert (found.config.subscription, found.applied) == (old.subscription, ())
    assert "subscription.crm not changed: Spark has been started without a metastore" in "\n".join(found.lines())
