"""Names that PostgreSQL allows, and that attack whoever does not take them as names."""

from __future__ import annotations

from typing import Final

NAMES: Final = (
    '.a"; drop table x; --',
    "../../etc/passwd",
    "<script>alert(1)</script>",
    "ü漢🐘" * 7,  # 63 bytes, the longest name
    "back`tick ${spark.app.name} \\0 \\u0000 %00",
    "new\nline\r\ttab \x1b[31mred\x07",
    "_it's %s {0} $1 a.b:c [/bold]@v1",
    " *?[a-z]{x,y} #=&; .",
)
