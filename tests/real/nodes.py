"""Our node agent as a node of the real control plane: logs through the API server, Jobs and hooks, taints, Pods that misbehave."""

import subprocess
import time
from pathlib import Path

from components import wait_for
from fleet import NODES

SPACE = "agents"
IMAGE = "shell:dev"
LOOP = "trap 'exit 0' TERM; while :; do sleep 0.1; done"


def pod(name, script, container=None, **spec):
    main = {"name": "main", "image": IMAGE, "imagePullPolicy": "IfNotPresent", "args": ["-c", script], **(container or {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": SPACE}, "spec": {
        "automountServiceAccountToken": False, "terminationGracePeriodSeconds": 2, "containers": [main], **spec}}


def begin(world):
    """The nodes, where no fleet started them, and a namespace with its service account: without that the server admits no Pod."""
    for number in range(1, NODES + 1):
        if not world.processes.alive(f"node-{number}"):
            world.fleet.node(number)
    world.control.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}}])
    wait_for("the namespace's service account", 30, lambda: world.control.kubectl("get", "serviceaccount", "default", "-n", SPACE, "-o", "name"))


def phase(world, name):
    return world.control.get("pod", name, "-n", SPACE).get("status", {}).get("phase")


def gone(world, name, seconds=30):
    wait_for(f"pod {name} to go", seconds, lambda: not world.control.kubectl("get", "pod", name, "-n", SPACE, "--ignore-not-found", "-o", "name"))


def logs_of_a_pod_come_through_the_real_server(world):
    begin(world)
    script = "n=0; while [ $n -lt 500 ]; do n=$((n+1)); echo line $n; done; test -e again || { touch again; exit 1; }; " \
             "while :; do n=$((n+1)); echo line $n; sleep 0.1; done"
    world.control.apply([pod("talker", script)])
    read = lambda *arguments: world.control.kubectl("logs", "talker", "-n", SPACE, *arguments).splitlines()
    restarts = lambda: world.control.get("pod", "talker", "-n", SPACE)["status"]["containerStatuses"][0]["restartCount"]
    wait_for("the second run", 30, lambda: restarts() == 1 and phase(world, "talker") == "Running")
    assert read("--previous", "--tail=2") == ["line 499", "line 500"]
    wait_for("more lines", 30, lambda: len(read()) > 535)
    everything = read()
    assert everything == [f"line {number}" for number in range(1, len(everything) + 1)], everything[:3]
    assert len(read("--tail=3")) == 3
    newest = read("--since=1s")
    assert 0 < len(newest) < 300, f"{len(newest)} lines of the last second"
    assert "T" in read("--timestamps", "--tail=1")[0].split()[0]
    # Following shows lines as they come, over the seconds.
    follower = subprocess.Popen(
        [world.tools / "kubectl", "--kubeconfig", world.control.kubeconfig, "logs", "talker", "-n", SPACE, "-f", "--tail=1"],
        stdout=subprocess.PIPE, text=True)
    try:
        began, seen = time.monotonic(), [follower.stdout.readline() for _ in range(15)]
        numbers = [int(line.split()[1]) for line in seen]
        assert numbers == list(range(numbers[0], numbers[0] + 15)) and time.monotonic() - began > 0.8, seen
        world.control.kubectl("delete", "pod", "talker", "-n", SPACE, "--wait=false")
        follower.wait(30)  # the log ends with its Pod
    finally:
        follower.kill()
        follower.wait()
    refused = world.control.kubectl("logs", "talker", "-n", SPACE, "--container=other", check=False)
    assert refused.returncode != 0


def jobs_hooks_and_taints_are_as_on_any_node(world):
    said = world.folder / "said"
    say = lambda word: f"echo {word} >> {said}"
    step = lambda name, script: {"name": name, "image": IMAGE, "imagePullPolicy": "IfNotPresent", "args": ["-c", script]}
    world.control.apply([{"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "steps", "namespace": SPACE}, "spec": {
        "template": {"spec": {
            "automountServiceAccountToken": False, "restartPolicy": "OnFailure",
            "initContainers": [step("one", say("one") + "; test -e seen || { touch seen; exit 3; }"), step("two", say("two"))],
            "containers": [step("main", say("main"))]}}}}])
    world.control.kubectl("wait", "--for=condition=Complete", "job/steps", "-n", SPACE, "--timeout=60s")
    assert said.read_text().split() == ["one", "one", "two", "main"], said.read_text()
    hook = {"lifecycle": {"preStop": {"exec": {"command": ["/bin/sh", "-c", "sleep 0.3; " + say("hook")]}}}}
    tolerated = lambda seconds: [{"key": "evil", "operator": "Exists", "effect": "NoExecute", **({"tolerationSeconds": seconds} if seconds else {})}]
    node = {"nodeSelector": {"kubernetes.io/hostname": "node-3"}}
    world.control.apply([
        pod("hooked", f"trap '{say('term')}; exit 0' TERM; while :; do sleep 0.1; done", hook, **node),
        pod("lingers", LOOP, tolerations=tolerated(4), **node),
        pod("stays", LOOP, tolerations=tolerated(None), **node),
    ])
    for name in ("hooked", "lingers", "stays"):
        world.control.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "-n", SPACE, "--timeout=60s")
    world.control.kubectl("taint", "node", "node-3", "evil=yes:NoExecute")
    try:
        gone(world, "hooked")
        assert phase(world, "lingers") == "Running", "its toleration has not run out"
        assert said.read_text().split()[4:] == ["hook", "term"], said.read_text()
        gone(world, "lingers")
        assert phase(world, "stays") == "Running"
    finally:
        world.control.kubectl("taint", "node", "node-3", "evil-")


def a_pod_that_forks_fills_its_log_and_ignores_the_signal_ends_all_the_same(world):
    # Bounded: thirty at a time, in sessions of their own.
    fork = "n=0; while [ $n -lt 30 ]; do n=$((n+1)); setsid sh -c 'trap \"\" TERM; while :; do setsid sleep 0.05 & wait; done' & done"
    world.control.apply([pod("wild", f"trap '' TERM; {fork}; while :; do printf '%01000d' 7; done", terminationGracePeriodSeconds=1)])
    world.control.kubectl("wait", "--for=condition=Ready", "pod/wild", "-n", SPACE, "--timeout=60s")
    uid = world.control.get("pod", "wild", "-n", SPACE)["metadata"]["uid"]
    marked = lambda: [given for given in processes() if f"CELL_NODE_RUN={uid}/".encode() in given]
    wait_for("the forks", 30, lambda: len(marked()) > 30)
    line = world.control.kubectl("logs", "wild", "-n", SPACE, "--tail=1")
    assert set(line) <= {"0", "7"} and len(line) > 1_000, line[:100]
    world.control.kubectl("delete", "pod", "wild", "-n", SPACE, "--timeout=60s")
    assert not marked(), f"{len(marked())} processes of a Pod that is gone"
    world.control.kubectl("delete", "namespace", SPACE, "--timeout=60s")


def processes():
    """What each process was given as its environment."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                yield (entry / "environ").read_bytes()
            except OSError:
                continue


NODE_CHECKS = [
    logs_of_a_pod_come_through_the_real_server,
    jobs_hooks_and_taints_are_as_on_any_node,
    a_pod_that_forks_fills_its_log_and_ignores_the_signal_ends_all_the_same,
]
