#!/usr/bin/env bash
# Builds and starts the stack, inserts a row on the primary, and waits until a reader of the Delta table sees it.
#   docker/smoke.sh            the stack goes on afterwards; `docker compose --profile stack down --volumes` removes it
set -euo pipefail
cd "$(dirname "$0")/.."

patience_s=${SMOKE_PATIENCE_S:-300}
compose() { docker compose --profile stack "$@"; }
on_primary() { compose exec -T primary psql --username=postgres --dbname=shop --no-align --tuples-only --quiet "$@"; }
rows() {
    # the module comes on standard input: the image has no files of docker/
    compose exec -T pgbridge python - /etc/pgbridge/pgbridge.toml s3a://lake/shop/public/orders "$1" \
        <docker/read_table.py 2>/tmp/pgbridge-smoke.log
}

# these and what they depend on; the server for tests stays as it is
compose up --build --detach --wait --wait-timeout "$patience_s" pgbridge prometheus

id=$(on_primary --command="INSERT INTO orders (customer, total) VALUES (1, 99.99) RETURNING id")
echo "order $id is committed on the primary"
end=$((SECONDS + patience_s))
until [ "$(rows "id = $id AND total = 99.99")" = 1 ]; do
    if [ "$SECONDS" -ge "$end" ]; then
        cat /tmp/pgbridge-smoke.log >&2
        compose exec -T pgbridge pgbridge status --config /etc/pgbridge/pgbridge.toml >&2 || true
        compose logs --tail=100 pgbridge >&2
        echo "order $id has not arrived within $patience_s s" >&2
        exit 1
    fi
    sleep 2
done
echo "order $id is in the Delta table, with $(rows "true") rows"

# the metrics have arrived as well, and the rules are loaded
curl --fail --silent --show-error http://127.0.0.1:9187/healthz
curl --fail --silent --show-error http://127.0.0.1:9090/api/v1/rules | grep --quiet PgbridgeDown
echo "the daemon is healthy, and Prometheus has the alert rules"
