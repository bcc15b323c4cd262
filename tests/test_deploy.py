"""The files of deploy/: each against a published schema, and what they run against this program.

No container engine is needed. The slow test starts the Kubernetes container's command as its user, on a file system
that cannot be written.
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import urllib.request
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from postgresql_server import Server
from precision_time.cli.main import main
from precision_time.cli.parser import parse
from precision_time.reading import parse_toml
from precision_time.reading.yaml_text import parse_yaml
from precision_time.serve.http.server import GRACE_S, PORT, is_local

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
UNIT = (DEPLOY / "precision-time.service").read_text()
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()


def documents() -> list[dict[str, Any]]:
    """The documents of the Kubernetes manifest."""
    parts = (DEPLOY / "kubernetes.yaml").read_text().split("\n---\n")
    return [parse_yaml(part, "kubernetes.yaml") for part in parts]


def kubernetes() -> dict[str, dict[str, Any]]:
    return {each["kind"]: each for each in documents()}


def container() -> dict[str, Any]:
    found: dict[str, Any] = kubernetes()["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    return found


def compose() -> dict[str, Any]:
    found: dict[str, Any] = parse_yaml((DEPLOY / "compose.yaml").read_text(), "compose.yaml")
    return found


def instructions(text: str) -> list[tuple[str, str]]:
    """Instruction and argument of each line of a Dockerfile."""
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split(None, 1)[0], " ".join(line.split(None, 1)[1].split())) for line in lines]


def last(name: str) -> str:
    return [argument for instruction, argument in instructions(DOCKERFILE) if instruction == name][-1]


def unit(name: str) -> list[str]:
    return [line.partition("=")[2] for line in UNIT.splitlines() if line.startswith(f"{name}=")]


# --- what they run


def commands() -> dict[str, list[str]]:
    """The command lines of all files, without the program's name."""
    execution = shlex.split(unit("ExecStart")[0])
    assert Path(execution[0]).name == "precision-time"
    server = compose()["services"]["server"]
    assert server["entrypoint"] == json.loads(last("ENTRYPOINT")) == ["precision-time"]
    return {
        "Dockerfile": json.loads(last("CMD")),
        "compose": server["command"],
        "kubernetes": container()["args"],
        "systemd": execution[1:],
    }


@pytest.mark.parametrize("name", ["Dockerfile", "compose", "kubernetes", "systemd"])
def test_this_program_takes_the_commands(name: str) -> None:
    options = parse(commands()[name])
    assert isinstance(options, Namespace)
    assert options.command == "serve"
    assert options.action == []
    assert options.port is None, "the port that the files publish is the usual one"
    assert options.workers is None or int(options.workers) >= 1
    assert is_local(options.host or "127.0.0.1") is (name == "systemd")


def commented_commands() -> Iterator[str]:
    for path in DEPLOY.iterdir():
        for line in path.read_text().replace("\\\n#", "").splitlines():
            text = line.lstrip("# ").strip()
            if text.startswith("precision-time ") or "run --rm server" in text:
                yield text.replace("docker compose run --rm server", "precision-time")


def test_the_commands_of_the_comments_make_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = list(commented_commands())
    assert len(found) == 2
    for line in found:
        words = shlex.split(line)[1:]
        assert main([*words, *([] if "--tokens" in words else ["--tokens", "other.json"])]) == 0
    assert (tmp_path / "tokens.json").exists()


def test_one_port_everywhere() -> None:
    (port,) = container()["ports"]
    (service,) = kubernetes()["Service"]["spec"]["ports"]
    assert (port["containerPort"], service["targetPort"]) == (PORT, port["name"])
    assert last("EXPOSE") == str(PORT)
    assert compose()["services"]["server"]["ports"] == [f"127.0.0.1:{PORT}:{PORT}"], "published on this machine alone"
    assert f":{PORT}/healthz" in last("HEALTHCHECK")


def test_answers_in_flight_may_end_everywhere() -> None:
    """Each manager waits longer than the server does, and ends the first process alone."""
    pause = container()["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert kubernetes()["Deployment"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > GRACE_S + pause
    assert int(compose()["services"]["server"]["stop_grace_period"].removesuffix("s")) > GRACE_S
    assert int(unit("TimeoutStopSec")[0].removesuffix("s")) > GRACE_S
    assert unit("KillMode") == ["mixed"]
    assert last("STOPSIGNAL") == "SIGTERM"
    assert last("ENTRYPOINT").startswith("["), "a shell would keep the signal"


def test_users_and_file_systems() -> None:
    pod = kubernetes()["Deployment"]["spec"]["template"]["spec"]
    user = last("USER").split(":")[0]
    assert user.isdigit()
    assert user != "0"
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert str(pod["securityContext"]["runAsUser"]) == user
    own = container()["securityContext"]
    assert own["allowPrivilegeEscalation"] is False
    assert own["readOnlyRootFilesystem"] is True
    assert own["capabilities"] == {"drop": ["ALL"]}
    assert pod["automountServiceAccountToken"] is False
    server = compose()["services"]["server"]
    assert server["read_only"] is True
    assert server["cap_drop"] == ["ALL"]
    assert last("VOLUME") == '["/data"]'
    assert any("XDG_DATA_HOME=/data" in argument for name, argument in instructions(DOCKERFILE) if name == "ENV")
    assert any(volume.endswith(":/data") for volume in server["volumes"])
    assert unit("User") == ["precision-time"]
    assert unit("StateDirectory") == ["precision-time"]


def test_no_secret_is_in_a_file() -> None:
    for name, words in commands().items():
        assert not re.search(r"postgresql://[^@/]*:", " ".join(words)), name
    for variable in container()["env"]:
        assert "secretKeyRef" in variable["valueFrom"]
    for service in compose()["services"].values():
        for name, value in service["environment"].items():
            assert "PASSWORD" not in name or value.startswith("${DATABASE_PASSWORD:?")
    used = {variable["valueFrom"]["secretKeyRef"]["key"] for variable in container()["env"]}
    text = (DEPLOY / "kubernetes.yaml").read_text()
    assert all(f"--from-literal={name}=" in text for name in used), "the comment makes every key that is read"
    assert "$(DATABASE)" in container()["args"]


# --- published schemas


@pytest.mark.parametrize("version", ["1.30", "1.34"])
def test_the_manifest_against_the_schemas_of_kubernetes(version: str) -> None:
    """1.30 is the oldest with `preStop.sleep`."""
    validate = pytest.importorskip("kubernetes_validate")
    for document in documents():
        assert validate.validate(document, version, strict=True)
    wrong = documents()[0]
    wrong["spec"]["template"]["spec"]["containers"][0]["readinessprobe"] = {}
    with pytest.raises(validate.ValidationError):
        validate.validate(wrong, version, strict=True)


def test_the_manifest_against_the_models_of_kubernetes() -> None:
    models = pytest.importorskip("kubeflow_trainer_api.models")
    pod = kubernetes()["Deployment"]["spec"]["template"]
    assert _again(models.IoK8sApiCoreV1PodTemplateSpec, pod) == pod
    service = kubernetes()["Service"]
    assert _again(models.IoK8sApiCoreV1Service, service) == service


def _again(model: Any, content: dict[str, Any]) -> Any:
    return json.loads(model.from_dict(content).to_json())


def test_selectors_find_the_pods() -> None:
    found = kubernetes()
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert found["Deployment"]["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert found["Service"]["spec"]["selector"].items() <= labels.items()
    assert found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert found["PodDisruptionBudget"]["spec"]["minAvailable"] < found["Deployment"]["spec"]["replicas"]
    mounts = {mount["name"] for mount in container()["volumeMounts"]}
    assert mounts == {volume["name"] for volume in found["Deployment"]["spec"]["template"]["spec"]["volumes"]}


def test_probes_ask_routes_without_a_token() -> None:
    from precision_time.serve.http.routes import ROUTES

    free = {route.path for route in ROUTES if not route.role}
    probes = {name: container()[f"{name}Probe"] for name in ("startup", "readiness", "liveness")}
    assert {probe["httpGet"]["path"] for probe in probes.values()} <= free
    assert probes["readiness"]["httpGet"]["path"] == "/healthz"
    assert probes["liveness"]["httpGet"]["path"] != "/healthz", "a lost database must not restart the server"


def test_the_compose_file_against_the_specification() -> None:
    spec = pytest.importorskip("compose_spec")
    found = spec.PyCompose.from_yaml((DEPLOY / "compose.yaml").read_text())
    found.validate()
    assert sorted(found.service_names()) == ["database", "server"]
    assert found.to_spec() is not None


def test_the_compose_file_as_its_program_reads_it() -> None:
    program = next(
        (words for words in (["docker", "compose"], ["docker-compose"]) if _answers([*words, "version"])), None
    )
    if program is None:
        pytest.skip("there is no docker compose")
    command = [*program, "--file", str(DEPLOY / "compose.yaml"), "config"]
    read = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "DATABASE_PASSWORD": "secret"}, check=False
    )
    assert read.returncode == 0, read.stderr
    server = parse_yaml(read.stdout, "config")["services"]["server"]
    assert server["environment"]["PGPASSWORD"] == "secret"
    assert Path(server["build"]["context"]) == ROOT
    without = {name: value for name, value in os.environ.items() if name != "DATABASE_PASSWORD"}
    refused = subprocess.run(command, capture_output=True, text=True, env=without, check=False)
    assert refused.returncode != 0
    assert "write it into deploy/.env" in refused.stderr


def _answers(command: list[str]) -> bool:
    return shutil.which(command[0]) is not None and subprocess.run(command, capture_output=True).returncode == 0


def test_the_unit_as_systemd_reads_it(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze")
    path = tmp_path / "precision-time.service"
    path.write_text(UNIT.replace(shlex.split(unit("ExecStart")[0])[0], "/bin/true"))
    read = subprocess.run(["systemd-analyze", "verify", str(path)], capture_output=True, text=True, check=False)
    assert (read.returncode, read.stderr) == (0, "")
    judged = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=20", str(path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert judged.returncode == 0, judged.stdout[-500:]
    path.write_text(path.read_text().replace("Restart=on-failure", "Restart=sometimes"))
    read = subprocess.run(["systemd-analyze", "verify", str(path)], capture_output=True, text=True, check=False)
    assert "restart" in read.stderr, "the check finds what is wrong"


# --- the image


def test_what_the_image_is_built_from_is_there() -> None:
    ignored = [line for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line[:1] not in "#"]
    kept = [line[1:] for line in ignored if line.startswith("!")]
    assert ignored[0] == "*"
    copied = [word for name, argument in instructions(DOCKERFILE) if name == "COPY" and "--from" not in argument
              for word in argument.split()[:-1]]  # fmt: skip
    assert sorted(copied) == sorted(kept)
    assert all((ROOT / name).exists() for name in copied)
    assert fnmatch.fnmatch("src/x/__pycache__", "**/__pycache__")


def test_the_image_installs_what_the_server_needs() -> None:
    project = parse_toml((ROOT / "pyproject.toml").read_text(), "pyproject.toml")["project"]
    (installed,) = re.findall(r"/source\[([\w,]+)\]", DOCKERFILE)
    assert set(installed.split(",")) == {"serve", "postgresql"} <= set(project["optional-dependencies"])
    assert {"README.md", "LICENSE"} <= {project["readme"], *project["license-files"]}
    images = [argument.split()[0] for name, argument in instructions(DOCKERFILE) if name == "FROM"]
    assert len(set(images)) == 1, "a virtual environment holds for one Python"
    version = re.fullmatch(r"python:3\.(\d+)-slim", images[0])
    assert version
    assert int(version[1]) >= int(project["requires-python"].removeprefix(">=3."))


@pytest.mark.slow
def test_the_container_runs_without_rights_on_a_file_system_that_cannot_be_written(
    tmp_path_factory: pytest.TempPathFactory, postgresql: Server
) -> None:
    if os.geteuid() or not shutil.which("unshare") or not shutil.which("setpriv"):
        pytest.skip("needs root, unshare and setpriv")
    folder = Path(postgresql.folder)  # others may read it
    token = _token(folder)
    (folder / "tokens.json").chmod(0o440)
    os.chown(folder / "tokens.json", 0, 10001)
    # Where the interpreter is in a home directory that others may not enter: root without any of its capabilities.
    readable = all(path.stat().st_mode & 0o001 for path in Path(sys.executable).resolve().parents)
    user = f"--reuid {container_user()} --regid 10001 --clear-groups" if readable else ""
    values = {"$(DATABASE)": postgresql.new_database(), "/etc/precision-time/tokens.json": str(folder / "tokens.json")}
    arguments = [values.get(word, word) for word in container()["args"]] + ["--port", "0"]
    script = (
        "mount --make-rprivate / && mount -o remount,bind,ro / && mount -t tmpfs -o size=256m tmpfs /mnt && "
        f"exec setpriv {user} --inh-caps=-all --bounding-set=-all --no-new-privs "
        + shlex.join([sys.executable, "-m", "precision_time", *arguments])
    )
    environment = {
        "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "src"), "TMPDIR": "/mnt", "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": "/nonexistent",
    }  # fmt: skip
    process = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", script], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, cwd="/",
    )  # fmt: skip
    try:
        assert process.stdout is not None
        address, lines = "", []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("{") and json.loads(line)["event"] == "listening":
                address = json.loads(line)["address"].replace("0.0.0.0", "127.0.0.1")
                break
        assert address, "".join(lines)
        for probe in ("startup", "readiness", "liveness"):
            with urllib.request.urlopen(address + container()[f"{probe}Probe"]["httpGet"]["path"], timeout=60) as reply:
                assert reply.status == 200
        body = json.dumps({"job": {"model": "resnet50", "gpu": "a100-80gb-sxm"}}).encode()
        request = urllib.request.Request(address + "/v1/predict", body, {"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=60) as reply:
            assert json.loads(reply.read())["id"]
        process.terminate()
        with contextlib.suppress(ValueError):
            process.communicate(timeout=60)
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close() if process.stdout else None


def container_user() -> str:
    return last("USER").split(":")[0]


def _token(folder: Path) -> str:
    from precision_time.serve.http.tokens import add_token

    folder.chmod(0o755)
    return add_token(folder / "tokens.json", "ops", ["admin"], "2026-01-01")
