"""The demo's shop, and the load on it. The load is seeded: the same number of steps always leaves the same rows.

One connection runs the transactions, so their order is fixed. They choose rows by ids from earlier steps; a statement
for a row that is deleted finds nothing.
"""

from __future__ import annotations

import datetime as dt
import random
import threading
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg.types.json import Jsonb
from psycopg.types.range import TimestamptzRange

if TYPE_CHECKING:
    from collections.abc import Callable

SCHEMA: Final = Path(__file__).with_name("shop.sql")
"""The statements that create the shop's tables, first rows and publications."""

_COUNTRIES = ("DE", "ES", "FR", "PT")
_INTERESTS = ("books", "bikes", "plants", "tea", 'it\'s, "quoted"', "azulejos", "茶")
_EPOCH = dt.datetime(2026, 7, 1, tzinfo=dt.UTC)
_ROLLED_BACK = 0.05  # the share of transactions that end in ROLLBACK
_RECENT_ORDERS = 3000  # orders that still change
_CATCH_UP_S = 0.25  # a load that is further behind its rate does not catch up


def create(conninfo: str, scale: int = 1) -> None:
    """Create the shop in an empty database, with 45 300 rows times the scale."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("SELECT set_config('shop.scale', %s, false)", (str(scale),))
        connection.execute(SCHEMA.read_bytes())


class ShopLoad:
    """Customers, orders and page views, as a stream of transactions.

    Args:
        conninfo: The shop's database, as `create` left it.
        seed: Determines the transactions.

    Attributes:
        committed: Transactions committed.
        rolled_back: Transactions rolled back.
        error: The error that ended the thread before `stop`.
    """

    def __init__(self, conninfo: str, seed: int = 18) -> None:
        self.committed = 0
        self.rolled_back = 0
        self.error: Exception | None = None
        self._random = random.Random(seed)
        self._connection = psycopg.connect(conninfo, autocommit=True)
        self._last_customer = self._number("SELECT max(id) FROM customers")
        self._last_order = self._number("SELECT max(id) FROM orders")
        self._skus = [sku for (sku,) in self._connection.execute("SELECT sku FROM products ORDER BY sku")]
        self._on_commit: list[Callable[[], None]] = []
        self._transactions, self._weights = zip(*self._mix().items(), strict=True)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def _mix(self) -> dict[Callable[[], None], int]:
        """Return the kinds of transactions with their weights."""
        return {
            self._place_order: 30,
            self._view_pages: 24,
            self._advance_order: 20,
            self._edit_customer: 5,
            self._reprice_product: 5,
            self._add_customer: 4,
            self._cancel_order: 4,
            self._change_vip: 3,
            self._renumber_lines: 2,
            self._order_after_all: 2,
            self._describe_product: 1,
            self._rename_product: 1,
            self._forget_customer: 1,
        }

    def step(self) -> None:
        """Run one transaction; roll back some."""
        (transaction,) = self._random.choices(self._transactions, self._weights)
        undo = self._random.random() < _ROLLED_BACK
        self._on_commit.clear()
        with self._connection.transaction(force_rollback=undo):
            transaction()
        if undo:
            self.rolled_back += 1
            return
        self.committed += 1
        for change in self._on_commit:
            change()

    def start(self, per_second: float) -> None:
        """Run transactions in a thread until `stop`, at most so many per second."""
        self._thread = threading.Thread(target=self._run, args=(per_second,), name="shop load", daemon=True)
        self._thread.start()

    def _run(self, per_second: float) -> None:
        due_s = time.monotonic()
        try:
            while not self._stop.wait(due_s - time.monotonic()):
                self.step()
                due_s = max(due_s + 1 / per_second, time.monotonic() - _CATCH_UP_S)
        except Exception as error:  # noqa: BLE001 - raised again by `check`, in the thread that waits
            self.error = error

    def check(self) -> None:
        """Raise the error that ended the thread before `stop`."""
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        """The same as `stop`."""
        self.stop()

    def stop(self) -> None:
        """End after the current transaction, and close the connection."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._connection.close()

    # --- transactions ---------------------------------------------------------------------------------------------

    def _place_order(self) -> None:
        """Three tables in one transaction."""
        placed_at = self._time()
        customer = self._customer()
        row = self._connection.execute(
            "INSERT INTO orders (customer_id, status, total, delivery, placed_at)"
            " SELECT id, 'new', 0, %s, %s FROM customers WHERE id = %s RETURNING id",
            (TimestamptzRange(placed_at, placed_at + dt.timedelta(hours=4)), placed_at, customer),
        ).fetchone()
        if row is None:
            return
        (order,) = row
        self._last_order = order
        for line_no in range(1, self._random.randint(1, 4) + 1):
            self._do(
                "INSERT INTO order_items SELECT %s, %s, sku, %s, price FROM products WHERE sku = %s",
                order,
                line_no,
                self._random.randint(1, 5),
                self._random.choice(self._skus),
            )
        self._do(
            "UPDATE orders SET total = (SELECT coalesce(sum(quantity * unit_price), 0)"
            " FROM order_items WHERE order_id = orders.id) WHERE id = %s",
            order,
        )
        self._do(
            "UPDATE customers SET balance = balance - (SELECT total FROM orders WHERE id = %s) WHERE id = %s",
            order,
            customer,
        )

    def _view_pages(self) -> None:
        """Rows without a key; some are equal."""
        viewed_at = self._time().replace(tzinfo=None)
        visitor = f"10.1.{self._random.randint(0, 255)}.{self._random.randint(0, 255)}"
        for _ in range(self._random.randint(1, 5)):
            self._do(
                "INSERT INTO page_views VALUES (%s, %s::inet, %s, %s)",
                viewed_at,
                self._random.choice((visitor, None)),
                self._random.choice(("/", "/cart", "/about")),
                self._random.choice((None, 20, 30)),
            )

    def _advance_order(self) -> None:
        status = self._random.choice(("paid", "shipped", "delivered"))
        shipped_on = self._time().date() if status == "shipped" else None
        self._do(
            "UPDATE orders SET status = %s::order_status, shipped_on = coalesce(%s::date, shipped_on) WHERE id = %s",
            status,
            shipped_on,
            self._order(),
        )

    def _cancel_order(self) -> None:
        self._do("DELETE FROM orders WHERE id = %s", self._order())

    def _renumber_lines(self) -> None:
        """A change of part of the key."""
        self._do("UPDATE order_items SET line_no = line_no + 10 WHERE order_id = %s", self._order())

    def _order_after_all(self) -> None:
        """A subtransaction that is rolled back, within a transaction that is not."""
        with self._connection.transaction(force_rollback=True):
            self._place_order()
        self._place_order()

    def _add_customer(self) -> None:
        row = self._connection.execute(
            "INSERT INTO customers (account, name, country, vip, birthday, interests, preferences, note, created_at)"
            " VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s) RETURNING id",
            (
                uuid.UUID(bytes=self._random.randbytes(16), version=4),
                f"Cliente nº {self._random.randint(1, 10**6)}",
                self._random.choice(_COUNTRIES),
                self._random.random() < 0.1,
                self._random.choice((None, dt.date(1980, 2, 29))),
                self._interests(),
                self._preferences(),
                self._random.choice((None, "", self._long_text())),
                self._time(),
            ),
        ).fetchone()
        if row is not None:
            (self._last_customer,) = row

    def _edit_customer(self) -> None:
        """Sometimes with a new note; else a long note is an unchanged TOAST value, which is not sent."""
        customer = self._customer()
        self._do(
            "UPDATE customers SET interests = %s, preferences = %s WHERE id = %s",
            self._interests(),
            self._preferences(),
            customer,
        )
        if self._random.random() < 0.2:
            self._do("UPDATE customers SET note = %s WHERE id = %s", self._long_text(), customer)

    def _change_vip(self) -> None:
        """Make a customer pass the row filter of vip_pub, or not pass it any more."""
        self._do("UPDATE customers SET vip = NOT vip WHERE id = %s", self._customer())

    def _forget_customer(self) -> None:
        """Delete a customer, with all orders and their lines."""
        self._do("DELETE FROM customers WHERE id = %s", self._customer())

    def _reprice_product(self) -> None:
        """The description is an unchanged TOAST value, which is not sent."""
        self._do(
            "UPDATE products SET price = round(price * %s::numeric, 2) + 0.01, updated_at = %s WHERE sku = %s",
            self._random.choice((0.9, 1.1)),
            self._time(),
            self._random.choice(self._skus),
        )

    def _describe_product(self) -> None:
        self._do(
            "UPDATE products SET description = %s, photo = %s WHERE sku = %s",
            self._long_text(),
            self._random.randbytes(16),
            self._random.choice(self._skus),
        )

    def _rename_product(self) -> None:
        """A change of the key, in this table and by ON UPDATE CASCADE in all lines that name the product."""
        index = self._random.randrange(len(self._skus))
        old = self._skus[index]
        new = f"{old.split('.', maxsplit=1)[0]}.{self._random.randint(1, 10**9)}"
        self._do("UPDATE products SET sku = %s WHERE sku = %s", new, old)
        self._on_commit.append(lambda: self._skus.__setitem__(index, new))

    # --- values ---------------------------------------------------------------------------------------------------

    def _do(self, statement: str, *parameters: Any) -> None:
        self._connection.execute(statement.encode(), parameters)

    def _number(self, query: str) -> int:
        row = self._connection.execute(query.encode()).fetchone()
        return int(row[0]) if row is not None and row[0] is not None else 0

    def _customer(self) -> int:
        return self._random.randint(1, self._last_customer)

    def _order(self) -> int:
        return self._random.randint(max(1, self._last_order - _RECENT_ORDERS), self._last_order)

    def _interests(self) -> list[str]:
        return self._random.sample(_INTERESTS, self._random.randint(0, 3))

    def _preferences(self) -> Jsonb | None:
        language = self._random.choice(("pt", "de", None))
        return None if language is None else Jsonb({"language": language, "columns": self._random.randint(1, 4)})

    def _time(self) -> dt.datetime:
        return _EPOCH + dt.timedelta(microseconds=self._random.randint(0, 10**12))

    def _long_text(self) -> str:
        """A text that becomes a TOAST value, because it does not fit in a row even compressed."""
        return self._random.randbytes(self._random.randint(1500, 4000)).hex()
