-- The demo's shop: types, tables, some 450 000 first rows, publications, and the load, a transaction at a time.
-- For an empty database, PostgreSQL 15 or later.
SELECT setseed(0.42);

CREATE TYPE order_status AS ENUM ('new', 'paid', 'shipped', 'delivered');

-- A text that becomes a TOAST value, because it does not fit in a row even compressed.
CREATE FUNCTION long_text() RETURNS text LANGUAGE sql AS
$$ SELECT string_agg(md5(random()::text), ' ') FROM generate_series(1, 100 + floor(random() * 100)::int) $$;

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
       CASE WHEN n % 5 = 0 THEN long_text() END,
       timestamptz '2026-01-01 00:00:00+00' + floor(random() * 10000000) * interval '1 second'
  FROM generate_series(1, 20000) AS n;

INSERT INTO products (sku, name, description, price, size_cm, photo, updated_at)
SELECT 'SKU-' || to_char(n, 'FM0000'),
       'Product ' || n,
       long_text(),
       1 + random() * 199,
       CASE WHEN n % 9 <> 0 THEN ARRAY[n / 7.0, 20, NULL] END,
       decode(md5(n::text), 'hex'),
       timestamptz '2026-01-01 00:00:00+00'
  FROM generate_series(1, 300) AS n;

INSERT INTO order_items (order_id, line_no, sku, quantity, unit_price)
SELECT n, line_no, sku, 1 + floor(random() * 5), price
  FROM generate_series(1, 80000) AS n,
       generate_series(1, 1 + n % 4) AS line_no
       JOIN LATERAL (SELECT 'SKU-' || to_char(1 + (n * 7 + line_no * 31) % 300, 'FM0000')) AS p(wanted) ON true
       JOIN products ON sku = wanted;

INSERT INTO orders (customer_id, status, total, delivery, shipped_on, placed_at)
SELECT 1 + floor(random() * 20000),
       (enum_range(NULL::order_status))[1 + floor(random() * 4)],
       total,
       CASE WHEN n % 5 <> 0 THEN tstzrange(t, t + interval '4 hours') END,
       CASE WHEN n % 2 = 0 THEN t::date END,
       t
  FROM generate_series(1, 80000) AS n,
       LATERAL (SELECT timestamptz '2026-06-01 00:00:00+00' + n * interval '97.123456 s') AS o (t),
       LATERAL (SELECT sum(quantity * unit_price) FROM order_items WHERE order_id = n) AS items (total)
 ORDER BY n;

INSERT INTO page_views
SELECT timestamp '2026-06-01 00:00:00' + n * interval '31.5 s',
       CASE WHEN n % 6 <> 0 THEN inet '10.0.0.0' + floor(random() * 100000)::bigint END,
       '/product/' || (1 + floor(random() * 300)),
       nullif(floor(random() * 400), 0)
  FROM generate_series(1, 150000) AS n;

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

CREATE FUNCTION place_order(customer bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    placed bigint;
BEGIN
    INSERT INTO orders (customer_id, status, total, delivery, placed_at)
    SELECT id, 'new', 0, tstzrange(now(), now() + interval '4 hours'), now() FROM customers WHERE id = customer
    RETURNING id INTO placed;
    INSERT INTO order_items
    SELECT placed, row_number() OVER (), sku, 1 + floor(random() * 5), price
      FROM (SELECT sku, price FROM products ORDER BY random() LIMIT 1 + floor(random() * 4)::int) AS chosen
     WHERE placed IS NOT NULL;
    UPDATE orders SET total = (SELECT sum(quantity * unit_price) FROM order_items WHERE order_id = placed)
     WHERE id = placed;
    UPDATE customers SET balance = balance - (SELECT total FROM orders WHERE id = placed) WHERE id = customer;
END $$;

-- A transaction of the load. It chooses rows by their ids; a statement for a row that is deleted changes nothing.
CREATE FUNCTION step() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    dice float8 := random() * 100;
    a_customer bigint := 1 + floor(random() * (SELECT max(id) FROM customers));
    an_order bigint := (SELECT max(id) FROM orders) - floor(random() * 3000);
    a_product text := (SELECT sku FROM products OFFSET floor(random() * 300)::int LIMIT 1);
BEGIN
    CASE
    WHEN dice < 30 THEN  -- changes of three tables
        PERFORM place_order(a_customer);
    WHEN dice < 54 THEN  -- rows without a key; some are equal
        INSERT INTO page_views
        SELECT now(), CASE WHEN n > 1 THEN inet '10.1.0.0' + a_customer END, '/cart', nullif(n / 2 * 20, 0)
          FROM generate_series(1, 1 + floor(random() * 5)::int) AS n;
    WHEN dice < 74 THEN
        UPDATE orders SET status = (enum_range(NULL::order_status))[2 + floor(random() * 3)],
                          shipped_on = coalesce(shipped_on, CASE WHEN random() < 0.3 THEN current_date END)
         WHERE id = an_order;
    WHEN dice < 78 THEN  -- a long note is an unchanged TOAST value, which is not sent
        UPDATE customers SET interests = array_append(interests[1:3], 'azulejos, "茶"'),
                             preferences = jsonb_build_object('columns', 1 + floor(random() * 4))
         WHERE id = a_customer;
    WHEN dice < 79 THEN
        UPDATE customers SET note = long_text() WHERE id = a_customer;
    WHEN dice < 84 THEN  -- the description is an unchanged TOAST value, too
        UPDATE products SET price = price * 0.9 + 1 + random()::numeric, updated_at = now() WHERE sku = a_product;
    WHEN dice < 88 THEN
        INSERT INTO customers (account, name, country, vip, birthday, note, created_at)
        VALUES (gen_random_uuid(), 'Cliente nº ' || floor(dice * 1000), 'PT', random() < 0.1, '1980-02-29', '', now());
    WHEN dice < 92 THEN  -- an order with its lines
        DELETE FROM orders WHERE id = an_order;
    WHEN dice < 95 THEN  -- a row enters the row filter of vip_pub, or leaves it
        UPDATE customers SET vip = NOT vip WHERE id = a_customer;
    WHEN dice < 96 THEN  -- a change of part of the key
        UPDATE order_items SET line_no = line_no + 10 WHERE order_id = an_order;
    WHEN dice < 97 THEN  -- a subtransaction that is rolled back, within a transaction that is not
        BEGIN
            PERFORM place_order(a_customer);
            RAISE EXCEPTION 'the customer hesitates';
        EXCEPTION WHEN raise_exception THEN
            PERFORM place_order(a_customer);
        END;
    WHEN dice < 98 THEN
        UPDATE products SET description = long_text(), photo = decode(md5(random()::text), 'hex') WHERE sku = a_product;
    WHEN dice < 99 THEN  -- a change of the key, in this table and in all lines that name the product
        UPDATE products SET sku = split_part(sku, '.', 1) || '.' || floor(random() * 1e9)::bigint WHERE sku = a_product;
    ELSE  -- a customer with all orders and their lines
        DELETE FROM customers WHERE id = a_customer;
    END CASE;
END $$;
