-- What is published now, and what subscribed tables are now, as one document.
-- Parameters: publications text[], relids oid[] (of subscribed tables), namespaces text[], names text[] (of subscribed
--             tables, by pairs: a table of that name counts, too), known text (the last digest; NULL for none)
-- Returns: digest text, picture text (NULL if the digest is `known`); a JSON object of
--          publications: {name: [oid, actions (i, u, d, t), via_root]}
--          published: [[relid, publication, [members] (of it and its ancestors; null under FOR ALL TABLES), digest of
--                     the column list or null, digest of the row filter or null (both of the nearest FOR TABLE)]]
--          tables: {relid: {name: [namespace, name], ancestors: [relid], identity: d | n | f | i,
--                   nullable: [columns of the identity whose NOT NULL is not validated],
--                   types: [oid],
--                   partitions: [[relid, namespace.name, parent's relid, leaf, attached, has rows, xid]]}}
--          types: {oid: [namespace.name, typtype, [[oid or attnum, label or attribute]], [oids that it consists of]]}
--          A member is text: a table's oid in pg_publication_rel; or a schema's in pg_publication_namespace, and the
--          transaction that put the table there. What leaves a publication and comes back is another member.
--          `attached`: it became a partition after it was created, by `xid`; only then `has rows` is looked at.
-- Lowest version: 14
WITH RECURSIVE publication AS (
    SELECT p.oid, p.pubname::text AS name, p.pubviaroot AS via_root,
           concat(CASE WHEN p.pubinsert THEN 'i' END, CASE WHEN p.pubupdate THEN 'u' END,
                  CASE WHEN p.pubdelete THEN 'd' END, CASE WHEN p.pubtruncate THEN 't' END) AS actions
      FROM pg_publication p
     WHERE p.pubname = ANY (%(publications)s::text[])
), schema_member AS MATERIALIZED (  -- else it would be looked up again for each table
    -- Through pg_depend, because version 14 has no pg_publication_namespace.
    SELECT p.oid AS publication, s.objid AS oid, s.refobjid AS namespace
      FROM publication p
           JOIN pg_depend m ON m.refclassid = 'pg_publication'::regclass AND m.refobjid = p.oid
                AND m.classid = to_regclass('pg_publication_namespace')
           JOIN pg_depend s ON s.classid = m.classid AND s.objid = m.objid AND s.refclassid = 'pg_namespace'::regclass
), published AS (
    SELECT gpt.relid, p.name AS publication, m.members, md5(m.attrs) AS columns, md5(m.filter) AS row_filter
      FROM publication p
           CROSS JOIN LATERAL pg_get_publication_tables(p.name) AS gpt
           CROSS JOIN LATERAL (
               SELECT jsonb_agg(member.id ORDER BY member.id) AS members,
                      (array_agg(member.rule ->> 'prattrs' ORDER BY above.level)
                          FILTER (WHERE member.rule IS NOT NULL))[1] AS attrs,
                      -- Before version 17 a filter's tree has locations within the statement that made it. Not
                      -- through pg_get_expr, by which a renamed column would be another filter.
                      (array_agg(regexp_replace(member.rule ->> 'prqual', ':location \d+', ':location -1', 'g')
                                 ORDER BY above.level) FILTER (WHERE member.rule IS NOT NULL))[1] AS filter
                 FROM (SELECT gpt.relid, 0 AS level
                        UNION ALL
                       SELECT a.relid, a.level
                         FROM pg_partition_ancestors(gpt.relid) WITH ORDINALITY AS a (relid, level)
                        WHERE a.relid <> gpt.relid) AS above
                      CROSS JOIN LATERAL (
                          -- Through jsonb, because version 14 has neither lists nor filters.
                          SELECT r.oid::text AS id, to_jsonb(r) AS rule
                            FROM pg_publication_rel r
                           WHERE r.prrelid = above.relid AND r.prpubid = p.oid
                           UNION ALL
                          -- SET SCHEMA writes the row in pg_depend anew.
                          SELECT concat(s.oid, '/', d.xmin), NULL
                            FROM schema_member s
                                 JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = above.relid
                                      AND d.objsubid = 0 AND d.refclassid = 'pg_namespace'::regclass
                                      AND d.refobjid = s.namespace
                           WHERE s.publication = p.oid
                      ) AS member
           ) AS m
), wanted AS (
    SELECT relid FROM published
     UNION
    SELECT unnest(%(relids)s::oid[])
     UNION
    SELECT c.oid
      FROM unnest(%(namespaces)s::text[], %(names)s::text[]) AS s (namespace, name)
           JOIN pg_namespace n ON n.nspname = s.namespace
           JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = s.name
), relation AS (
    SELECT c.oid, n.nspname::text AS namespace, c.relname::text AS name, c.relreplident::text AS identity, c.relkind
      FROM wanted w
           JOIN pg_class c ON c.oid = w.relid
           JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE c.relkind IN ('r', 'p')
), node AS (
    SELECT r.oid, p.relid, p.parentrelid AS parent, p.isleaf, i.xmin::text AS xid,
           i.xmin::text <> a.xmin::text AS attached
      FROM relation r
           CROSS JOIN LATERAL pg_partition_tree(r.oid) AS p
           JOIN pg_inherits i ON i.inhrelid = p.relid AND i.inhparent = p.parentrelid AND NOT i.inhdetachpending
           -- A system column's row is written when the table is created, and never again.
           JOIN pg_attribute a ON a.attrelid = p.relid AND a.attnum = -6
     WHERE r.relkind = 'p' AND p.relid <> r.oid
), partition AS (
    SELECT n.oid, jsonb_agg(jsonb_build_array(n.relid::int8, s.nspname || '.' || c.relname, n.parent::int8, n.isleaf,
                                              n.attached,
                                              CASE WHEN n.attached THEN EXISTS (
                                                  SELECT FROM pg_partition_tree(n.relid) AS leaf
                                                   WHERE leaf.isleaf AND pg_relation_size(leaf.relid) > 0)
                                              ELSE false END, n.xid)
                            ORDER BY n.relid) AS partitions
      FROM node n
           JOIN pg_class c ON c.oid = n.relid
           JOIN pg_namespace s ON s.oid = c.relnamespace
     GROUP BY n.oid
), nullable AS (
    SELECT r.oid, jsonb_agg(DISTINCT a.attname) AS columns
      FROM (SELECT oid, oid AS relid FROM relation UNION ALL SELECT oid, relid FROM node) AS r
           JOIN pg_constraint k ON k.conrelid = r.relid AND k.contype = 'n' AND NOT k.convalidated
           JOIN pg_class c ON c.oid = r.relid
           JOIN pg_index i ON i.indrelid = r.relid
                AND CASE c.relreplident WHEN 'i' THEN i.indisreplident WHEN 'd' THEN i.indisprimary END
           JOIN pg_attribute a ON a.attrelid = r.relid AND a.attnum = k.conkey[1]
     -- indkey begins at 0; its columns from indnkeyatts on are INCLUDE columns, not part of the key.
     WHERE k.conkey[1] = ANY ((i.indkey::int2[])[:i.indnkeyatts - 1])
     GROUP BY r.oid
), used AS (
    SELECT r.oid, jsonb_agg(DISTINCT a.atttypid::int8) AS types
      FROM relation r
           JOIN pg_attribute a ON a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped
     WHERE a.atttypid >= 16384  -- FirstNormalObjectId: built-in types do not change
     GROUP BY r.oid
), type_in_use AS (
    SELECT DISTINCT (jsonb_array_elements(types) #>> '{}')::oid AS oid FROM used
     UNION
    SELECT made_of.oid
      FROM type_in_use
           JOIN pg_type t ON t.oid = type_in_use.oid
           -- Through jsonb, because servers before 14 have no multiranges.
           LEFT JOIN pg_range g ON t.oid IN (g.rngtypid, (to_jsonb(g) ->> 'rngmultitypid')::oid)
           LEFT JOIN pg_attribute a
                  ON a.attrelid = t.typrelid AND t.typrelid <> 0 AND a.attnum > 0 AND NOT a.attisdropped
           CROSS JOIN LATERAL (VALUES (t.typbasetype), (t.typelem), (g.rngsubtype), (a.atttypid)) AS made_of (oid)
     WHERE made_of.oid >= 16384
), document AS (
    SELECT jsonb_build_object(
        'publications', (SELECT jsonb_object_agg(name, jsonb_build_array(oid::int8, actions, via_root))
                           FROM publication),
        'published', (SELECT jsonb_agg(jsonb_build_array(relid::int8, publication, members, columns, row_filter)
                                       ORDER BY relid, publication) FROM published),
        'tables', (SELECT jsonb_object_agg(r.oid, jsonb_build_object(
                              'name', jsonb_build_array(r.namespace, r.name), 'identity', r.identity,
                              'ancestors', (SELECT coalesce(jsonb_agg(a.relid::oid::int8), '[]')
                                              FROM pg_partition_ancestors(r.oid) AS a WHERE a.relid <> r.oid),
                              'nullable', coalesce(n.columns, '[]'), 'types', coalesce(u.types, '[]'),
                              'partitions', coalesce(p.partitions, '[]')))
                     FROM relation r
                          LEFT JOIN nullable n ON n.oid = r.oid
                          LEFT JOIN used u ON u.oid = r.oid
                          LEFT JOIN partition p ON p.oid = r.oid),
        'types', (SELECT jsonb_object_agg(t.oid, jsonb_build_array(
                             s.nspname || '.' || t.typname, t.typtype::text,
                             CASE t.typtype
                                  WHEN 'e' THEN (SELECT jsonb_agg(jsonb_build_array(e.oid::int8, e.enumlabel)
                                                                  ORDER BY e.enumsortorder)
                                                   FROM pg_enum e WHERE e.enumtypid = t.oid)
                                  WHEN 'c' THEN (SELECT jsonb_agg(jsonb_build_array(a.attnum, a.attname)
                                                                  ORDER BY a.attnum)
                                                   FROM pg_attribute a
                                                  WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped)
                             END,
                             (SELECT jsonb_agg(DISTINCT part.oid::int8)
                                FROM (SELECT t.typbasetype AS oid UNION ALL SELECT t.typelem
                                       UNION ALL
                                      SELECT g.rngsubtype FROM pg_range g
                                       WHERE t.oid IN (g.rngtypid, (to_jsonb(g) ->> 'rngmultitypid')::oid)
                                       UNION ALL
                                      SELECT a.atttypid FROM pg_attribute a
                                       WHERE t.typrelid <> 0 AND a.attrelid = t.typrelid AND a.attnum > 0
                                         AND NOT a.attisdropped) AS part
                               WHERE part.oid >= 16384)))
                     FROM type_in_use
                          JOIN pg_type t ON t.oid = type_in_use.oid
                          JOIN pg_namespace s ON s.oid = t.typnamespace)
    )::text AS picture
)
SELECT md5(picture) AS digest, CASE WHEN md5(picture) IS DISTINCT FROM %(known)s::text THEN picture END AS picture
  FROM document
