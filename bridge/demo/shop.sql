-- The demo's shop: types, tables, first rows, publications. For an empty database, PostgreSQL 15 or later.
-- The setting shop.scale multiplies the rows of all tables but products.
SELECT setseed(0.42);

CREATE TYPE order_status AS ENUM ('new', 'paid', 'shipped', 'delivered');

CREATE TABLE customers (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    account uuid NOT NULL,
    name text NOT NULL,
    country text NOT NULL,
    vip boolean NOT NULL,
    balance numeric(12,2) NOT NULL DEFAULT 0,
    birthday date,
    interests text[] NOT NULL DEFAULT '{}',
    preferences jsonb,
    note text,                      -- often long enough for TOAST
    created_at timestamptz NOT NULL
);
-- vip_pub filters by "vip", so its UPDATEs and DELETEs must carry it: it has to be part of the replica identity.
CREATE UNIQUE INDEX customers_identity ON customers (id, vip);
ALTER TABLE customers REPLICA IDENTITY USING INDEX customers_identity;

CREATE TABLE products (
    sku text PRIMARY KEY,
    name text NOT NULL,
    description text NOT NULL,      -- always long enough for TOAST
    price numeric(10,2) NOT NULL,
    size_cm double precision[],
    photo bytea,
    updated_at timestamptz NOT NULL
);

CREATE TABLE orders (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer_id bigint NOT NULL,
    status order_status NOT NULL,
    total numeric(12,2) NOT NULL,
    delivery tstzrange,
    shipped_on date,
    placed_at timestamptz NOT NULL
);

CREATE TABLE order_items (
    order_id bigint,
    line_no smallint,
    sku text NOT NULL,
    quantity integer NOT NULL,
    unit_price numeric(10,2) NOT NULL,
    PRIMARY KEY (order_id, line_no)
);

-- No key: rows are only ever added, and two of them may be equal.
CREATE TABLE page_views (
    viewed_at timestamp NOT NULL,
    visitor inet,
    page text NOT NULL,
    milliseconds integer
);

INSERT INTO customers (account, name, country, vip, balance, birthday, interests, preferences, note, created_at)
SELECT md5(n::text)::uuid,
       'Customer ' || n,
       (ARRAY['DE', 'ES', 'FR', 'PT'])[1 + floor(random() * 4)],
       n % 4 = 0,
       random() * 500,
       CASE WHEN n % 7 <> 0 THEN date '1950-01-01' + floor(random() * 20000)::int END,
       (ARRAY['books', 'bikes', 'plants', 'it''s, "quoted"'])[1 : n % 5],
       CASE WHEN n % 3 <> 0 THEN jsonb_build_object('newsletter', n % 2 = 0, 'language', 'pt') END,
       CASE WHEN n % 5 = 0 THEN (SELECT string_agg(md5(random()::text), ' ') FROM generate_series(1, 100 + n % 50)) END,
       timestamptz '2026-01-01 00:00:00+00' + floor(random() * 10000000) * interval '1 second'
  FROM generate_series(1, 2000 * current_setting('shop.scale')::int) AS n;

INSERT INTO products (sku, name, description, price, size_cm, photo, updated_at)
SELECT 'SKU-' || to_char(n, 'FM0000'),
       'Product ' || n,
       (SELECT string_agg(md5(random()::text), ' ') FROM generate_series(1, 100 + n % 100)),
       1 + random() * 199,
       CASE WHEN n % 9 <> 0 THEN ARRAY[n / 7.0, 20, NULL] END,
       decode(md5(n::text), 'hex'),
       timestamptz '2026-01-01 00:00:00+00'
  FROM generate_series(1, 300) AS n;

INSERT INTO order_items (order_id, line_no, sku, quantity, unit_price)
SELECT n, line_no, sku, 1 + floor(random() * 5), price
  FROM generate_series(1, 8000 * current_setting('shop.scale')::int) AS n,
       generate_series(1, 1 + n % 4) AS line_no
       JOIN LATERAL (SELECT 'SKU-' || to_char(1 + (n * 7 + line_no * 31) % 300, 'FM0000')) AS p(wanted) ON true
       JOIN products ON sku = wanted;

INSERT INTO orders (customer_id, status, total, delivery, shipped_on, placed_at)
SELECT 1 + floor(random() * 2000 * current_setting('shop.scale')::int),
       (enum_range(NULL::order_status))[1 + floor(random() * 4)],
       total,
       CASE WHEN n % 5 <> 0 THEN tstzrange(t, t + interval '4 hours') END,
       CASE WHEN n % 2 = 0 THEN t::date END,
       t
  FROM generate_series(1, 8000 * current_setting('shop.scale')::int) AS n,
       LATERAL (SELECT timestamptz '2026-06-01 00:00:00+00' + n * interval '97.123456 s') AS o (t),
       LATERAL (SELECT sum(quantity * unit_price) FROM order_items WHERE order_id = n) AS items (total)
 ORDER BY n;

INSERT INTO page_views
SELECT timestamp '2026-06-01 00:00:00' + n * interval '31.5 s',
       CASE WHEN n % 6 <> 0 THEN inet '10.0.0.0' + floor(random() * 100000)::bigint END,
       '/product/' || (1 + floor(random() * 300)),
       nullif(floor(random() * 400), 0)
  FROM generate_series(1, 15000 * current_setting('shop.scale')::int) AS n;

-- Once the rows are there, which takes less time.
CREATE INDEX ON orders (customer_id);
CREATE INDEX ON order_items (sku);
ALTER TABLE orders ADD FOREIGN KEY (customer_id) REFERENCES customers ON DELETE CASCADE;
ALTER TABLE order_items
    ADD FOREIGN KEY (order_id) REFERENCES orders ON DELETE CASCADE,
    ADD FOREIGN KEY (sku) REFERENCES products ON UPDATE CASCADE;

ANALYZE;

CREATE PUBLICATION shop_pub FOR TABLE customers, products, orders, order_items, page_views;
CREATE PUBLICATION vip_pub FOR TABLE customers (id, name, country, vip, balance) WHERE (vip);
