"""Rules on the server: its version, settings and room, what would hold up a slot; and on the subscription's slot. Pure.

Source: the documentation's "Logical Replication Configuration Settings" and "Replication" (runtime-config-replication).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from pgbridge.bridge.check.finding import PROVIDERS, Finding, failed, failure, passed, warning
from pgbridge.bridge.receive.publisher import LOWEST_VERSION, PASSWORD_WARNING_S, quoted_name, wal_level_refusal
from pgbridge.bridge.receive.server_facts import OpenTransaction, Security, ServerFacts, is_synchronous
from pgbridge.bridge.receive.slot import check_slot
from pgbridge.bridge.runtime import remedies
from pgbridge.bridge.runtime.errors import PublisherError
from pgbridge.bridge.sync.start import foreign_slot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgbridge.bridge.receive.slot_status import SlotStatus
    from pgbridge.protocol.lsn import Lsn

_STANDBY_VERSION = 160000
_SMALL_KEEP_MB = 1024
_CLOCK_S = 5.0
_LONG_S = 300.0
_LEAST_TIMEOUT_S = 10


@dataclass(frozen=True, slots=True)
class Needs:
    """The room that subscriptions still need on a server.

    Attributes:
        slots: Replication slots.
        senders: WAL senders.
    """

    slots: int = 0
    senders: int = 0


def check_server(
    facts: ServerFacts,
    *,
    slot_exists: bool,
    running: bool,
    others: Needs | None = None,
    name: str = "",
    unrepresentable: Literal["error", "null"] = "error",
    alert_bytes: int = 0,
) -> list[Finding]:
    """Look at a server.

    Args:
        facts: What it says of itself.
        slot_exists: Whether the subscription's slot is among its slots.
        running: Whether the subscription streams here, so that its WAL sender is among the server's.
        others: What other subscriptions of the configuration still need there; None for nothing.
        name: The application_name of the subscription's stream.
        unrepresentable: The subscription's.
        alert_bytes: From how much WAL on that the slot holds the log warns; 0 for never.
    """
    others = others or Needs()
    needs = Needs(others.slots + (0 if slot_exists else 1), others.senders + (0 if running else 1))
    findings = [
        *_version(facts),
        *_wal_level(facts),
        *_role(facts),
        *_room(facts, needs),
        *_kept_wal(facts, alert_bytes),
        *_idle_timeout(facts),
        *_sender_timeout(facts),
        *_synchronous(facts, name),
        *_encoding(facts, unrepresentable),
        *_open_transactions(facts.open_transactions, slot_exists=slot_exists),
        *_clock(facts),
        *_security(facts.security),
    ]
    provider = next((PROVIDERS[name] for name in facts.settings if name in PROVIDERS), None)
    return findings if provider is None else [provider.told(finding) for finding in findings]


def _version(facts: ServerFacts) -> Iterator[Finding]:
    major = facts.version // 10000
    if facts.version < LOWEST_VERSION:
        yield failure(
            "version",
            f"the publisher is PostgreSQL {major}; the lowest supported is 14",
            remedy="upgrade the server, or subscribe to one that is newer",
        )
        return
    if not facts.in_recovery:
        yield passed("version", f"PostgreSQL {major}")
        return
    if facts.version < _STANDBY_VERSION:
        yield failure(
            "version",
            f"the server is a standby, and PostgreSQL {major} cannot decode WAL on one",
            remedy="connect to the primary; from PostgreSQL 16 on a standby can be the publisher",
        )
    elif facts.settings.get("hot_standby_feedback") != "on":
        yield warning(
            "hot_standby_feedback",
            "the server is a standby without hot_standby_feedback: the primary's VACUUM may invalidate the slot",
            remedy="run on the standby, and give it a physical slot on the primary (primary_slot_name)",
            statement="ALTER SYSTEM SET hot_standby_feedback = on; SELECT pg_reload_conf();",
        )
    else:
        yield passed("version", f"PostgreSQL {major}, a standby with hot_standby_feedback")


def _wal_level(facts: ServerFacts) -> Iterator[Finding]:
    level = facts.settings["wal_level"]
    effective = facts.settings.get("effective_wal_level", level)
    refused = wal_level_refusal(facts.version, level, effective, in_recovery=facts.in_recovery)
    if refused is not None:
        yield failed("wal_level", refused)
    elif effective == level:
        yield passed("wal_level", level if level == "logical" else f"{level}: the slot switches logical decoding on")
    else:
        yield passed("wal_level", f"{level}, and effective_wal_level is {effective}")


def _role(facts: ServerFacts) -> Iterator[Finding]:
    if facts.superuser:
        yield warning(
            "role",
            f'"{facts.role}" is a superuser: pgbridge needs REPLICATION, and SELECT on the published tables',
            remedy="connect as a role of no more: with its name in the connection string, this prints the statements",
            statement=remedies.check("--sql"),
        )
    else:
        yield passed("role", f'"{facts.role}", no superuser')
    # one that has expired is not what the role logs in with
    if facts.password_left_s is not None and 0 < facts.password_left_s < PASSWORD_WARNING_S:
        yield warning(
            "password",
            f'the password of "{facts.role}" expires in {timedelta(seconds=round(facts.password_left_s))}',
            remedy="give the role a new one on the server, and put it into ~/.pgpass",
            statement=f"ALTER ROLE {quoted_name(facts.role)} PASSWORD '…' VALID UNTIL '…';",
        )


def _room(facts: ServerFacts, needs: Needs) -> Iterator[Finding]:
    """A subscription has one slot and one sender; tables that come later need one more of each for a while."""
    slots, senders = int(facts.settings["max_replication_slots"]), int(facts.settings["max_wal_senders"])
    for subject, most, used, needed, what in (
        ("max_replication_slots", slots, facts.slots, needs.slots, "replication slots"),
        ("max_wal_senders", senders, facts.senders, needs.senders, "WAL senders"),
    ):
        free = most - used
        text = f"{free} of {most} {what} are free"
        statement = f"ALTER SYSTEM SET {subject} = {most + needed + 1 - free};"
        if free < needed:
            who = "the subscription needs one"
            if needed > 1:
                who = f"the subscriptions of the configuration need {needed} together"
            yield failure(subject, f"{text}: {who}", remedy="run on the server, then restart it", statement=statement)
        elif free < needed + 1:
            yield warning(
                subject,
                f"{text}: tables that are added or copied again later need one more for a while",
                remedy="run on the server, then restart it",
                statement=statement,
            )
        else:
            yield passed(subject, text)


def _kept_wal(facts: ServerFacts, alert_bytes: int) -> Iterator[Finding]:
    subject = "max_slot_wal_keep_size"
    keep_mb = int(facts.settings.get(subject, "-1"))
    if (
        keep_mb < 0 and alert_bytes
    ):  # PostgreSQL's default: no slot is lost, and somebody is told before the disk is full
        told_mb = alert_bytes >> 20
        yield passed(subject, f"unlimited; once the slot holds {told_mb:,} MB, the log warns (alerts.retained_bytes)")
    elif keep_mb < 0:
        yield warning(
            subject,
            "unlimited: if pgbridge is down for long, its slot holds WAL until the server's disk is full",
            remedy="choose how much WAL slots may hold; one that needs more is lost, and its tables are copied again",
            statement="ALTER SYSTEM SET max_slot_wal_keep_size = '50GB'; SELECT pg_reload_conf();",
        )
    elif keep_mb < _SMALL_KEEP_MB:
        yield warning(
            subject,
            f"{keep_mb} MB: a short pause of pgbridge on a busy server loses the slot, and its tables are copied again",
            remedy="choose the WAL of the longest pause that you expect",
            statement="ALTER SYSTEM SET max_slot_wal_keep_size = '50GB'; SELECT pg_reload_conf();",
        )
    else:
        yield passed(subject, f"{keep_mb} MB")


def _idle_timeout(facts: ServerFacts) -> Iterator[Finding]:
    subject = "idle_replication_slot_timeout"
    setting = facts.settings.get(subject)
    if setting is None:
        return  # PostgreSQL 18 has it
    if int(setting) == 0:
        yield passed(subject, "off")
    else:
        yield warning(
            subject,
            f"the server invalidates the slot once pgbridge has been away for {timedelta(seconds=int(setting))}",
            remedy="set it to 0, or longer than the longest pause that you expect",
            statement=f"ALTER SYSTEM SET {subject} = 0; SELECT pg_reload_conf();",
        )


def _sender_timeout(facts: ServerFacts) -> Iterator[Finding]:
    subject = "wal_sender_timeout"
    timeout_s = int(facts.settings.get(subject, "60000")) / 1000
    if 0 < timeout_s < _LEAST_TIMEOUT_S:
        yield warning(
            subject,
            f"{timeout_s:g} s: on a loaded machine pgbridge may answer later than that, and receives again from its "
            "first byte what it was receiving",
            remedy=f"set it to {_LEAST_TIMEOUT_S} s or more",
            statement=f"ALTER ROLE {quoted_name(facts.role)} SET {subject} = '60s';",
        )
    else:
        yield passed(subject, f"{timeout_s:g} s" if timeout_s else "off")


def _synchronous(facts: ServerFacts, name: str) -> Iterator[Finding]:
    subject = "synchronous_standby_names"
    names = facts.settings.get(subject, "")
    if not facts.in_recovery and is_synchronous(names, name):  # a standby has the setting, and no commits
        yield warning(
            subject,
            f'{names!r} has "{name}": commits on the server wait until pgbridge has written them, for ever if it is '
            "stopped",
            remedy="name the standbys that are meant, without pgbridge's application_name and without *",
        )
    else:
        yield passed(subject, "commits do not wait for pgbridge")


def _encoding(facts: ServerFacts, unrepresentable: Literal["error", "null"]) -> Iterator[Finding]:
    encoding = facts.settings.get("server_encoding", "")
    if encoding == "SQL_ASCII" and unrepresentable == "error":
        yield warning(
            "server_encoding",
            f'database "{facts.database}" has SQL_ASCII, which takes any bytes: a text that is no UTF-8 stops the '
            "subscription",
            remedy='have such texts become NULL: unrepresentable = "null"',
        )
    else:
        yield passed("server_encoding", encoding)


def _open_transactions(transactions: tuple[OpenTransaction, ...], *, slot_exists: bool) -> Iterator[Finding]:
    subject = "open transactions"
    until = "" if slot_exists else ": the slot is not ready before it ends"
    seen = False
    for transaction in transactions:
        age = "" if transaction.age_s is None else f" since {timedelta(seconds=round(transaction.age_s))}"
        if transaction.prepared:
            seen = True
            yield warning(
                subject,
                f'the transaction "{transaction.name}" is prepared in database "{transaction.database}"{age}{until}',
                remedy="end it there if nothing will",
                statement=f"ROLLBACK PREPARED '{transaction.name.replace(chr(39), chr(39) * 2)}';",
            )
        elif transaction.age_s is not None and transaction.age_s > _LONG_S:
            seen = True
            by = f' of "{transaction.application_name}"' if transaction.application_name else ""
            yield warning(
                subject,
                f'a transaction{by} is open in database "{transaction.database}"{age}{until}',
                remedy="let it end, or end its session",
                statement=f"SELECT pg_terminate_backend({transaction.name});",
            )
    if not seen:
        yield passed(subject, "none is long or prepared, as far as the role can see")


def _clock(facts: ServerFacts) -> Iterator[Finding]:
    ahead_s = facts.clock_ahead_s
    if abs(ahead_s) <= _CLOCK_S:
        yield passed("clock", "the server's and this machine's agree")
        return
    way = "ahead of" if ahead_s > 0 else "behind"
    yield warning(
        "clock",
        f"the server's clock is {abs(ahead_s):.0f} s {way} this machine's: lags in seconds are wrong by that much",
        remedy="synchronize both clocks by NTP",
    )


def _security(security: Security) -> Iterator[Finding]:
    if security.local:
        yield passed("TLS", "the connection does not leave this machine")
    elif not security.tls:
        yield warning(
            "TLS",
            f"the connection to {security.host} is not encrypted: rows and password exchange can be read on the way",
            remedy="turn on ssl on the server, and add to the connection: sslmode=verify-full sslrootcert=…",
        )
    elif security.sslmode != "verify-full":
        yield warning(
            "TLS",
            f"encrypted, but with sslmode={security.sslmode} the server's name is not verified",
            remedy="add to the connection: sslmode=verify-full sslrootcert=…",
        )
    else:
        yield passed("TLS", "sslmode=verify-full")


_SUBJECT = "replication slot"


@dataclass(frozen=True, slots=True)
class Expected:
    """A subscription's expectations of its slot.

    Attributes:
        subscription: The subscription's name.
        create_slot: Whether the subscription creates it.
        durable_lsn: The origin's LSN; None before the first stream.
        being_created: Whether an earlier start was cut short while it created the slot.
        streams: Whether it streams here, so that the slot is active for it.
    """

    subscription: str
    slot_name: str
    create_slot: bool
    durable_lsn: Lsn | None
    being_created: bool
    streams: bool


def check_slot_state(status: SlotStatus | None, expected: Expected, *, database: str) -> Iterator[Finding]:
    """Look at a slot.

    Args:
        status: Its row of pg_replication_slots; None if it does not exist.
        expected: What the subscription expects.
        database: The connection's database.
    """
    slot_name, is_new = expected.slot_name, expected.durable_lsn is None
    if is_new and expected.create_slot:
        if status is None:
            yield passed(_SUBJECT, f'"{slot_name}" is created at the first start')
        elif not expected.being_created:
            yield failed(_SUBJECT, foreign_slot(slot_name, expected.subscription))
        return
    try:
        check_slot(
            slot_name,
            status,
            subscription=expected.subscription,
            database=database,
            durable_lsn=expected.durable_lsn,
        )
    except PublisherError as error:
        yield failed(_SUBJECT, error)
        return
    if status is None:
        return
    if status.active and not expected.streams:
        yield failure(
            _SUBJECT,
            f'"{slot_name}" is active for process {status.active_pid} on the server, and the subscription does not '
            "stream here",
            remedy="stop the other reader; if it is gone, the server notices that within wal_sender_timeout",
            statement=f"SELECT pg_terminate_backend({status.active_pid});",
        )
    elif status.wal_status == "unreserved":
        yield warning(
            _SUBJECT,
            f'"{slot_name}" has less WAL than max_slot_wal_keep_size keeps: the next checkpoint may remove it',
            remedy="start pgbridge now, or let slots hold more WAL",
            statement="ALTER SYSTEM SET max_slot_wal_keep_size = '…'; SELECT pg_reload_conf();",
        )
    else:
        yield passed(_SUBJECT, f'"{slot_name}" is sound, confirmed up to {status.confirmed_flush_lsn}')
