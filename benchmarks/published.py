"""The workloads of which others publish figures, as they describe them, and what a published table's shape costs.

    taxi       OLake's: inserts into the table of New York's taxi trips, 27 columns.
    sysbench   pg_duckpipe's: sysbench's tables; single inserts, then oltp_read_write's writes.
    single     Wirekite's: commits of a single row each over ten tables, 20 % inserts, 60 % updates, 20 % deletes.
    tpcc       Supabase etl's, cut down: TPC-C's new order, payment and delivery on its nine tables, without waiting.

All values follow from numbers, so each run has the same. Row messages are counted by the server's statistics.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import psycopg

from benchmarks.workloads import IN_TRANSACTIONS, PUBLICATION, Workload, execute

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pgbridge.bridge.demo.server import EmbeddedPostgres

_COUNTED: Final = b"SELECT coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del), 0)::bigint FROM pg_stat_user_tables"

TAXI: Final = """
CREATE TABLE trips (
    id bigint PRIMARY KEY, vendor_id smallint, pickup_at timestamp, dropoff_at timestamp, passenger_count smallint,
    trip_distance double precision, rate_code smallint, store_and_fwd boolean, pickup_location integer,
    dropoff_location integer, payment_type smallint, fare_amount numeric(10,2), extra numeric(10,2),
    mta_tax numeric(10,2), tip_amount numeric(10,2), tolls_amount numeric(10,2), improvement_surcharge numeric(10,2),
    total_amount numeric(10,2), congestion_surcharge numeric(10,2), airport_fee numeric(10,2), trip_type smallint,
    cab_type text, pickup_zone text, dropoff_zone text, driver_id integer, medallion text, loaded_at timestamptz
);
"""
_INSERT_TAXI: Final = """
INSERT INTO trips SELECT i, 1 + i % 2, t, t + i % 3600 * interval '1 s', 1 + i % 6, sqrt(i % 10007), 1 + i % 6,
    i % 50 = 0, 1 + i * 7 % 265, 1 + i * 13 % 265, 1 + i % 4, i % 7919 / 100.0, i % 3 / 2.0, 0.5, i % 1009 / 100.0,
    i % 13 / 2.0, 0.3, i % 9973 / 100.0, 2.5, i % 2 * 1.25, 1 + i % 2, 'yellow', 'zone ' || i * 7 % 265,
    'zone ' || i * 13 % 265, i % 50021, 'M' || i % 13007, timestamptz '2026-01-01 00:00Z'
FROM generate_series($1, $2) i, LATERAL (SELECT timestamp '2025-01-01' + i * interval '1.1 s') AS pickup (t)
"""

_SYSBENCH_ROWS: Final = 100_000
_SYSBENCH: Final = f"""
DO $$ BEGIN
    FOR t IN 1 .. 4 LOOP
        EXECUTE format('CREATE TABLE sbtest%s (id integer PRIMARY KEY, k integer, c char(120), pad char(60))', t);
        EXECUTE format('CREATE INDEX ON sbtest%s (k)', t);
        EXECUTE format('INSERT INTO sbtest%s SELECT i, i * 7919 %% {_SYSBENCH_ROWS}, repeat(md5(i::text), 3),
            md5(i::text) FROM generate_series(1, {_SYSBENCH_ROWS}) i', t);
    END LOOP;
END $$;
CREATE PROCEDURE sysbench(inserts bigint, mixed bigint) LANGUAGE plpgsql AS $$
DECLARE t integer; here integer;
BEGIN
    FOR i IN 1 .. inserts LOOP
        EXECUTE format('INSERT INTO sbtest%s VALUES ($1, $2, $3, $4)', 1 + i % 4)
            USING {_SYSBENCH_ROWS} + i, i % 1000, repeat(md5(i::text), 3), md5(i::text);
        COMMIT;
    END LOOP;
    FOR i IN 1 .. mixed LOOP
        t := 1 + i % 4;
        here := 1 + i * 7919::bigint % {_SYSBENCH_ROWS};
        EXECUTE format('UPDATE sbtest%s SET k = k + 1 WHERE id = $1', t) USING here;
        EXECUTE format('UPDATE sbtest%s SET c = $2 WHERE id = $1', t)
            USING 1 + i * 104729::bigint % {_SYSBENCH_ROWS}, repeat(md5((-i)::text), 3);
        EXECUTE format('DELETE FROM sbtest%s WHERE id = $1', t) USING here;
        EXECUTE format('INSERT INTO sbtest%s VALUES ($1, $2, $3, $4)', t)
            USING here, i % 1000, repeat(md5(i::text), 3), md5(i::text);
        COMMIT;
    END LOOP;
END $$;
"""

_SINGLE_ROWS: Final = 50_000


def _single(tables: int) -> str:
    """Tables of Wirekite's kind, and the procedure that changes them."""
    return f"""
DO $$ BEGIN
    FOR t IN 1 .. {tables} LOOP
        EXECUTE format('CREATE TABLE wire%s (id integer PRIMARY KEY, n bigint, amount numeric(12,2), name text,
            at timestamptz)', t);
        EXECUTE format('INSERT INTO wire%s SELECT i, i, i / 100.0, md5(i::text), timestamptz ''2026-01-01 00:00Z''
            FROM generate_series(1, {_SINGLE_ROWS * 10 // tables}) i', t);
    END LOOP;
END $$;
CREATE PROCEDURE single(total bigint) LANGUAGE plpgsql AS $$
DECLARE here integer; t integer;
BEGIN
    FOR i IN 1 .. total LOOP
        t := 1 + i % {tables};
        here := i / {tables} * 31 % {_SINGLE_ROWS * 10 // tables};
        CASE i / {tables} % 5
        WHEN 0 THEN
            EXECUTE format('INSERT INTO wire%s VALUES ($1, $2, $3, $4, $5)', t)
                USING {_SINGLE_ROWS * 10} + i, i, i / 100.0, md5(i::text), timestamptz '2026-01-01 00:00Z';
        WHEN 4 THEN
            EXECUTE format('DELETE FROM wire%s WHERE id = $1', t) USING {_SINGLE_ROWS * 10} + i - 4 * {tables};
        ELSE
            EXECUTE format('UPDATE wire%s SET n = n + 1, amount = amount + 1 WHERE id = $1', t) USING 1 + here;
        END CASE;
        COMMIT;
    END LOOP;
END $$;
"""


_TPCC: Final = """
CREATE TABLE warehouse (w_id integer PRIMARY KEY, w_name text, w_tax numeric(4,4), w_ytd numeric(12,2));
CREATE TABLE district (d_w_id integer, d_id integer, d_tax numeric(4,4), d_ytd numeric(12,2), d_next_o_id integer,
    PRIMARY KEY (d_w_id, d_id));
CREATE TABLE customer (c_w_id integer, c_d_id integer, c_id integer, c_last text, c_balance numeric(12,2),
    c_ytd_payment numeric(12,2), c_payment_cnt integer, c_data text, PRIMARY KEY (c_w_id, c_d_id, c_id));
CREATE TABLE history (h_c_id integer, h_c_d_id integer, h_c_w_id integer, h_date timestamptz, h_amount numeric(6,2),
    h_data text);
CREATE TABLE item (i_id integer PRIMARY KEY, i_name text, i_price numeric(5,2), i_data text);
CREATE TABLE stock (s_w_id integer, s_i_id integer, s_quantity integer, s_ytd integer, s_order_cnt integer, s_dist text,
    PRIMARY KEY (s_w_id, s_i_id));
CREATE TABLE orders (o_w_id integer, o_d_id integer, o_id integer, o_c_id integer, o_entry_d timestamptz,
    o_carrier_id integer, o_ol_cnt integer, PRIMARY KEY (o_w_id, o_d_id, o_id));
CREATE TABLE new_order (no_w_id integer, no_d_id integer, no_o_id integer, PRIMARY KEY (no_w_id, no_d_id, no_o_id));
CREATE TABLE order_line (ol_w_id integer, ol_d_id integer, ol_o_id integer, ol_number integer, ol_i_id integer,
    ol_delivery_d timestamptz, ol_quantity integer, ol_amount numeric(6,2), ol_dist_info text,
    PRIMARY KEY (ol_w_id, ol_d_id, ol_o_id, ol_number));
INSERT INTO warehouse SELECT w, 'warehouse ' || w, 0.05, 300000 FROM generate_series(1, 2) w;
INSERT INTO district SELECT w, d, 0.07, 30000, 1 FROM generate_series(1, 2) w, generate_series(1, 10) d;
INSERT INTO customer SELECT w, d, c, 'last' || c, -10, 10, 1, repeat(md5(c::text), 8)
    FROM generate_series(1, 2) w, generate_series(1, 10) d, generate_series(1, 3000) c;
INSERT INTO item SELECT i, 'item ' || i, 1 + i % 100, md5(i::text) FROM generate_series(1, 100000) i;
INSERT INTO stock SELECT w, i, 10 + i % 90, 0, 0, left(md5(i::text), 24)
    FROM generate_series(1, 2) w, generate_series(1, 100000) i;
CREATE PROCEDURE tpcc(total bigint) LANGUAGE plpgsql AS $$
DECLARE w integer; d integer; c integer; o integer; lines integer; paid numeric(6,2); at timestamptz;
BEGIN
    FOR i IN 1 .. total LOOP
        w := 1 + i % 2;
        d := 1 + i / 2 % 10;
        c := 1 + i * 7919::bigint % 3000;
        at := timestamptz '2026-01-01 00:00Z' + i * interval '1 ms';
        CASE
        WHEN i % 100 < 47 THEN  -- new order
            lines := 5 + i % 11;
            UPDATE district SET d_next_o_id = d_next_o_id + 1 WHERE d_w_id = w AND d_id = d
                RETURNING d_next_o_id - 1 INTO o;
            INSERT INTO orders VALUES (w, d, o, c, at, NULL, lines);
            INSERT INTO new_order VALUES (w, d, o);
            FOR n IN 1 .. lines LOOP
                UPDATE stock SET s_quantity = CASE WHEN s_quantity > 14 THEN s_quantity - 5 ELSE s_quantity + 86 END,
                    s_ytd = s_ytd + 5, s_order_cnt = s_order_cnt + 1
                    WHERE s_w_id = w AND s_i_id = 1 + (i * 31 + n * 1009) % 100000;
                INSERT INTO order_line VALUES (w, d, o, n, 1 + (i * 31 + n * 1009) % 100000, NULL, 5, n * 5, 'x');
            END LOOP;
        WHEN i % 100 < 93 THEN  -- payment
            paid := 1 + i % 5000 / 10.0;
            UPDATE warehouse SET w_ytd = w_ytd + paid WHERE w_id = w;
            UPDATE district SET d_ytd = d_ytd + paid WHERE d_w_id = w AND d_id = d;
            UPDATE customer SET c_balance = c_balance - paid, c_ytd_payment = c_ytd_payment + paid,
                c_payment_cnt = c_payment_cnt + 1 WHERE c_w_id = w AND c_d_id = d AND c_id = c;
            INSERT INTO history VALUES (c, d, w, at, paid, 'payment ' || i);
        ELSE  -- delivery, of one district
            SELECT min(no_o_id) INTO o FROM new_order WHERE no_w_id = w AND no_d_id = d;
            DELETE FROM new_order WHERE no_w_id = w AND no_d_id = d AND no_o_id = o;
            UPDATE orders SET o_carrier_id = 1 + i % 10 WHERE o_w_id = w AND o_d_id = d AND o_id = o;
            UPDATE order_line SET ol_delivery_d = at WHERE ol_w_id = w AND ol_d_id = d AND ol_o_id = o;
            UPDATE customer SET c_balance = c_balance + 1 WHERE c_w_id = w AND c_d_id = d AND c_id = c;
        END CASE;
        COMMIT;
    END LOOP;
END $$;
"""


def _prepare(server: EmbeddedPostgres, dbname: str, *, script: str) -> None:
    execute(server, dbname, script, IN_TRANSACTIONS, f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES")


def _load(
    server: EmbeddedPostgres, dbname: str, scale: float, *, call: str, transactions: tuple[int, ...]
) -> tuple[int, int]:
    """Call a procedure with numbers of transactions, cut to the scale; it commits that often."""
    numbers = [max(1, round(number * scale)) for number in transactions]
    before = counted(server, dbname)
    execute(server, dbname, f"CALL {call.format(*numbers)}")
    return counted(server, dbname) - before, sum(numbers)


def counted(server: EmbeddedPostgres, dbname: str) -> int:
    """How many rows were inserted, updated and deleted in a database; who did it has ended its session."""
    with psycopg.connect(server.conninfo(dbname), autocommit=True) as connection:
        row = connection.execute(_COUNTED).fetchone()
        assert row is not None
        return int(row[0])


def _load_taxi(server: EmbeddedPostgres, dbname: str, scale: float) -> tuple[int, int]:
    rows, each = max(1, round(10_000_000 * scale)), 10_000
    execute(server, dbname, f"CALL in_transactions($statement${_INSERT_TAXI}$statement$, {rows}, {each})")
    return rows, -(-rows // each)


def _workload(name: str, text: str, script: str, call: str, *transactions: int) -> Workload:
    return Workload(name, text, partial(_prepare, script=script), partial(_load, call=call, transactions=transactions))


PUBLISHED: Final[Mapping[str, Workload]] = {
    workload.name: workload
    for workload in (
        Workload(
            "taxi",
            "as OLake has it: the table of taxi trips, 27 columns; 10 M inserts in transactions of 10 000",
            partial(_prepare, script=TAXI),
            _load_taxi,
        ),
        _workload(
            "sysbench",
            "as pg_duckpipe has it: four sysbench tables of 100 000 rows; 200 k single inserts, then 50 k transactions "
            "of oltp_read_write's two updates, delete and insert",
            _SYSBENCH,
            "sysbench({}, {})",
            *(200_000, 50_000),
        ),
        _workload(
            "single",
            "as Wirekite has it: 500 k commits of a row over ten tables of 50 000 rows, 20 % inserts, 60 % updates and "
            "20 % deletes",
            _single(10),
            "single({})",
            500_000,
        ),
        _workload(
            "tpcc",
            "as Supabase etl has it, cut down: TPC-C's new order (47 %), payment (46 %) and delivery (7 %) on its nine "
            "tables, two warehouses; 40 k transactions",
            _TPCC,
            "tpcc({})",
            40_000,
        ),
    )
}
"""By name."""


# --- what a table's shape costs ---------------------------------------------------------------------------------------


def _wide(columns: int) -> str:
    numbers = ", ".join(f"c{number} bigint" for number in range(columns - 2))
    values = ", ".join(f"i + {number}" for number in range(columns - 2))
    return f"""
CREATE TABLE wide (id bigint PRIMARY KEY, n bigint, {numbers});
INSERT INTO wide SELECT i, i, {values} FROM generate_series(1, 200000) i;
CREATE PROCEDURE changed(total bigint) LANGUAGE plpgsql AS $$ BEGIN
    FOR low IN 1 .. total * 100 BY 100 LOOP
        UPDATE wide SET n = n + 1 WHERE id BETWEEN low AND low + 99;
        COMMIT;
    END LOOP;
END $$;
"""


def _large(rows: int) -> str:
    return f"""
CREATE TABLE large (id bigint PRIMARY KEY, n bigint, name text, at timestamptz);
INSERT INTO large SELECT i, i, md5(i::text), timestamptz '2026-01-01 00:00Z' FROM generate_series(1, {rows}) i;
CREATE PROCEDURE changed(total bigint) LANGUAGE plpgsql AS $$ BEGIN
    FOR i IN 1 .. total LOOP
        UPDATE large SET n = n + 1
            WHERE id IN (SELECT 1 + (i * 100 + j) * 7919::bigint % {rows} FROM generate_series(1, 100) j);
        COMMIT;
    END LOOP;
END $$;
"""


SHAPES: Final[Mapping[str, Mapping[int, Workload]]] = {
    "columns": {
        columns: _workload(
            f"wide{columns}",
            f"200 k updates, 100 in a transaction, of {columns} columns",
            _wide(columns),
            "changed({})",
            2_000,
        )
        for columns in (5, 25, 100)
    },
    "rows": {
        rows: _workload(
            f"large{rows}",
            f"100 k updates, 100 in a transaction, all over {rows} rows",
            _large(rows),
            "changed({})",
            1_000,
        )
        for rows in (100_000, 1_000_000, 5_000_000)
    },
    "tables": {
        tables: _workload(
            f"tables{tables}",
            f"100 k commits of a single row over {tables} tables",
            _single(tables),
            "single({})",
            100_000,
        )
        for tables in (1, 10, 100)
    },
}
"""What the cost is drawn against, by the quantity: a workload for each value."""
