"""The platform on a real cluster of two machines: kubelet, containerd and runc on each, cells as containers, deploy/ applied as it is.

    cluster.py PROGRAMS [NAME…]     PROGRAMS: the folder with cell, cell-operator and cellctl

Each check is a function named as a sentence; they share one fleet and run in order. Ends with `N passed, N failed`. Needs root: the
machines are namespaces and mounts of this run (machines.py), which end with it.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import suite
from bots import discord_py, node_with_libraries, python_with_libraries
from components import HERE, ROOT, Processes, log, run, tools, wait_for
from fleet import NAMESPACE, Fleet, Rest
from machines import PAUSE, ClusterControlPlane, Machine, Names, enter, prepare_network, what_the_kernel_refuses
from traffic import Traffic, assert_each_once, heard

TOOLS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kubelet", "kube-proxy")
CELL = "docker.io/cellplane/cell"
ENTRY = "172.31.87.11"
SESSION = lambda event: event["event"] == "session"
ROLES = ("gateway", "guild", "data")


def make_images(programs, tool_folder, folder):
    """Wraps the programs into images, as deploy/image.py does for anyone; without what only a debugger reads."""
    sys.path.insert(0, str(ROOT / "deploy"))
    from image import write_image

    for program in ("cell", "cell-operator"):
        run(["strip", "--strip-debug", "-o", folder / program, programs / program])
    run(["cc", "-O2", "-static", "-o", folder / "pause", HERE / "pause.c"])
    images = [
        (folder / "pause", PAUSE, "/pause", None),
        (tool_folder / "etcd", "quay.io/coreos/etcd:v3.7.3", "/usr/local/bin/etcd", None),
        (folder / "cell-operator", "docker.io/cellplane/operator:dev", "/cell-operator", None),
        (folder / "cell", f"{CELL}:dev", "/cell", None),
        (folder / "cell", f"{CELL}:next", "/cell", {"org.opencontainers.image.version": "next"}),
    ]
    archives = []
    for program, reference, path, labels in images:
        archives.append(folder / (reference.replace("/", "_").replace(":", "_") + ".tar"))
        write_image(program, reference, archives[-1], path, labels)
    return archives


class Platform(Fleet):
    """What deploy/ brings up, and the volumes that a cluster without a provisioner needs."""

    def __init__(self, processes, tools, folder, programs, control):
        super().__init__(processes, tools, folder, programs, control, 0)
        self.entry, self.base = ENTRY, f"http://{ENTRY}:30080"

    def cellctl(self, *arguments, check=True):
        # The control-plane API is a Pod's address, in plain text.
        return super().cellctl(*arguments, "--plaintext", check=check)

    def start(self):
        kubectl = self.control.kubectl
        kubectl("apply", "--server-side", "-f", str(ROOT / "crds" / "yaml"))
        self.control.apply(self.volumes())
        kubectl("apply", "-f", str(ROOT / "deploy"))
        kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        kubectl("rollout", "status", "statefulset/cellplane-etcd", "-n", NAMESPACE, "--timeout=90s")
        kubectl("rollout", "status", "deployment/cellplane-operator", "-n", NAMESPACE, "--timeout=90s")
        fleet = (ROOT / "deploy" / "example" / "fleet.yaml").read_text()
        assert "chat.example.com" in fleet
        kubectl("apply", "-f", "-", stdin=fleet.replace("chat.example.com", ENTRY))

    def volumes(self):
        """Both volumes are on the first machine."""
        default = {"storageclass.kubernetes.io/is-default-class": "true"}
        volumes = []
        for name, size in (("etcd", "2Gi"), ("store", "10Gi")):
            (self.folder / "n1" / "lib" / "cellplane-volumes" / name).mkdir(parents=True)
            volumes.append(self.local(name, f"/var/lib/cellplane-volumes/{name}", size, 1))
            volumes[-1]["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"][0]["matchExpressions"][0]["values"] = ["n1"]
        return [{"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "local", "annotations": default},
                 "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"}, *volumes]

    def local(self, *arguments):
        volume = super().local(*arguments)
        volume["spec"]["storageClassName"] = "local"
        return volume


class World(suite.World):
    """What the checks share."""

    def __init__(self, programs, folder):
        self.folder = folder
        self.tools = tools(*TOOLS)
        self.processes = Processes(folder)
        prepare_network()
        self.control = ClusterControlPlane(self.processes, self.tools, folder, ["n1", "n2"])
        images = sorted((folder / "images").glob("*.tar"))
        self.machines = [Machine(self.control, number, images) for number in (1, 2)]
        self.fleet = Platform(self.processes, self.tools, folder, programs, self.control)
        self.bots = []

    def start(self):
        self.control.start()
        for machine in self.machines:
            machine.boot()
        first, second = self.machines
        first.route_to(second)
        second.route_to(first)
        for machine in self.machines:
            # Pods are reached from here too: the control-plane API is one.
            run(["ip", "route", "add", machine.pods, "via", machine.address])
            wait_for(f"{machine.name} to be Ready", 60, lambda: self.is_ready(machine.name))
        self.names = Names(self.control)

    def is_ready(self, node):
        found = self.control.kubectl("get", "node", node, "-o", "jsonpath={.status.conditions[?(@.type=='Ready')].status}")
        return found == "True"

    def pod(self, name):
        return self.control.get("pod", name, "-n", NAMESPACE)

    def serves(self, pod):
        conditions = pod.get("status", {}).get("conditions", [])
        ready = any(found["type"] == "Ready" and found["status"] == "True" for found in conditions)
        return ready and "deletionTimestamp" not in pod["metadata"]

    def is_pod_ready(self, name, other_than=None):
        pod = self.pod(name)
        return pod["metadata"]["uid"] != other_than and self.serves(pod)

    def evict(self, name):
        """Asks for a Pod's eviction, as a drain does. The answer is none, or why it is refused."""
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": NAMESPACE}}
        result = self.control.kubectl("create", "--raw", f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/eviction", "-f", "-",
                                      stdin=json.dumps(body), check=False)
        return None if result.returncode == 0 else result.stderr

    def begin_traffic(self, prefix):
        # With every connection that broke, libraries wait longer before the next (discord.py: up to 2^n s): each check has its own clients.
        suite.start_bots(self)
        traffic = Traffic(self.rest, self.channel, prefix, tries=4)
        traffic.sessions = [bot.count(SESSION) for bot in self.bots]
        wait_for("some messages", 30, lambda: len(traffic.acknowledged) > 10)
        return traffic

    def check_traffic(self, traffic, replaced=False):
        """Ends the traffic: each message was acknowledged, if not at first then when sent again, and no connection broke; each is in the
        history once and reached every client once and in order. Where gateways were replaced, a client's session may have ended with
        its own: it begins another, which has nothing of what was said before."""
        self.wait_heard(traffic)
        sent = traffic.stop()
        assert not traffic.refused, f"{len(traffic.refused)} of {len(sent)}: {traffic.refused[:3]}"
        assert not traffic.broken, f"{len(traffic.broken)} of {len(sent)}: {traffic.broken[:3]}"
        for bot, before in zip(self.bots, traffic.sessions):
            if replaced and bot.count(SESSION) > before:
                known = heard(bot, sent, self.channel)
                log(f"  {bot.name} began another session and heard {len(known)} of {len(sent)}")
            else:
                assert_each_once(bot, sent, self.channel)
                assert bot.count(SESSION) == before, f"{bot.name} began another session"
        assert self.said(traffic) == sent
        log(f"  {len(sent)} messages, the slowest took {traffic.slowest:.1f} s, {len(traffic.answers)} were sent again")

    def wait_heard(self, traffic):
        """Every client hears what is said now. One whose connection hangs finds out by its heartbeats, and libraries wait before they
        connect again."""
        new = len(traffic.acknowledged)
        for bot in self.bots:
            since = len(bot.messages())
            wait_for(f"{bot.name} to hear what is said", 150, lambda: set(traffic.acknowledged[new:]) & {
                event["content"] for event in bot.messages()[since:]})

    def said(self, traffic):
        """What the history has of the traffic, oldest first."""
        history = [message["content"] for message in self.rest.history(self.channel)]
        return [text for text in history if text.startswith(f"{traffic.prefix}-")]

    def explain(self):
        super().explain()
        for path in sorted(self.folder.glob("n*/log/pods/*/*/*.log")):
            lines = path.read_text(errors="replace").splitlines()
            print(f"--- {path.relative_to(self.folder)}", *(line[:400] for line in lines[-4:]), sep="\n", flush=True)

    def close(self):
        for bot in self.bots:
            bot.close()
        self.processes.stop_all()


# ---- the checks, in order ----


def the_manifests_bring_up_a_fleet_as_they_are(world):
    world.fleet.start()
    world.fleet.wait_ready(180)
    status = world.control.get("fleet", "main", "-n", NAMESPACE)["status"]
    assert status["bootstrapped"] is True, status
    nodes = {pod["spec"]["nodeName"] for pod in world.fleet.pods(**{"app.kubernetes.io/component": "data"})}
    assert nodes == {"n1", "n2"}, nodes


def an_evicted_pod_moves_its_work_and_a_budget_keeps_its_sibling(world):
    cell = world.cell_of_guild()
    for role in ROLES:
        traffic = world.begin_traffic(f"evict{role}")
        first, second = (f"{cell}-{role}-{ordinal}" for ordinal in (0, 1))
        for name, sibling in ((first, second), (second, first)):
            before = world.pod(name)["metadata"]["uid"]
            assert (refused := world.evict(name)) is None, refused
            refused = world.evict(sibling)
            assert refused and "disruption budget" in refused, f"{sibling} was evicted beside {name}: {refused}"
            wait_for(f"{name} to be replaced", 90, lambda: world.is_pod_ready(name, other_than=before))
        world.check_traffic(traffic, replaced=role == "gateway")


def a_cell_killed_in_its_container_is_started_again(world):
    cell = world.cell_of_guild()
    traffic = world.begin_traffic("killed")
    for name in (f"{cell}-data-0", f"{cell}-data-1"):
        before = world.pod(name)["status"]["containerStatuses"][0]
        task = before["containerID"].removeprefix("containerd://")
        machine = next(one for one in world.machines if one.name == world.pod(name)["spec"]["nodeName"])
        machine.execute("ctr", "--namespace", "k8s.io", "task", "kill", "--signal", "SIGKILL", task)
        wait_for(f"{name} to be started again", 90, lambda: world.is_pod_ready(name)
                 and world.pod(name)["status"]["containerStatuses"][0]["restartCount"] > before["restartCount"])
    world.check_traffic(traffic)


def another_image_is_rolled_out_pod_by_pod_without_losing_a_message(world):
    traffic = world.begin_traffic("image")
    image = {"spec": {"image": {"cell": "cellplane/cell:next"}}}
    world.control.kubectl("patch", "fleet", "main", "-n", NAMESPACE, "--type=merge", "-p", json.dumps(image))
    fewest = {}

    def rolled_out():
        """Every Pod runs the new image; until then, how few of a set were Ready at once."""
        pods = [pod for pod in world.fleet.pods() if "cellplane.dev/cell" in pod["metadata"]["labels"]
                or "cellplane.dev/storage-cell" in pod["metadata"]["labels"]]
        ready = {}
        for pod in pods:
            owner = pod["metadata"]["name"].rsplit("-", 1)[0]
            ready.setdefault(owner, 0)
            ready[owner] += world.serves(pod)
        for owner, count in ready.items():
            fewest[owner] = min(count, fewest.get(owner, count))
        return all(pod["spec"]["containers"][0]["image"].endswith(":next") and world.serves(pod) for pod in pods)

    wait_for("every Pod to run the new image", 240, rolled_out)
    for owner, count in fewest.items():
        assert count >= (0 if owner == "main-store" else 1), f"{owner} had {count} Ready Pods at once"
    world.fleet.wait_ready(60)
    world.check_traffic(traffic, replaced=True)


def a_machine_without_power_is_survived_and_its_pods_start_elsewhere(world):
    """Nobody is told: connections to it hang, its Pods count as running until Kubernetes gives the node up."""
    lost = world.machines[1]
    # What serves the guild shall be what is lost.
    cell = world.cell_of_guild()
    for role in ("guild", "data"):
        for pod in world.fleet.pods(**{"cellplane.dev/cell": cell, "app.kubernetes.io/component": role}):
            if pod["spec"]["nodeName"] != lost.name:
                assert (refused := world.evict(pod["metadata"]["name"])) is None, refused
                name, before = pod["metadata"]["name"], pod["metadata"]["uid"]
                wait_for(f"{name} to be replaced", 90, lambda: world.is_pod_ready(name, other_than=before))
    traffic = world.begin_traffic("power")
    lost.cut_power()
    cut = time.monotonic()
    wait_for(f"{lost.name} to be given up", 90, lambda: not world.is_ready(lost.name))
    log(f"  given up after {time.monotonic() - cut:.0f} s")
    # Those of its Pods that others stand beside are done without: the entry no longer sends anyone there.
    sofar = len(traffic.acknowledged)
    wait_for("messages to go on", 90, lambda: len(traffic.acknowledged) > sofar + 20)
    log(f"  messages go on after {time.monotonic() - cut:.0f} s")
    # Only a person can know that it is off and not just out of sight: that is what this taint says.
    world.control.kubectl("taint", "node", lost.name, "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute")
    wait_for("every Pod to run on the other machine", 180, lambda: all(
        pod["spec"]["nodeName"] != lost.name and world.serves(pod) for pod in world.fleet.pods()))
    world.fleet.wait_ready(90)
    world.wait_heard(traffic)
    sent = traffic.stop()
    assert not traffic.refused, f"{len(traffic.refused)} of {len(sent)}: {traffic.refused[:3]}"
    assert world.said(traffic) == sent
    for bot in world.bots:
        heard(bot, sent, world.channel)
    again = len(traffic.answers) + len(traffic.broken)
    log(f"  {len(sent)} messages, the slowest took {traffic.slowest:.1f} s, {again} were sent again")


def a_machine_that_returns_is_used_again(world):
    machine = world.machines[1]
    machine.boot()
    world.control.kubectl("taint", "node", machine.name, "node.kubernetes.io/out-of-service-")
    wait_for(f"{machine.name} to be Ready", 90, lambda: world.is_ready(machine.name))
    machine.route_to(world.machines[0])
    cell = world.cell_of_guild()
    traffic = world.begin_traffic("return")
    # Nothing moves by itself; what is made anew goes where the least is.
    for role in ROLES:
        name = f"{cell}-{role}-1"
        before = world.pod(name)["metadata"]["uid"]
        assert (refused := world.evict(name)) is None, refused
        wait_for(f"{name} to be replaced", 90, lambda: world.is_pod_ready(name, other_than=before))
        assert world.pod(name)["spec"]["nodeName"] == machine.name, name
    world.check_traffic(traffic, replaced=True)


CHECKS = [
    the_manifests_bring_up_a_fleet_as_they_are,
    suite.unmodified_bots_log_in_send_and_receive,
    suite.bots_live_through_a_move_without_noticing,
    suite.an_operator_killed_during_a_move_finishes_it_when_it_returns,
    an_evicted_pod_moves_its_work_and_a_budget_keeps_its_sibling,
    a_cell_killed_in_its_container_is_started_again,
    another_image_is_rolled_out_pod_by_pod_without_losing_a_message,
    a_machine_without_power_is_survived_and_its_pods_start_elsewhere,
    a_machine_that_returns_is_used_again,
]


def inside(folder, programs, wanted):
    world = World(programs, folder)
    return 0 if suite.run_checks(world, world.start, CHECKS, wanted) else 1


def main():
    if sys.argv[1] == "--inside":
        return inside(Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
    refused = what_the_kernel_refuses()
    if refused and os.environ.get("CELLPLANE_REAL_CLUSTER") == "if-possible":
        print(f"NOT RUN: the cluster of two machines: {refused}", flush=True)
        return 0
    if refused:
        raise SystemExit(f"the cluster of two machines cannot be made here: {refused}")
    programs = Path(sys.argv[1]).resolve()
    folder = Path(tempfile.mkdtemp(prefix="cellplane-cluster-"))
    # What needs the network beyond this machine comes first: there is none inside.
    tool_folder = tools(*TOOLS)
    python_with_libraries()
    node_with_libraries()
    (folder / "images").mkdir()
    log("making images")
    make_images(programs, tool_folder, folder / "images")
    log("starting two machines")
    code = enter(Path(__file__).resolve(), [str(programs), *sys.argv[2:]], folder)
    if code:
        print(f"logs are in {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
