#!/bin/sh
# Starts Spark once, with nothing to do, as the user who will run pgbridge: then Ivy has the jars in that user's home,
# and pgbridge remembers them.
#   pgbridge-fetch-jars lake                            Delta's jars
#   pgbridge-fetch-jars s3a://lake                      and those for S3; the bucket is not asked for
#   pgbridge-fetch-jars lake org.example:library:1.0    and these: the text of spark.jars.packages
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
{
    cat <<END
state_dir = "state"
[subscription.nothing]
connection = ""
publications = ["nothing"]
warehouse = "$1"
enabled = false
[spark]
master = "local[1]"
END
    if [ -n "${2:-}" ]; then
        printf '[spark.conf]\n"spark.jars.packages" = "%s"\n' "$2"
    fi
} >"$work/pgbridge.toml"
if ! pgbridge run --until-caught-up --config "$work/pgbridge.toml"; then
    cat "$work/state/spark.log" >&2
    exit 1
fi
