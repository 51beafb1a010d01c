"""`pgbridge verify`: starts Spark, verifies subscriptions, and shows what differs.

Exit codes: 0 if all tables are equal, 1 if there are differences, 2 if a table could not be verified.
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from pgbridge.bridge.apply.published import Published
from pgbridge.bridge.catalog import catalog_rows, lock, maintenance
from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.config.each_subscription import each
from pgbridge.bridge.receive.filter_server import FilterServer
from pgbridge.bridge.receive.publisher import Publisher
from pgbridge.bridge.recovery import manifest_table
from pgbridge.bridge.runtime import errors, log, remedies
from pgbridge.bridge.runtime.listing import Listing
from pgbridge.bridge.spark.launch import Launch
from pgbridge.bridge.spark.session import command_session, driver_of, told
from pgbridge.bridge.sync.table_reading import Pace
from pgbridge.bridge.verify import comparison
from pgbridge.bridge.verify.verification import Verification, unexpected_told

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from pgbridge.bridge.config.config import Config, Subscription
    from pgbridge.protocol.lsn import Lsn

EQUAL, DIFFERENT, UNVERIFIED = 0, 1, 2

_SPARK_LOG: Final = "verify-spark.log"

_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?) ?(|[kMGT])i?B?", re.IGNORECASE)
_UNITS: Final = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}


def rate_of(text: str) -> float:
    """Read a rate in bytes a second: a number, perhaps with kB, MB or GB (of 1024).

    Raises:
        ConfigError: It is no such rate, or is not above 0.
    """
    match = _SIZE.fullmatch(text.strip())
    rate = float(match[1]) * (1 << _UNITS[match[2].lower()]) if match else 0.0
    if rate <= 0:
        raise errors.ConfigError(f'--max-rate is bytes a second, as 50MB, not "{text}"')
    return rate


def collect(  # noqa: PLR0913 - options
    config: Config,
    chosen: Sequence[Subscription],
    *,
    tables: Sequence[str] = (),
    max_rate: float | None = None,
    patience_s: float = 120.0,
    repaired: bool = False,
    shown: int = 10,
    progress: Callable[[str, float, float], None] = lambda *_: None,
    started: Callable[[Config, Sequence[Subscription]], AbstractContextManager[SparkSession]] | None = None,
) -> dict[str, Any]:
    """Verify subscriptions, as `--json` prints it.

    If the JVM dies meanwhile, that subscription is verified once more, in another JVM with a task at a time.

    Args:
        chosen: The subscriptions.
        tables: `schema.table`, or a table's name; none for all tables.
        max_rate: Bytes of the source's tables to read a second; None for no limit.
        patience_s: How long to wait for a daemon that is behind.
        shown: How many differences of each table are shown.
        repaired: Repair what differs: the rows of tables with a key.
        progress: See `Verification`.
        started: Starts Spark, and stops it; None for the session that the configuration describes.

    Raises:
        VerifyError: No table has such a name; or nothing of the only subscription can be verified.
        StateError: With `repaired`, a daemon is running; or the only subscription's batch is unfinished.
        TakenOver: With `repaired`, another machine goes on with the only subscription.
        PublisherError: The server of the only subscription refuses.
    """
    with (
        lock.locked(config.state_dir, lock.STOP_FIRST) if repaired else nullcontext(),
        closing(Catalog(catalog_path(config.state_dir))) as catalog,
        ExitStack() as stack,
    ):
        _check_followed(catalog, chosen, tables)  # before Spark, which takes some ten seconds to start
        spark = stack.enter_context(
            started(config, chosen) if started else command_session(config, chosen, log=_SPARK_LOG, commits=repaired)
        )

        def with_spark(subscription: Subscription) -> dict[str, Any]:
            nonlocal spark
            if driver_of(spark).lost() is not None:
                spark = _again(spark, config, chosen)
            return compared(subscription)

        def verified(subscription: Subscription) -> dict[str, Any]:
            if repaired:
                maintenance.check_finished(catalog, subscription.name)
                with told(spark):
                    manifest_table.check_owned(spark, catalog, subscription)
                return compared(subscription)
            with suppress(errors.SparkLost):
                return with_spark(subscription)
            try:
                return with_spark(subscription)
            except errors.SparkLost as error:
                raise errors.VerifyError(error.message, hint=error.hint) from error

        def compared(subscription: Subscription) -> dict[str, Any]:
            with (
                unexpected_told(subscription.name),  # it would end the process with 1, as if there were differences
                told(spark),
                Publisher(subscription.connection, application_name=f"{subscription.name}_verify") as publisher,
                FilterServer(subscription) as filter_server,
            ):
                verification = Verification(
                    spark,
                    catalog,
                    subscription,
                    Published.read(subscription, publisher, log.get(subscription.name), filter_server),
                    running=lambda: not repaired and lock.is_running(config.state_dir),
                    pace=Pace(max_rate),
                    patience_s=patience_s,
                    shown=shown,
                    repaired=repaired,
                    progress=progress,
                )
                lsn, verdicts = verification.run(
                    lambda name: not tables or name in tables or name.partition(".")[2] in tables
                )
            if not verdicts and not tables and subscription.needs_tables:
                raise _no_table(subscription)
            return _document_of(subscription.name, lsn, verdicts)

        documents = each(chosen, verified, lambda subscription, error: _failed_document(subscription.name, str(error)))
    return {"subscriptions": documents, "exit_code": _exit_code(documents, named=bool(tables))}


def _check_followed(catalog: Catalog, chosen: Sequence[Subscription], tables: Sequence[str]) -> None:
    names = [name for subscription in chosen for name in (subscription.name, catalog_rows.sync_name(subscription.name))]
    known = {rel.qualified_name for name in names for rel in catalog.rels(name)}
    known |= {name.partition(".")[2] for name in known}
    if unknown := [name for name in tables if name not in known]:
        raise errors.VerifyError(f'no subscription follows table "{unknown[0]}"')
    for subscription in chosen:
        if not known and subscription.needs_tables and catalog.remote_lsn(subscription.name) is not None:
            raise _no_table(subscription)


def _no_table(subscription: Subscription) -> errors.VerifyError:
    said = f'subscription "{subscription.name}" follows no table'
    return errors.VerifyError(said, hint=remedies.of_no_table(subscription.name))


def _again(spark: SparkSession, config: Config, chosen: Sequence[Subscription]) -> SparkSession:
    """Start Spark again after its JVM has died, with a task at a time: then a large row has the heap for itself."""
    driver = driver_of(spark).forget()
    conf = dict(config.spark.conf)
    if driver.tasks_here:
        conf["spark.task.cpus"] = driver.tasks_here
    warehouses = [subscription.warehouse for subscription in chosen]
    return driver.start(conf, warehouses, Launch(config.state_dir / _SPARK_LOG, folder=config.state_dir))


def _exit_code(documents: Sequence[dict[str, Any]], *, named: bool) -> int:
    """A changelog counts only if it was asked for by its name: else no run of its subscription could end with 0."""
    tables = (table for document in documents for table in document["tables"])
    equal = [_is_mended(table) or table["equal"] for table in tables if named or not table["changelog"]]
    if False in equal:
        return DIFFERENT
    return UNVERIFIED if None in equal or any("error" in document for document in documents) else EQUAL


def _is_mended(table: dict[str, Any]) -> bool:
    """Whether all rows that differed are repaired."""
    return bool(table.get("repaired") and not table["partly"])


def _is_repairable(table: dict[str, Any]) -> bool:
    """Whether rows differ, as nobody wants it, and no repair of them was tried."""
    told = ("repaired", "unrepaired", "caveat")
    return table["equal"] is False and not any(table.get(key) for key in told)


def _failed_document(name: str, error: str) -> dict[str, Any]:
    """A subscription of which nothing could be verified, as `--json` prints it."""
    return {"subscription": name, "lsn": None, "tables": [], "error": error}


def _document_of(name: str, lsn: Lsn, verdicts: Sequence[comparison.Verdict]) -> dict[str, Any]:
    """The result as `--json` prints it."""
    return {
        "subscription": name,
        "lsn": str(lsn),
        "tables": [
            {
                "relation": verdict.relation,
                "path": verdict.path,
                "rows": verdict.rows,
                "equal": None if verdict.why else not verdict.differences and not verdict.partly,
                "could_not": verdict.why or None,
                "changelog": verdict.changelog,
                "left_out": verdict.left_out,
                "left_out_columns": list(verdict.left_out_columns),
                "partly": verdict.partly,
                "repaired": verdict.repaired,
                "unrepaired": verdict.unrepaired or None,
                "caveat": verdict.caveat or None,
                "differences": comparison.counts(verdict.differences),
                "shown": [_shown_document(shown) for shown in verdict.shown],
                "seconds": round(verdict.seconds, 2),
            }
            for verdict in verdicts
        ],
    }


def _shown_document(shown: comparison.Shown) -> dict[str, Any]:
    columns = {name: {"source": source, "delta": delta} for name, (source, delta) in shown.columns.items()}
    return {"outcome": shown.outcome, "key": dict(shown.key), "columns": columns}


def render(document: dict[str, Any]) -> RenderableType:
    """A table for a terminal, and what differs."""
    parts: list[RenderableType] = []
    for entry in document["subscriptions"]:
        if "error" in entry:
            parts.append(Text(f"{entry['subscription']}: not verified: {entry['error']}"))
            continue
        table = Listing("table", "rows", "equal")
        table.columns[1].justify = "right"
        for verified in entry["tables"]:
            table.add_row(Text(verified["relation"]), f"{verified['rows']:,}", Text(_said(verified)))
        parts += [Text(f"{entry['subscription']}: as of {entry['lsn']}"), table]
        parts += [Text(line) for verified_table in entry["tables"] for line in _lines(verified_table)]
        if any(_is_repairable(each) for each in entry["tables"]):
            repair = remedies.verify(entry["subscription"], "--repair")
            parts.append(Text(f"HINT:  to make these rows the source's, stop the daemon and run: {repair}"))
    return Group(*parts)


def _said(table: dict[str, Any]) -> str:
    if table["changelog"]:
        return str(table["could_not"])
    if table["could_not"]:
        return f"not verified: {table['could_not']}"
    said = "yes" if table["equal"] else comparison.said(table["differences"], partly=table["partly"])
    if table.get("repaired"):
        said += "; repaired in part: run it again" if table["partly"] else "; repaired"
    if table.get("unrepaired"):
        said += f"; not repaired: {table['unrepaired']}"
    if not table["equal"] and table.get("caveat"):
        said += f" ({table['caveat']})"
    if table["left_out"]:
        said += f" ({table['left_out']:,} keys left out: their last changes are not applied yet)"
    if columns := table.get("left_out_columns"):
        said += f" (without {', '.join(columns)}: VARIANT)"
    return said


def _lines(table: dict[str, Any]) -> Iterator[str]:
    for shown in table["shown"]:
        key = ", ".join(f"{name}={_value(value)}" for name, value in shown["key"].items())
        changed = ", ".join(
            f"{name}: {_value(values['source'])}, in Delta {_value(values['delta'])}"
            for name, values in shown["columns"].items()
        )
        yield f"{table['relation']}: {shown['outcome']}: ({key}) {changed}".rstrip()


def _value(value: str | None) -> str:
    return "NULL" if value is None else value if len(value) <= 60 else f"{value[:57]}..."
