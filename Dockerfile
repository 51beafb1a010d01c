# pgbridge with its Python, its Java and Delta's jars: a container needs no registry at its start.
#   docker build --tag pgbridge .
# docs/containers.md says how to run it.
ARG PYTHON_VERSION=3.13
ARG JAVA_VERSION=21

FROM python:${PYTHON_VERSION}-slim-trixie AS build
WORKDIR /src
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /dist .
# At the place where it will run: the commands of a virtual environment have its path in them.
RUN python -m venv /opt/pgbridge && /opt/pgbridge/bin/pip install --no-cache-dir "$(echo /dist/*.whl)[all]"

FROM eclipse-temurin:${JAVA_VERSION}-jre AS java

FROM python:${PYTHON_VERSION}-slim-trixie
LABEL org.opencontainers.image.title="pgbridge" \
      org.opencontainers.image.description="Keeps Delta Lake tables equal to published PostgreSQL tables" \
      org.opencontainers.image.licenses="Apache-2.0"

COPY --from=java /opt/java/openjdk /opt/java/openjdk
COPY --from=build /opt/pgbridge /opt/pgbridge
COPY --chmod=755 docker/fetch-jars.sh /usr/local/bin/pgbridge-fetch-jars

# PYSPARK_PYTHON: a cluster's executors run this image too, and must find the same Python.
ENV JAVA_HOME=/opt/java/openjdk \
    PATH=/opt/pgbridge/bin:/opt/java/openjdk/bin:$PATH \
    PYSPARK_PYTHON=/opt/pgbridge/bin/python \
    PYTHONFAULTHANDLER=1

# The uid is a number, so that Kubernetes can see that it is not root's; volumes belong to it.
RUN groupadd --gid 10001 pgbridge \
    && useradd --uid 10001 --gid 10001 --create-home --shell /usr/sbin/nologin pgbridge \
    && install --directory --owner=pgbridge --group=pgbridge --mode=0750 /var/lib/pgbridge
USER 10001:10001
# The JVM takes the home from the list of users, everything else from here.
ENV HOME=/home/pgbridge
WORKDIR /var/lib/pgbridge

# Further jars, as `spark.jars.packages` in [spark.conf] names them.
ARG SPARK_PACKAGES=""
RUN pgbridge-fetch-jars lake "$SPARK_PACKAGES" && pgbridge-fetch-jars s3a://lake "$SPARK_PACKAGES"

# state_dir, and warehouses on a local disk.
VOLUME /var/lib/pgbridge
EXPOSE 9187
STOPSIGNAL SIGTERM
# [http] in the configuration must listen on port 9187, on 127.0.0.1 or 0.0.0.0.
HEALTHCHECK --interval=15s --timeout=10s --start-period=60s --retries=4 \
    CMD ["python", "-c", "from http.client import HTTPConnection as C; c = C('127.0.0.1', 9187, timeout=5); \
c.request('GET', '/healthz'); raise SystemExit(c.getresponse().status != 200)"]

ENTRYPOINT ["pgbridge"]
CMD ["run", "--config", "/etc/pgbridge/pgbridge.toml"]
