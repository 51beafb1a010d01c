"""PostgreSQL 19's catalog of publications on an older server: views and functions that come before pg_catalog's.

They follow 19's source: the columns of pg_publication.h, pg_publication_rel.h and system_views.sql, and in
pg_publication.c `is_publishable_class`, `GetAllPublicationRelations` and `filter_partitions`.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from pgbridge.bridge.receive.publisher import Publisher

if TYPE_CHECKING:
    from collections.abc import Iterator

CATALOG = """
    CREATE SCHEMA pg19;
    CREATE TABLE pg19.excepted (publication name, relid oid);
    CREATE TABLE pg19.all_sequences (publication name);
    CREATE VIEW pg19.pg_publication AS
        SELECT p.*, EXISTS (SELECT FROM pg19.all_sequences s WHERE s.publication = p.pubname) AS puballsequences
          FROM pg_catalog.pg_publication p;
    CREATE VIEW pg19.pg_publication_rel AS
        SELECT oid, prpubid, prrelid, false AS prexcept, prqual, prattrs FROM pg_catalog.pg_publication_rel
         UNION ALL
        SELECT 0, p.oid, e.relid, true, NULL, NULL
          FROM pg19.excepted e JOIN pg_catalog.pg_publication p ON p.pubname = e.publication;
    CREATE VIEW pg19.pg_replication_slots AS
        SELECT s.*, 'wal_not_flushed'::text AS slotsync_skip_reason FROM pg_catalog.pg_replication_slots s;
    -- a sequence is publishable since ALL SEQUENCES
    CREATE FUNCTION pg19.pg_relation_is_publishable(regclass) RETURNS bool LANGUAGE sql AS $$
        SELECT pg_catalog.pg_relation_is_publishable($1)
               OR EXISTS (SELECT FROM pg_class WHERE oid = $1 AND relkind = 'S') $$;
    CREATE FUNCTION pg19.pg_get_publication_tables(
        VARIADIC publications text[], OUT pubid oid, OUT relid oid, OUT attrs int2vector, OUT qual pg_node_tree
    ) RETURNS SETOF record LANGUAGE sql AS $$
        WITH listed AS (
            SELECT p.oid AS pubid, c.oid AS relid, NULL::pg_node_tree AS qual
              FROM pg_catalog.pg_publication p CROSS JOIN pg_class c
             WHERE p.pubname = ANY ($1) AND p.puballtables AND pg_catalog.pg_relation_is_publishable(c.oid)
               AND CASE WHEN p.pubviaroot THEN NOT c.relispartition ELSE c.relkind = 'r' END
               -- EXCEPT names roots; without publish_via_partition_root its leaves are meant
               AND NOT EXISTS (SELECT FROM pg19.excepted e
                                WHERE e.publication = p.pubname
                                  AND (e.relid = c.oid OR NOT p.pubviaroot AND c.oid IN
                                       (SELECT t.relid::oid FROM pg_partition_tree(e.relid) t)))
             UNION ALL
            SELECT t.pubid, t.relid, t.qual
              FROM pg_catalog.pg_publication p, pg_catalog.pg_get_publication_tables(p.pubname) t
             WHERE p.pubname = ANY ($1) AND NOT p.puballtables
        )
        SELECT l.pubid, l.relid,
               (SELECT string_agg(a.attnum::text, ' ') FROM pg_attribute a
                 WHERE a.attrelid = l.relid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
               )::int2vector,
               l.qual
          FROM listed l
         WHERE NOT EXISTS (SELECT FROM pg_partition_ancestors(l.relid) a
                            WHERE a.relid <> l.relid AND a.relid IN (SELECT o.relid FROM listed o))
               OR NOT EXISTS (SELECT FROM pg_catalog.pg_publication p WHERE p.pubname = ANY ($1) AND p.pubviaroot) $$;
"""


@contextmanager
def publisher_of_19(conninfo: str) -> Iterator[Publisher]:
    """A connection that sees CATALOG, which the database must have, in pg_catalog's place."""
    with Publisher(conninfo, application_name="test") as server:
        server.version = 190000
        server.connection.execute("SET search_path = pg19, pg_catalog")
        yield server
