"""docs/protocol.md: its programs, run one after the other on a real server."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = (Path(__file__).parents[1] / "docs" / "protocol.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_programs_of_the_page(publisher):
    slot = f"reader_{publisher.name}"[:63].lower()
    publisher.execute("CREATE TABLE orders (id int PRIMARY KEY, note text, price numeric(9, 2))")
    publisher.execute("CREATE TABLE others (id int PRIMARY KEY); CREATE PUBLICATION shop FOR TABLE orders, others")
    publisher.query(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
    publisher.execute("INSERT INTO orders VALUES (1, 'a', 1.5), (2, NULL, NULL); UPDATE orders SET id = 3 WHERE id = 2")
    publisher.execute("INSERT INTO others VALUES (7)")
    names: dict[str, Any] = {"connection": publisher.conninfo}
    for program in PROGRAMS:
        exec(compile(program.replace("'reader'", f"'{slot}'"), "protocol.md", "exec"), names)
    kinds = [type(message).__name__ for message in names["messages"]]
    assert kinds[:6] == ["Begin", "Relation", "Insert", "Insert", "Update", "Commit"]
    assert kinds[6:] == ["Begin", "Relation", "Insert", "Commit"]
    assert names["rows"]["new_0"].to_pylist() == [1, 2, 3]
    assert names["rows"]["old_0"].to_pylist() == [None, None, 2]
    assert [str(value) for value in names["rows"]["new_2"].to_pylist()] == ["1.50", "None", "None"]
