"""The image, the stack of docker-compose.yml, and CI's job for them agree with each other and with the package."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from pgbridge.bridge.check.machine import VERSIONS
from pgbridge.bridge.config import config
from tests.test_docs import complaint
from tests.test_project import ENTRIES, POSTGRES, PYTHONS, ROOT, WORKFLOW

if TYPE_CHECKING:
    from pathlib import Path

DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
INSTRUCTIONS = [
    tuple(line.split(None, 1))
    for line in re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE).replace("\\\n", " ").splitlines()
    if line
]
ARGUMENTS = dict(value.split("=") for name, value in INSTRUCTIONS if name == "ARG")
IMAGE_ENTRIES: list[dict[str, Any]] = WORKFLOW["jobs"]["image"]["strategy"]["matrix"]["include"]

SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))[
    "services"
]
STACK = {name: service for name, service in SERVICES.items() if service.get("profiles") == ["stack"]}
CONFIG = config.load(ROOT / "docker/pgbridge.toml")
CONTAINERS = (ROOT / "docs/containers.md").read_text(encoding="utf-8")


def values(instruction: str) -> list[str]:
    """What the Dockerfile gives an instruction."""
    return [value for name, value in INSTRUCTIONS if name == instruction]


def the_list(text: str) -> list[str]:
    """A JSON list, as YAML reads one."""
    items: list[str] = yaml.safe_load(text)
    return items


def mounts(service: dict[str, Any]) -> dict[str, Path]:
    """The files of this checkout that a service gets, by their places in the container."""
    found = (volume.split(":") for volume in service.get("volumes", ()))
    return {target: ROOT / source for source, target, *_ in found if source.startswith("./")}


# --- the image ------------------------------------------------------------------------------------------------------


def test_image_has_versions_that_are_supported():
    assert ARGUMENTS["PYTHON_VERSION"] in PYTHONS
    javas = {entry.get("java", "17") for entry in ENTRIES}
    assert set(map(int, javas)) <= set(VERSIONS)
    assert {entry["image_java"] for entry in IMAGE_ENTRIES} == javas
    assert ARGUMENTS["JAVA_VERSION"] in javas


def test_documentation_has_the_same_versions():
    for name, value in ARGUMENTS.items():
        default = "" if value == '""' else f"`{value}` "
        assert f"\n| `{name}` | {default}| " in CONTAINERS
    limits = (ROOT / "docs/limits.md").read_text(encoding="utf-8")
    rows = {cells[1].strip(): cells[3] for line in limits.splitlines() if len(cells := line.split("|")) == 5}
    assert re.findall(r"[\d.]+", rows["Python"]) == PYTHONS
    assert set(re.findall(r"\d+", rows["Java"])) == {entry.get("java", "17") for entry in ENTRIES}
    assert re.findall(r"\d+", rows["PostgreSQL"]) == [e["postgresql"] for e in ENTRIES if "postgresql" in e]


def test_base_images_have_versions():
    stages = set(re.findall(r" AS (\w+)", DOCKERFILE))
    for value in values("FROM"):
        image = value.split()[0]
        assert image in stages or re.search(r":(\$\{\w+\}|\d)", image), image


def test_what_is_copied_is_there_and_sent_to_the_build():
    sources = [
        source
        for value in values("COPY")
        if "--from=" not in value
        for source in [word for word in value.split() if not word.startswith("--")][:-1]
    ]
    assert len(sources) == 2
    assert all((ROOT / source).exists() for source in sources)
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert [f"!{source}" in ignored for source in sources if source.startswith("docker/")] == [True]
    packages = {path.parent.name for path in ROOT.glob("*/py.typed")}
    assert not {"pyproject.toml", "README.md", "LICENSE", *packages} & set(ignored)


def test_image_does_not_run_as_root():
    assert [name for name, _ in INSTRUCTIONS].index("USER") < [name for name, _ in INSTRUCTIONS].index("ENTRYPOINT")
    (user,) = values("USER")
    uid, gid = user.split(":")
    assert f"--uid {uid} --gid {gid} " in DOCKERFILE
    assert int(uid) > 999
    assert f"user {uid} of the group {gid}" in CONTAINERS


def test_image_runs_the_daemon():
    """In the form without a shell, so that SIGTERM reaches it."""
    (entrypoint,), (command,) = values("ENTRYPOINT"), values("CMD")
    assert complaint(shlex.join([*the_list(entrypoint), *the_list(command)]), whole=True) == ""
    assert values("STOPSIGNAL") == ["SIGTERM"]
    assert CONFIG.state_dir.is_relative_to(values("VOLUME")[0])
    assert values("WORKDIR")[-1] == values("VOLUME")[0]


def test_health_check_is_a_program():
    (check,) = values("HEALTHCHECK")
    program, option, code = the_list(check.partition("CMD")[2])
    assert (program, option) == ("python", "-c")
    compile(code, "HEALTHCHECK", "exec")
    assert f"'127.0.0.1', {values('EXPOSE')[0]}," in code
    assert "'/healthz'" in code


# --- the stack ------------------------------------------------------------------------------------------------------


def test_only_the_server_for_tests_starts_without_a_profile():
    assert SERVICES.keys() - STACK.keys() == {"postgres"}
    assert STACK.keys() == {
        "primary", "minio", "bucket", "spark-master", "spark-worker", "pgbridge", "prometheus",
    }  # fmt: skip


@pytest.mark.parametrize("name", STACK)
def test_service_is_pinned_mounts_what_is_there_and_is_for_this_machine_only(name):
    service = STACK[name]
    image, _, tag = service["image"].partition(":")
    assert tag not in {"", "latest"}
    assert image
    assert [path for path in mounts(service).values() if not path.is_file()] == []
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    assert "healthcheck" in service or name in {"bucket", "pgbridge"}  # one ends, one has the image's
    assert service.get("depends_on", {}).keys() <= STACK.keys()


def test_stack_has_the_newest_server():
    newest = max((entry["postgresql"] for entry in ENTRIES if "postgresql" in entry), key=int)
    assert STACK["primary"]["image"] == f"postgres:{newest}" == re.sub(r"\$\{.*:-(\d+)\}", r"\1", POSTGRES["image"])


def test_cluster_runs_the_image_of_the_driver():
    own = [STACK[name] for name in ("spark-master", "spark-worker", "pgbridge")]
    assert len({service["image"] for service in own}) == 1
    assert [service["image"] for service in own if "build" in service] == [own[-1]["image"]]
    assert STACK["spark-worker"]["command"][-1] == CONFIG.spark.master
    assert CONFIG.spark.conf["spark.driver.host"] == "pgbridge"
    # copies connect from executors, which inherit the worker's environment
    assert STACK["spark-worker"]["environment"] == STACK["pgbridge"]["environment"]
    assert "PYSPARK_PYTHON=/opt/pgbridge/bin/python" in DOCKERFILE


def test_image_has_the_jars_that_pgbridge_asks_for_by_itself():
    """For a local warehouse and for the stack's on S3, which needs no package that the image was built without."""
    (fetching,) = (line for line in values("RUN") if "fetch-jars" in line)
    assert "pgbridge-fetch-jars lake " in fetching
    assert "pgbridge-fetch-jars s3a://lake " in fetching
    assert not [key for key in CONFIG.spark.conf if key.startswith("spark.jars")]
    assert STACK["pgbridge"]["build"] == "."


def test_configuration_finds_the_services():
    assert mounts(STACK["pgbridge"]) == {the_list(values("CMD")[0])[-1]: ROOT / "docker/pgbridge.toml"}
    (subscription,) = CONFIG.subscription.values()
    assert "host=primary dbname=shop user=replicator" in subscription.connection
    assert "password" not in subscription.connection
    script = (ROOT / "docker/primary.sql").read_text(encoding="utf-8")
    assert all(f"CREATE PUBLICATION {name} " in script for name in subscription.publications)
    assert "CREATE ROLE replicator LOGIN REPLICATION" in script
    assert STACK["primary"]["environment"]["POSTGRES_DB"] == "shop"
    assert CONFIG.spark.conf["spark.hadoop.fs.s3a.endpoint"] == "http://minio:9000"
    bucket = str(subscription.warehouse).removeprefix("s3a://").partition("/")[0]
    assert f"mc mb --ignore-existing minio/{bucket}\n" in STACK["bucket"]["command"][0]


def test_prometheus_scrapes_the_daemon_and_has_the_rules():
    files = mounts(STACK["prometheus"])
    scraped = yaml.safe_load((ROOT / "docker/prometheus.yml").read_text(encoding="utf-8"))
    assert [files[name] for name in scraped["rule_files"]] == [ROOT / "docs/prometheus-alerts.yml"]
    (job,) = scraped["scrape_configs"]
    assert job["job_name"] == "pgbridge"  # as the rules expect
    port = CONFIG.http.listen.rpartition(":")[2] if CONFIG.http else ""
    assert job["static_configs"] == [{"targets": [f"pgbridge:{port}"]}]
    assert STACK["pgbridge"]["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert values("EXPOSE") == [port]


# --- CI -------------------------------------------------------------------------------------------------------------


def test_ci_runs_the_scripts():
    commands = " ".join(step.get("run", "") for step in WORKFLOW["jobs"]["image"]["steps"])
    assert "hadolint Dockerfile" in commands
    assert "docker compose --profile stack config" in commands
    assert "docker/smoke.sh" in commands
    assert STACK["prometheus"]["image"] in commands
    assert all((ROOT / "docker" / name).stat().st_mode & 0o111 for name in ("smoke.sh", "fetch-jars.sh"))
    assert "pgbridge-fetch-jars" in values("COPY")[-1]


def test_table_is_read_with_what_the_image_has():
    """The script runs in the container, and uses no module of pgbridge."""
    source = (ROOT / "docker/read_table.py").read_text(encoding="utf-8")
    assert set(re.findall(r"^(?:from|import) (\w+)", source, re.MULTILINE)) == {
        "__future__", "sys", "tomllib", "pathlib", "delta", "pyspark",
    }  # fmt: skip
