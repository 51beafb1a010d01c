"""Every fault point x what may have changed when the next life begins: the tables are equal, or a HINT makes them so.

The subscription is killed at the point, in this process. Then its server, its state directory, a table or its slot is
another than before. `test_positions` has what is known to be difficult, with what a refusal has to say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

import pytest

from pgbridge.bridge.catalog import refresh
from pgbridge.bridge.runtime import faults
from pgbridge.bridge.runtime.errors import ApplyError
from tests.faults.lives import equal_or_refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.faults.lives import Lives
    from tests.faults.standby import ForkedServer

TABLES: Final = ("a", "b")
SCHEMA: Final = "".join(
    f"CREATE TABLE {table} (id int PRIMARY KEY, v text, w text); INSERT INTO {table} SELECT n, 'common' "
    "FROM generate_series(1, 5) n;"
    for table in (*TABLES, "c")
)
ROWS: Final = "INSERT INTO {0} SELECT n, 'old primary' FROM generate_series(11, 15) n;"
CHANGES: Final = ROWS + "UPDATE {0} SET v = 'old' WHERE id = 2; DELETE FROM {0} WHERE id = 3;"
OTHERS: Final = (
    "INSERT INTO {0} SELECT n, 'new primary' FROM generate_series(101, 103) n; UPDATE {0} SET v = 'new' WHERE id = 1;"
    "DELETE FROM {0} WHERE id = 4;"
)
LAST: Final = "INSERT INTO {0} VALUES (201, 'last');"
BAD: Final = "INSERT INTO b VALUES (666, 'not for Delta');"
"""Delta's table has a constraint against it, as long as a test wants it to."""


def each(statements: str) -> str:
    """Statements for each of the tables."""
    return "".join(statements.format(table) for table in TABLES)


class Scene:
    """How a subscription of the tables a and b comes to a point: here, by changes of both.

    Args:
        life: The subscription.
        server: Its publisher.
        point: The point.
    """

    number = 1
    stays = False
    options: ClassVar[dict[str, object]] = {}
    tables: tuple[str, ...] = TABLES

    def __init__(self, life: Lives, server: ForkedServer, point: str) -> None:
        self.life, self.server, self.point = life, server, point

    def begin(self) -> None:
        """What is before the backups and the standby."""
        self.life.caught_up()

    def go_on(self) -> None:
        """What is after them, up to the life that is killed."""
        self.server.execute(each(CHANGES))

    def end(self) -> None:
        """Take away what only the point needed; the server may be another one by now."""


class FirstStart(Scene):
    """The tables are copied, one after the other; there are no backups of them."""

    options: ClassVar[dict[str, object]] = {"workers__max_sync_workers": 1}

    def begin(self) -> None:
        """Nothing has happened yet."""

    def go_on(self) -> None:
        """The first start follows, and its second copy."""
        self.number = 2 if self.point == "table_copied" else 1


class Prepared(Scene):
    """A transaction is prepared, and committed after the kill, if the server has it."""

    options: ClassVar[dict[str, object]] = {"two_phase": True}

    def go_on(self) -> None:
        """Prepare it."""
        self.server.execute(f"BEGIN; {each(CHANGES)} PREPARE TRANSACTION 'p'")

    def end(self) -> None:
        """Commit it: a new slot would wait for it."""
        if self.server.query("SELECT 1 FROM pg_prepared_xacts"):
            self.server.execute("COMMIT PREPARED 'p'")


class Undone(Scene):
    """A transaction that Delta does not take in one of its tables."""

    def begin(self) -> None:
        """Have Delta not take it."""
        super().begin()
        self._alter("ADD CONSTRAINT small CHECK (id < 600)")

    def go_on(self) -> None:
        """Write it."""
        self.server.execute(each(CHANGES) + BAD)

    def end(self) -> None:
        """Have Delta take it."""
        self._alter("DROP CONSTRAINT IF EXISTS small")

    def _alter(self, change: str) -> None:
        self.life.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
        self.life.spark.sql(f"ALTER TABLE delta.`{self.life.path('b')}` {change}").collect()


class Skipped(Undone):
    """That transaction is skipped; at the end nothing is left of it on the server, either."""

    def go_on(self) -> None:
        """Skip it. It has INSERTs alone: what they left out can be taken back on the server."""
        self.server.execute(each(ROWS) + BAD)
        error = self.life.live()
        assert isinstance(error, ApplyError), repr(error)
        self.life.bridge.catalog.set_skip_lsn(self.life.name, error.context.finish_lsn)

    def end(self) -> None:
        """Take back on the server what was skipped."""
        super().end()
        self.server.execute(each("DELETE FROM {0} WHERE id BETWEEN 11 AND 15 OR id = 666;"))


class Added(Scene):
    """The table c is added, and changes while it comes."""

    stays = True
    tables = (*TABLES, "c")

    def begin(self) -> None:
        """Ask for it."""
        super().begin()
        self.server.execute("ALTER PUBLICATION pub ADD TABLE c")
        refresh.ask(self.life.bridge.catalog, self.life.name, [None], copy_data=True)

    def go_on(self) -> None:
        """Change all tables."""
        super().go_on()
        self.server.execute(CHANGES.format("c"))


class Altered(Scene):
    """A table gets a column whose rows are filled."""

    def go_on(self) -> None:
        """Add it."""
        self.server.execute(f"ALTER TABLE a ADD COLUMN n int DEFAULT 7; {each(CHANGES)}")


class Waiting(Scene):
    """A table's column gets another type, which its Delta table cannot follow."""

    def go_on(self) -> None:
        """Alter it."""
        self.server.execute(f"ALTER TABLE a ALTER w TYPE int USING length(w); {each(CHANGES)}")


FIRST: Final = ("slot_created", "table_copied")
SCENES: Final[dict[str, type[Scene]]] = {
    **dict.fromkeys(faults.FAULT_POINTS, Scene),
    **dict.fromkeys(FIRST, FirstStart),
    "prepare_kept": Prepared,
    **dict.fromkeys(faults.UNDO_POINTS, Undone),
    "skipped_written": Skipped,
    **dict.fromkeys(faults.REFRESH_POINTS, Added),
    **dict.fromkeys(faults.SCHEMA_POINTS, Altered),
    "table_waits": Waiting,
}

LEFT_OUT: Final = frozenset(
    {*faults.LARGE_POINTS, *faults.MAINTENANCE_POINTS, *faults.MAINTENANCE_UNDO_POINTS, *faults.RECOVERY_POINTS}
    | {*faults.RANGED_COPY_POINTS}
)  # points of tables with many rows or files, which `tests.bridge.apply.test_maintenance_spark` makes: no position;
# of recoveries (`test_takeover`); and of large copies (`tests.bridge.sync.test_ranged_copy`)


def killed(life: Lives, server: ForkedServer) -> None:
    """Nothing else happens."""


def promoted_with_everything(life: Lives, server: ForkedServer) -> None:
    """The standby has all that the primary had."""
    server.save("everything")
    server.switch_to("everything")
    server.execute(each(OTHERS))


def promoted_without_the_tail(life: Lives, server: ForkedServer) -> None:
    """The standby has what there was before the last changes, and gets others."""
    server.switch_to("before")
    server.execute(each(OTHERS))
    server.grow(5)


def state_put_back(life: Lives, server: ForkedServer) -> None:
    """State_dir is from a backup."""
    life.put_back_state()


def state_lost(life: Lives, server: ForkedServer) -> None:
    """State_dir is gone."""
    life.lose_state()


def table_put_back(life: Lives, server: ForkedServer) -> None:
    """A table is from a backup."""
    life.put_back_table("a")


def slot_advanced(life: Lives, server: ForkedServer) -> None:
    """Somebody has confirmed all there is."""
    server.advance_slot(life.name)


EVENTS: Final[tuple[Callable[[Lives, ForkedServer], None], ...]] = (
    killed,
    promoted_with_everything,
    promoted_without_the_tail,
    state_put_back,
    state_lost,
    table_put_back,
    slot_advanced,
)

MATRIX: Final = [
    pytest.param(point, event, id=f"{point}-{event.__name__}")
    for point in SCENES
    for event in EVENTS
    if point not in FIRST or event is not table_put_back  # there is no table yet
]


def test_every_point_has_a_scene():
    lists = [value for name, value in vars(faults).items() if name.endswith("_POINTS")]
    assert {point for points in lists for point in points} == {*SCENES, *LEFT_OUT}


@pytest.mark.soak
@pytest.mark.parametrize(("point", "event"), MATRIX)
def test_killed_and_then(delta_lives, private_server, point, event):
    scene_of = SCENES[point]
    server = private_server
    server.execute(SCHEMA + "CREATE PUBLICATION pub FOR TABLE a, b")
    life = delta_lives(**scene_of.options)
    scene = scene_of(life, server, point)
    scene.begin()
    server.save("before")
    life.save_state()
    if life.path("a").exists():
        life.save_table("a")
    server.grow()
    scene.go_on()
    life.killed_at(point, scene.number, stays=scene.stays)
    event(life, server)
    scene.end()
    server.execute(each(LAST))
    equal_or_refused(life, *scene.tables, positions=0)
