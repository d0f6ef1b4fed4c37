"""The operator's harness (operator/tests) on the real control plane: a few runs in which something goes wrong, and the end they come to."""

import os
import subprocess

from components import ROOT, Etcd, log

SCENARIOS = "FleetUp,Resize,Move,MigrateBack"
RUNS = 4


def an_operator_that_is_perturbed_comes_to_the_same_end_on_the_real_servers(world):
    """Before there are nodes: the harness plays the kubelet itself."""
    etcd = Etcd(world.processes, world.tools, world.folder, "harness-etcd", f"127.{world.network}.0.4", 2379)
    etcd.start()
    env = {**os.environ, "CELLPLANE_HARNESS_KUBECONFIG": str(world.control.kubeconfig), "CELLPLANE_HARNESS_ETCD": etcd.endpoint,
           "CELLPLANE_HARNESS_SCENARIO": SCENARIOS, "CELLPLANE_HARNESS_RUNS": str(RUNS), "RUST_BACKTRACE": "0"}
    cargo = ["cargo", "test", "--quiet", "-p", "cell-operator", "--test", "perturbed", "every_run", "--", "--nocapture"]
    try:
        result = subprocess.run(cargo, cwd=ROOT, env=env, capture_output=True, text=True, timeout=900)
        assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-3000:]
        runs = sum(", seed " in line for line in result.stdout.splitlines())
        assert runs >= RUNS, result.stdout[-3000:]
        log(f"  {runs} runs of {SCENARIOS}")
    finally:
        sweep(world)
        etcd.stop()


def sweep(world):
    """Nothing of it may be scheduled once there are nodes. Its operators are gone, and with them who would release its objects."""
    kubectl = world.control.kubectl
    spaces = [space["metadata"]["name"] for space in world.control.get("namespaces")["items"]]
    for space in (space for space in spaces if space.startswith("stage-")):
        for kind in ("fleets", "cells", "storagecells", "guilds", "moves", "storagemigrations"):
            for one in world.control.get(kind, "-n", space)["items"]:
                name = one["metadata"]["name"]
                kubectl("patch", kind, name, "-n", space, "--type=merge", "-p", '{"metadata":{"finalizers":null}}', check=False)
        kubectl("delete", "namespace", space, "--wait=false")
    kubectl("wait", "--for=delete", "namespace", "--timeout=60s", *[space for space in spaces if space.startswith("stage-")], check=False)
