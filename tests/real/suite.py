"""The platform on the real control plane: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, and our node agents.

    suite.py PROGRAMS [NAME…]     PROGRAMS: the folder with cell, cell-node, cell-operator and cellctl

Each check is a function named as a sentence; they share one fleet and run in order. Ends with `N passed, N failed`.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.error
from pathlib import Path

from bots import discord_js, discord_py
from components import ROOT, ControlPlane, Etcd, Processes, kill_below, log, tools, wait_for
from fleet import API, NAMESPACE, Fleet, Rest
from nodes import NODE_CHECKS
from perturbed import an_operator_that_is_perturbed_comes_to_the_same_end_on_the_real_servers
from storage import STORAGE_CHECKS, Databases
from traffic import Traffic, assert_each_once

# The second byte of its loopback addresses: two suites at once need two.
NETWORK = int(os.environ.get("CELLPLANE_REAL_NETWORK", 87))


class World:
    """What the checks share."""

    def __init__(self, programs, folder):
        self.folder, self.network = folder, NETWORK
        self.tools = tools("etcd", "etcdctl", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
        self.processes = Processes(folder)
        self.control = ControlPlane(self.processes, self.tools, folder, f"127.{NETWORK}.0.1")
        self.control.trust_agents()
        self.fleet = Fleet(self.processes, self.tools, folder, programs, self.control, NETWORK)
        self.bots = []
        self.databases = Databases(folder / "databases")

    def move(self, target):
        """Moves the guild and returns the finished Move."""
        started = json.loads(self.fleet.cellctl("guild", "move", "start", self.guild, "--to", target, "--yes", "-o", "json").stdout)
        return self.wait_moved(started["name"])

    def wait_moved(self, name, seconds=150):
        def held():
            status = self.control.get("move", name, "-n", NAMESPACE).get("status", {})
            return status if status.get("step") in ("Hold", "Complete", "Done") else None

        return wait_for(f"move {name} to pass its commit point", seconds, held)

    def cell_of_guild(self):
        return json.loads(self.fleet.cellctl("locate", self.guild, "-o", "json").stdout)["cell"]

    def other_cell(self):
        return "shared-2" if self.cell_of_guild() == "shared-1" else "shared-1"

    def wait_idle(self):
        """No run holds the guild any more."""
        def idle():
            moves = self.control.get("moves", "-n", NAMESPACE)["items"]
            return all(move.get("status", {}).get("result") for move in moves)

        wait_for("every move to end", 120, idle)

    def explain(self):
        """What a person would look at first."""
        for arguments in (
            ["get", "fleets,storagecells,cells,moves,storagemigrations,jobs,statefulsets,pvc", "-n", NAMESPACE, "-o", "wide"],
            ["get", "storagecells,storagemigrations", "-n", NAMESPACE, "-o", "jsonpath={range .items[*]}{.metadata.name}{'\\t'}{.status}{'\\n'}{end}"],
            ["get", "pods", "-A", "-o", "wide"],
            ["get", "events", "-A", "--sort-by=.lastTimestamp"],
            ["get", "nodes"],
        ):
            found = self.control.kubectl(*arguments, check=False)
            lines = (found.stdout + found.stderr).splitlines()
            print(f"$ kubectl {' '.join(arguments)}", *lines[:1], *lines[1:][-25:], sep="\n", flush=True)
        for path in sorted(self.folder.glob("node-*/**/*")):
            if path.is_file() and path.suffix == ".log" and path.stat().st_size:
                lines = path.read_text(errors="replace").splitlines()
                print(f"--- {path.relative_to(self.folder)}", *(line[:500] for line in lines[-6:]), sep="\n", flush=True)

    def close(self):
        for bot in self.bots:
            bot.close()
        agents = [name for name in self.processes.running if name.startswith("node-")]
        if agents and self.processes.alive("kube-apiserver"):
            self.control.kubectl("delete", "namespace", NAMESPACE, "--wait=false", check=False)
            self.control.kubectl("delete", "pods", "--all", "-n", NAMESPACE, "--grace-period=1", "--wait=true", "--timeout=30s", check=False)
        self.processes.stop_all()
        self.databases.close()
        kill_below(self.folder)
        self.fleet.close()


# ---- the checks, in order ----


def the_real_server_accepts_our_definitions_and_refuses_what_their_rules_forbid(world):
    for path in sorted((ROOT / "crds" / "yaml").glob("*.yaml")):
        world.control.kubectl("apply", "--server-side", "-f", str(path))
    for plural in ("fleets", "cells", "guilds", "moves", "storagecells", "storagemigrations"):
        world.control.kubectl("wait", "--for=condition=Established", f"crd/{plural}.cellplane.dev", "--timeout=30s")
    forbidden = [
        ("Move", "m", {"guild": "5", "from": "a", "to": "a"}, "same cell"),
        ("Move", "m", {"guild": "5", "units": ["b0001"], "from": "a", "to": "b"}, "exactly one"),
        ("Move", "m", {"guild": "0", "from": "a", "to": "b"}, "guild"),
        ("Move", "m", {"guild": "5", "from": "a", "to": "b", "deadlineSeconds": 0}, "deadlineSeconds"),
        ("Move", "m", {"guild": "9223372036854775808", "from": "a", "to": "b"}, "9223372036854775807"),
        ("Move", "m", {"guild": "5", "from": "a", "to": "../x"}, "spec.to"),
        ("Guild", "g-9999999999999999999", {"guildId": "9999999999999999999"}, "9223372036854775807"),
        ("Guild", "g-5", {"guildId": "5", "placement": {"cell": "../x"}}, "spec.placement.cell"),
        ("Guild", "g-6", {"guildId": "5"}, "g-<spec.guildId>"),
        ("Guild", "g-5", {"guildId": "5", "placement": {}}, "exactly one"),
        ("Cell", "c" * 41, {"storageCellRef": "main"}, "40 characters"),
        ("Cell", "a.b", {"storageCellRef": "main"}, "metadata.name"),
        ("Cell", "1a", {"storageCellRef": "main"}, "metadata.name"),
        ("Cell", "c", {"storageCellRef": "main", "weight": 0}, "weight"),
        ("StorageCell", "s", {"engine": "postgres"}, "engine"),
        ("StorageCell", "s", {"engine": "embedded", "embedded": {"reserve": "1"}}, "reserve"),
        ("StorageCell", "s", {"engine": "cassandra", "keyspace": "k"}, "exactly one of external and managed"),
        ("StorageCell", "s", {"engine": "cassandra", "external": {"contactPoints": ["a:1"]}}, "keyspace"),
        ("StorageCell", "s", {"engine": "cassandra", "keyspace": "k", "external": {"contactPoints": ["a:1"]}, "replication": {"d": 0}}, "replication"),
        ("StorageMigration", "m", {"source": "a", "target": "a"}, "same StorageCell"),
        ("StorageMigration", "m", {"source": "a", "target": "b", "scope": {"units": ["g-5"]}}, "spec.scope.units"),
        ("StorageMigration", "m", {"source": "a", "target": "b", "targetStage": "Reverse"}, "targetStage"),
    ]
    for kind, name, spec, word in forbidden:
        text = json.dumps({"apiVersion": API, "kind": kind, "metadata": {"name": name}, "spec": spec})
        result = world.control.kubectl("apply", "--server-side", "-f", "-", stdin=text, check=False)
        assert result.returncode != 0 and word in result.stderr, f"{kind} {spec}: {result.stderr.strip()}"


def the_sandboxs_apis_answer_as_the_real_servers_do(world):
    """The sandbox's own tests, pointed at the real servers: what passes on both is the same on both. Random scenarios are among them, from a
    fixed seed, so that a change is judged by what it changed; CELL_SEED, CELL_SCENARIOS and CELL_SEQUENCES (in the environment) play thousands."""
    etcd = Etcd(world.processes, world.tools, world.folder, "peer-etcd", f"127.{NETWORK}.0.3", 2379)
    etcd.start()
    # What controllers make of objects would be a difference: the sandbox's own are not running in those tests either.
    world.control.run_controllers("garbage-collector-controller,namespace-controller,serviceaccount-controller")
    cargo = ["cargo", "test", "--quiet", "-p", "cell-sandbox", "--lib", "--"]
    peers = {
        "RUST_BACKTRACE": "0", "CELL_ETCD_ENDPOINT": etcd.endpoint, "CELL_REAL_KUBECONFIG": str(world.control.kubeconfig),
        "CELL_ETCDCTL": str(world.tools / "etcdctl"), "CELL_SEED": os.environ.get("CELL_SEED", "20261130"),
    }
    for selection in (
        ["--test-threads=1", "etcd::tests::behaviour", "etcd::tests::watches"],
        ["--test-threads=1", "--ignored", "--nocapture", "differential", "parity"],
    ):
        result = subprocess.run([*cargo, *selection], cwd=ROOT, env={**os.environ, **peers}, capture_output=True, text=True, timeout=1800)
        assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-3000:]
        for line in result.stdout.splitlines():
            if "CELL_SEED=" in line:
                log("  " + line)
        log("  " + next(line for line in result.stdout.splitlines() if line.startswith("test result")))
    world.control.run_controllers()
    etcd.stop()


def plain_kubectl_works_against_the_sandbox(world):
    """The sandbox's own kubectl tests, which need a kubectl; then every verb a person uses, on a sandbox with a fleet."""
    kubectl, folder = world.tools / "kubectl", world.folder / "sandbox"
    env = {key: value for key, value in os.environ.items() if "proxy" not in key.lower()} | {"NO_COLOR": "1"}
    env["PATH"] = f"{kubectl.parent}:{env['PATH']}"
    cargo = ["cargo", "test", "--quiet", "-p", "cell-sandbox", "--lib", "--", "--nocapture", "kube_api::tests::server::kubectl"]
    result = subprocess.run(cargo, cwd=ROOT, env=env, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0 and "SKIPPED" not in result.stderr + result.stdout, result.stdout[-4000:] + result.stderr[-1000:]
    log("  " + next(line for line in result.stdout.splitlines() if line.startswith("test result")))

    def cellctl(*words):
        command = [world.fleet.programs / "cellctl", "sandbox", *words, "--name", "kubectl", "--state-dir", folder]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def run(*words, stdin=None, check=True):
        done = subprocess.run([kubectl, "--kubeconfig", folder / "kubeconfig", *words], env=env, input=stdin, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0 or not check, f"kubectl {' '.join(words)}: {done.stderr}"
        return done.stdout if check else done

    cellctl("up", "--no-build")
    try:
        for kind in ("fleets", "cells", "guilds", "moves", "storagecells", "pods", "statefulsets", "leases", "events", "cellplane", "nodes"):
            run("get", kind)
        assert run("get", "cells", "-o", "jsonpath={.items[*].metadata.name}").split() == ["shared-1", "shared-2"]
        assert "shared-1" in run("describe", "cell", "shared-1") and "the role serves" in run("logs", "shared-1-guild-0", "--tail=50")
        spec = {"apiVersion": API, "kind": "Move", "metadata": {"name": "nowhere"}, "spec": {"guild": "5", "from": "shared-1", "to": "nowhere"}}
        run("apply", "--server-side", "--validate=false", "-f", "-", stdin=json.dumps(spec))
        run("wait", "--for=condition=Stalled", "move/nowhere", "--timeout=60s")
        assert "ReferenceNotFound" in run("describe", "move", "nowhere")
        refused = run("patch", "move", "nowhere", "--type=merge", "-p", '{"spec":{"to":"shared-2"}}', check=False)
        assert refused.returncode != 0 and "to cannot change" in refused.stderr, refused.stderr
        run("patch", "cell", "shared-2", "--type=merge", "-p", '{"spec":{"weight":50}}')
        assert run("get", "cell", "shared-2", "-o", "jsonpath={.spec.weight}") == "50"
        run("delete", "move", "nowhere", "--timeout=60s")
        gone = run("get", "move", "nowhere", check=False)
        assert gone.returncode != 0 and "NotFound" in gone.stderr, gone.stderr
    finally:
        cellctl("down", "--delete", "--yes")


def a_fleet_becomes_ready_under_the_real_controllers(world):
    world.fleet.start()
    world.fleet.wait_ready(120)
    status = world.control.get("fleet", "main", "-n", NAMESPACE)["status"]
    assert status["bootstrapped"] is True, status


def nothing_is_written_while_nothing_changes(world):
    kinds = "fleets,cells,guilds,moves,storagecells,storagemigrations,statefulsets,services,poddisruptionbudgets,secrets"
    versions = lambda: {
        (item["kind"], item["metadata"]["name"]): item["metadata"]["resourceVersion"]
        for item in world.control.get(kinds, "-n", NAMESPACE)["items"]
    }
    wait_for("two equal readings", 60, lambda: versions() == (time.sleep(5), versions())[1])
    before = versions()
    time.sleep(20)
    after = versions()
    assert before == after, [key for key in after if before.get(key) != after[key]]


def start_bots(world):
    """Both libraries' bots, anew, once they have the guild."""
    for bot in world.bots:
        bot.close()
    world.python = discord_py("discord.py", world.fleet.base, world.tokens[0], world.folder)
    world.node = discord_js("discord.js", world.fleet.base, world.tokens[1], world.folder)
    world.bots = [world.python, world.node]
    for bot in world.bots:
        bot.expect("ready", 60, lambda event: event["event"] == "ready")
        bot.expect("the guild", 30, lambda event: world.guild in event.get("guilds", []) or event.get("guild") == world.guild)


def unmodified_bots_log_in_send_and_receive(world):
    fleet = world.fleet
    owner, second = fleet.token("owner"), fleet.token("second")
    assert fleet.token("owner")["userId"] == owner["userId"], "issuing twice names one user"
    world.rest, world.other = Rest(fleet.base, owner["token"]), Rest(fleet.base, second["token"])
    wait_for("the entry", 60, lambda: world.rest.call("GET", "/users/@me"))
    guild = world.rest.call("POST", "/guilds", {"name": "real"})
    world.guild = guild["id"]
    channels = world.rest.call("GET", f"/guilds/{world.guild}/channels")
    world.channel = next(channel["id"] for channel in channels if channel["type"] == 0)
    invite = world.rest.call("POST", f"/channels/{world.channel}/invites", {})
    world.other.call("POST", f"/invites/{invite['code']}")
    world.tokens = owner["token"], second["token"]
    start_bots(world)
    world.python.send(world.channel, "hello from discord.py")
    world.node.send(world.channel, "hello from discord.js")
    for bot in world.bots:
        for text in ("hello from discord.py", "hello from discord.js"):
            bot.expect(text, 30, lambda event: event["event"] == "message" and event["content"] == text)


def bots_live_through_a_move_without_noticing(world):
    disturbed = lambda event: event["event"] in ("disconnect", "resumed", "error")
    before = [bot.count(disturbed) for bot in world.bots]
    target = world.other_cell()
    traffic = Traffic(world.rest, world.channel, "move")
    time.sleep(1)
    status = world.move(target)
    time.sleep(2)
    sent = traffic.stop()
    assert not traffic.refused, traffic.refused[:3]
    assert world.cell_of_guild() == target
    for bot in world.bots:
        assert_each_once(bot, sent, world.channel)
    assert [bot.count(disturbed) for bot in world.bots] == before, "a bot was disturbed"
    history = [message["content"] for message in world.rest.history(world.channel)]
    assert [text for text in history if text.startswith("move-")] == sent
    log(f"  {len(sent)} messages; commands held {status.get('heldMicroseconds', 0) / 1000:.1f} ms; slowest send {traffic.slowest * 1000:.0f} ms")
    world.wait_idle()


def an_operator_killed_during_a_move_finishes_it_when_it_returns(world):
    target = world.other_cell()
    traffic = Traffic(world.rest, world.channel, "operator")
    started = json.loads(world.fleet.cellctl("guild", "move", "start", world.guild, "--to", target, "--yes", "-o", "json").stdout)
    for pod in world.fleet.pods(**{"app.kubernetes.io/component": "operator"}):
        world.control.kubectl("delete", "pod", pod["metadata"]["name"], "-n", NAMESPACE, "--grace-period=0", "--force", "--wait=false")
    world.wait_moved(started["name"])
    sent = traffic.stop()
    assert not traffic.refused, traffic.refused[:3]
    # The control-plane API comes back with the operator that replaces the killed one.
    wait_for("the guild to be located at the target", 90, lambda: world.cell_of_guild() == target)
    for bot in world.bots:
        assert_each_once(bot, sent, world.channel)
    world.wait_idle()


def sends_go_on_while_the_fleets_etcd_is_away_for_a_minute(world):
    traffic = Traffic(world.rest, world.channel, "etcd", pause=0.1)
    time.sleep(1)
    world.fleet.etcd.stop()
    time.sleep(60)
    during = len(traffic.acknowledged)
    world.fleet.etcd.start()
    time.sleep(5)
    sent = traffic.stop()
    assert not traffic.refused, traffic.refused[:3]
    assert during > 200, f"only {during} sends were acknowledged while etcd was away"
    for bot in world.bots:
        assert_each_once(bot, sent, world.channel)
    world.fleet.wait_ready(120)


def a_node_agent_that_dies_and_returns_adopts_its_pods(world):
    before = {pod["metadata"]["name"]: pod["status"]["containerStatuses"][0]["restartCount"] for pod in world.fleet.pods()}
    traffic = Traffic(world.rest, world.channel, "agent", pause=0.1)
    world.processes.stop("node-2", sig=signal.SIGKILL)
    time.sleep(3)
    world.fleet.node(2)
    wait_for("node-2 to be Ready", 60, lambda: "True" in world.control.kubectl(
        "get", "node", "node-2", "-o", "jsonpath={.status.conditions[?(@.type=='Ready')].status}"))
    time.sleep(3)
    sent = traffic.stop()
    assert not traffic.refused, traffic.refused[:3]
    for bot in world.bots:
        assert_each_once(bot, sent, world.channel)
    after = {pod["metadata"]["name"]: pod["status"]["containerStatuses"][0]["restartCount"] for pod in world.fleet.pods()}
    assert before == after, "a Pod was restarted"


def a_store_whose_volume_fills_refuses_writes_loses_nothing_and_goes_on_with_room(world):
    if not world.fleet.small:
        return log("  not root: no volume small enough to be filled")
    owner = world.fleet.token("filler")
    rest = Rest(world.fleet.base, owner["token"])
    guild = rest.call("POST", "/guilds", {"name": "full"})["id"]
    channel = next(found["id"] for found in rest.call("GET", f"/guilds/{guild}/channels") if found["type"] == 0)
    send = lambda text: rest.call("POST", f"/channels/{channel}/messages", {"content": text})
    said = lambda: [message["content"] for message in rest.history(channel)]
    store = world.fleet.pods(**{"app.kubernetes.io/component": "store"})[0]
    restarts = lambda: {pod["metadata"]["name"]: pod["status"]["containerStatuses"][0]["restartCount"] for pod in world.fleet.pods()}
    before, texts = restarts(), [f"before-{number}" for number in range(20)]
    for text in texts:
        send(text)
    filler = world.fleet.volume / "filler"
    with open(filler, "wb") as file:
        free = shutil.disk_usage(world.fleet.volume).free
        os.posix_fallocate(file.fileno(), 0, free - (16 << 20))
    try:
        send("too much")
        raise AssertionError("a full volume took a write")
    except urllib.error.HTTPError as error:
        answer = json.loads(error.read())
        assert error.code == 507 and answer["message"], (error.code, answer)
    assert said() == texts, "what was acknowledged is readable while the volume is full"
    log_of = lambda: "".join(path.read_text(errors="replace") for path in world.folder.glob(f"node-*/logs/{store['metadata']['uid']}/**/*.log"))
    wait_for("the store to say why", 30, lambda: "bytes free and keeps" in log_of())
    filler.unlink()
    wait_for("the store to say that there is room", 30, lambda: send("after") and "has room again" in log_of())
    found = said()
    assert [text for text in found if text.startswith("before")] == texts, found
    assert "after" in found, found
    assert restarts() == before, "a Pod was restarted"


CHECKS = [
    the_real_server_accepts_our_definitions_and_refuses_what_their_rules_forbid,
    the_sandboxs_apis_answer_as_the_real_servers_do,
    plain_kubectl_works_against_the_sandbox,
    an_operator_that_is_perturbed_comes_to_the_same_end_on_the_real_servers,
    a_fleet_becomes_ready_under_the_real_controllers,
    nothing_is_written_while_nothing_changes,
    unmodified_bots_log_in_send_and_receive,
    bots_live_through_a_move_without_noticing,
    an_operator_killed_during_a_move_finishes_it_when_it_returns,
    sends_go_on_while_the_fleets_etcd_is_away_for_a_minute,
    a_node_agent_that_dies_and_returns_adopts_its_pods,
    a_store_whose_volume_fills_refuses_writes_loses_nothing_and_goes_on_with_room,
    *NODE_CHECKS,
    *STORAGE_CHECKS,
]


def run_checks(world, start, checks, wanted):
    """Runs the checks, all or those named in `wanted`, up to the first that fails: the next ones build on it. True if none failed."""
    passed, failed = 0, 0
    try:
        start()
        for check in checks:
            if wanted and check.__name__ not in wanted:
                continue
            log(check.__name__.replace("_", " "))
            try:
                check(world)
                passed += 1
            except Exception:
                traceback.print_exc()
                failed += 1
                world.explain()
                break
    finally:
        world.close()
    print(f"\n{passed} passed, {failed} failed, {len(wanted or checks) - passed - failed} skipped", flush=True)
    return not failed


def main():
    programs = Path(sys.argv[1]).resolve()
    folder = Path(tempfile.mkdtemp(prefix="cellplane-real-"))
    world = World(programs, folder)
    if not run_checks(world, world.control.start, CHECKS, sys.argv[2:]):
        print(f"logs are in {folder}")
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
