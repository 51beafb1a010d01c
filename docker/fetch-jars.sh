#!/bin/sh
# Starts Spark once, with nothing to do, as the user who will run pgbridge: then Ivy has the jars in that user's home,
# and pgbridge remembers them.
#   pgbridge-fetch-jars                                             Delta's jars
#   pgbridge-fetch-jars org.apache.hadoop:hadoop-aws:3.5.0          and these: the text of spark.jars.packages
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
{
    cat <<'END'
state_dir = "state"
[subscription.nothing]
connection = ""
publications = ["nothing"]
warehouse = "lake"
enabled = false
[spark]
master = "local[1]"
END
    if [ -n "${1:-}" ]; then
        printf '[spark.conf]\n"spark.jars.packages" = "%s"\n' "$1"
    fi
} >"$work/pgbridge.toml"
if ! pgbridge run --until-caught-up --config "$work/pgbridge.toml"; then
    cat "$work/state/spark.log" >&2
    exit 1
fi
