"""Tests of the examples for Docker and Kubernetes: they run with few rights, and they do not name invented images."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from tests.cases import case

DEPLOY = Path(__file__).parents[2] / "docs" / "deploy"
HEALTH = "8080"


def load(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))


def test_kubernetes_example_restricts_pod_and_container() -> None:
    pod = load("kubernetes.yaml")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 10_000
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    restricted = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    assert container["securityContext"] == restricted
    assert container["resources"]["limits"]["memory"]
    assert [mount["name"] for mount in container["volumeMounts"]] == [volume["name"] for volume in pod["volumes"]]


def test_worker_of_compose_example_is_restricted() -> None:
    worker = load("compose.yaml")["services"]["worker"]
    assert worker["user"] == "10001:10001"
    assert worker["read_only"] is True
    assert worker["cap_drop"] == ["ALL"]
    assert worker["security_opt"] == ["no-new-privileges:true"]
    assert "ports" not in load("compose.yaml")["services"]["postgres"]


def test_examples_use_same_user_and_command() -> None:
    dockerfile = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    pod = load("kubernetes.yaml")["spec"]["template"]["spec"]
    worker = load("compose.yaml")["services"]["worker"]
    user = f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}"
    assert worker["user"] == user
    assert f"USER {user}\n" in dockerfile
    assert worker["command"] == pod["containers"][0]["args"]
    assert worker["command"][-2:] == ["--health", HEALTH]


def test_examples_contain_no_invented_digest_and_no_password() -> None:
    for path in sorted(DEPLOY.iterdir()):
        text = path.read_text(encoding="utf-8")
        with case(path.name):
            assert not re.search(r"sha256:[0-9a-f]", text)
            assert ":latest" not in text
            assert not re.search(r"(password|_KEY)\S*[:=] *\w", text, re.IGNORECASE)
