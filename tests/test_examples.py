"""examples/: notebooks that run as they are, and a manifest that fits the image and the configuration."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from pgbridge.bridge.config import config
from tests import documented
from tests.test_images import ARGUMENTS, DOCKERFILE
from tests.test_project import ROOT

if TYPE_CHECKING:
    from pathlib import Path

EXAMPLES = ROOT / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
RESOURCES: list[dict[str, Any]] = list(yaml.safe_load_all((EXAMPLES / "kubernetes.yaml").read_text(encoding="utf-8")))
BY_KIND = {resource["kind"]: resource for resource in RESOURCES}


def program(notebook: Path) -> str:
    """A notebook's cells of code, one after the other."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


def test_each_example_is_listed():
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert {path.name for path in EXAMPLES.iterdir()} - {"README.md"} == {
        name for name in listed.replace("]", "[").split("[") if "." in name and "/" not in name and " " not in name
    }


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_without_output_and_is_python(notebook):
    """Whoever commits one with its output commits paths and rows of a machine."""
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        assert cell.get("outputs", []) == []
    compile(program(notebook), notebook.name, "exec")


@pytest.mark.soak
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(starts_server, tmp_path, notebook):
    with documented.shop_server(tmp_path) as (_, connection):
        done = subprocess.run(
            [sys.executable, "-c", program(notebook)], cwd=tmp_path, check=False, capture_output=True, text=True,
            env={**documented.environment(), "DB": connection}, timeout=600,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]


# --- the manifest -----------------------------------------------------------------------------------------------------


def test_the_manifest_has_a_configuration_that_is_read(tmp_path):
    file = tmp_path / "pgbridge.toml"
    file.write_text(BY_KIND["ConfigMap"]["data"]["pgbridge.toml"])
    read = config.load(file)
    pod = BY_KIND["StatefulSet"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {str(read.state_dir.parent), "/etc/pgbridge", "/run/pgbridge"} == mounted
    assert read.http is not None
    assert read.http.address[1] == container["ports"][0]["containerPort"]
    assert container["args"] == ["run", "--config", "/etc/pgbridge/pgbridge.toml"]
    claims = [claim["metadata"]["name"] for claim in BY_KIND["StatefulSet"]["spec"]["volumeClaimTemplates"]]
    assert {mount["name"] for mount in container["volumeMounts"]} <= {v["name"] for v in pod["volumes"]} | set(claims)


def test_the_manifest_fits_the_image():
    pod = BY_KIND["StatefulSet"]["spec"]["template"]["spec"]
    assert f"useradd --uid {pod['securityContext']['runAsUser']} " in DOCKERFILE
    assert pod["terminationGracePeriodSeconds"] == 600
    assert BY_KIND["StatefulSet"]["spec"]["replicas"] == 1  # a slot has one reader
    compile(pod["containers"][0]["readinessProbe"]["exec"]["command"][2], "readiness", "exec")
    assert ARGUMENTS["PYTHON_VERSION"]  # `python` is in its path
