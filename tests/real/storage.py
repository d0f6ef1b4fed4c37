"""Checks of storage on real Cassandras: StorageCells that are run elsewhere, and migrations between stores under live traffic.

They run on the fleet that suite.py has brought up, after its bots have logged in. The databases are 127.88.0.31 (passwords and TLS),
127.88.0.32 (neither), and one of three nodes, 127.88.0.41 to 43.
"""

import base64
import concurrent.futures
import json
import os
import signal
import threading
import time
import urllib.error
from pathlib import Path

import cassandra
from components import log, wait_for
from fleet import NAMESPACE
from traffic import Traffic, assert_each_once

SECURE, PLAIN, NOBODY = "127.88.0.31", "127.88.0.32", "127.88.0.33"
TRIO = ["127.88.0.41", "127.88.0.42", "127.88.0.43"]
# A superuser that every new Cassandra with passwords has.
LOGIN = {"username": "cassandra", "password": "cassandra"}
WRONG = "not the one"
# Workers and coordinators that are killed while one table is copied.
KILLS = 20
# Ranges that one worker has in hand at most (`cell migrate worker --ranges`).
RANGES = 4


class Databases:
    """The Cassandras of a run."""

    def __init__(self, folder):
        self.root = folder
        cassandra.jmx_port = lambda address: 7500 + int(address.rsplit(".", 1)[1])

    def folder(self, address):
        return self.root / address

    def start(self, address):
        together = {"seeds": TRIO[0], "cluster": "trio", "durable": True} if address in TRIO else {}
        cassandra.start(address, self.folder(address), secure=address == SECURE, **together)

    def start_all(self, addresses):
        """Several at once: each waits for itself most of the time."""
        with concurrent.futures.ThreadPoolExecutor(len(addresses)) as pool:
            for future in [pool.submit(self.start, address) for address in addresses]:
                future.result()

    def start_trio(self):
        """The seed first; then the others, until all of them know each other."""
        self.start(TRIO[0])
        self.start_all(TRIO[1:])
        for address in TRIO:
            wait_for(f"three nodes in the ring of {address}", 60, lambda: cassandra.ring(address) == len(TRIO))

    def stop(self, address, hard=False):
        cassandra.stop(self.folder(address), hard)

    def close(self):
        for folder in self.root.glob("*"):
            cassandra.stop(folder)


class Readers:
    """Clients that look at history while a migration runs: what is asked of the copy is compared by the platform itself."""

    def __init__(self, world, count=2):
        self.world, self.refused, self.reads = world, [], 0
        self.stopping = threading.Event()
        self.threads = [threading.Thread(target=self._run, daemon=True) for _ in range(count)]
        for thread in self.threads:
            thread.start()

    def _run(self):
        while not self.stopping.is_set():
            try:
                self.world.other.call("GET", f"/channels/{self.world.channel}/messages?limit=50")
                self.reads += 1
            except Exception as error:
                self.refused.append(str(error))
            self.stopping.wait(0.1)

    def stop(self):
        self.stopping.set()
        for thread in self.threads:
            thread.join(60)


class Live:
    """Traffic and readers around a check; at its end everything must have reached everyone exactly once."""

    def __init__(self, world, prefix, pause=0.05):
        self.world, self.prefix, self.pause = world, prefix, pause

    def __enter__(self):
        self.disturbed = self._disturbed()
        self.traffic = Traffic(self.world.rest, self.world.channel, self.prefix, self.pause)
        self.readers = Readers(self.world)
        return self

    def more(self, sends, seconds=60):
        """Waits until so many more sends were acknowledged: what lies before has been lived with, however fast the machine is."""
        goal = len(self.traffic.acknowledged) + sends
        wait_for(f"{sends} more sends to be acknowledged", seconds, lambda: len(self.traffic.acknowledged) >= goal)

    def _disturbed(self):
        return [bot.count(lambda event: event["event"] in ("disconnect", "resumed", "error")) for bot in self.world.bots]

    def __exit__(self, kind, error, trace):
        self.readers.stop()
        sent = self.traffic.stop()
        if kind is not None:
            return
        assert not self.traffic.refused, f"{len(self.traffic.refused)} sends failed: {self.traffic.refused[:3]}"
        assert not self.readers.refused, f"{len(self.readers.refused)} reads failed: {self.readers.refused[:3]}"
        for bot in self.world.bots:
            assert_each_once(bot, sent, self.world.channel)
        assert self._disturbed() == self.disturbed, "a bot was disturbed"
        history = [message["content"] for message in self.world.rest.history(self.world.channel)]
        assert [text for text in history if text.startswith(f"{self.prefix}-")] == sent, "the history differs from what was acknowledged"
        lacking = set(getattr(self.world, "archive", [])) - set(history)
        assert not lacking, f"{len(lacking)} messages from before are gone: {sorted(lacking)[:3]}"
        log(f"  {len(sent)} messages and {self.readers.reads} reads; slowest send {self.traffic.slowest * 1000:.0f} ms")


class Migration:
    """One StorageMigration, told what to do as a person would tell it."""

    def __init__(self, world, source, target, name, window=600, stage="ShadowRead"):
        self.world, self.name, self.source, self.target = world, name, source, target
        # Few read much here: every read is compared, and few are enough.
        what = ["--from", source, "--to", target, "--units", unit_of(world), "--name", name, "--rollback-window-seconds", str(window),
                "--target-stage", stage, "--shadow-per-ten-thousand", "10000", "--shadow-min-samples", "30"]
        plan = json.loads(self.cellctl("plan", *what, "-o", "json").stdout)
        assert plan["logs"] >= 1 and all(check["ok"] for check in plan["checks"]), plan
        self.cellctl("start", *what, "--plan-hash", plan["hash"], "--yes")
        self.seen, self.stages = None, []

    def cellctl(self, verb, *arguments, check=True):
        return self.world.fleet.cellctl("migration", verb, *arguments, check=check)

    def tell(self, verb, *arguments, check=True):
        return self.cellctl(verb, self.name, *arguments, check=check)

    def status(self):
        status = self.world.control.get("storagemigration", self.name, "-n", NAMESPACE).get("status", {})
        if status.get("stage") not in (None, self.seen):
            self.seen = status["stage"]
            self.stages.append(self.seen)
            log(f"  {self.name}: {self.seen}")
        return status

    def wait(self, what, seconds, check, ends=False):
        """Waits until the status is as wanted. A run that ends otherwise is a failure at once."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                status = self.status()
            except RuntimeError:
                status = {}
            if status and check(status):
                return status
            ended = status.get("result")
            assert not ended or ends, f"{self.name} ended as {ended} while waiting for {what}: {status}"
            assert time.monotonic() < deadline, f"{self.name}: no {what} within {seconds} s: {json.dumps(status)}"
            time.sleep(0.25)

    def wait_stage(self, stage, seconds):
        return self.wait(f"stage {stage}", seconds, lambda status: status.get("stage") == stage)

    def wait_goal(self, stage, seconds):
        return self.wait(f"the goal {stage}", seconds, lambda status: status.get("stage") == stage
                         and status.get("blockedBy", "").startswith("TargetStageReached"))

    def wait_result(self, result, seconds):
        found = self.wait(f"result {result}", seconds, lambda status: status.get("result"), ends=True)
        assert found["result"] == result, found
        return found

    def pods(self, component):
        found = self.world.fleet.pods(**{"app.kubernetes.io/component": component})
        return [pod["metadata"]["name"] for pod in found if pod["metadata"]["name"].startswith(self.name)]

    def report(self):
        return json.loads(self.tell("report", "-o", "json").stdout)


def unit_of(world):
    found = json.loads(world.fleet.cellctl("locate", world.guild, "-o", "json").stdout)
    return f"b{int(found['bucket']):04}" if str(found["bucket"]).isdigit() else found["bucket"]


def storage_of(world):
    return json.loads(world.fleet.cellctl("locate", world.guild, "-o", "json").stdout)["storageCell"]


def secret(world, name, **values):
    data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
    world.control.apply([{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": NAMESPACE}, "data": data}])


def external(address, keyspace="cellplane", **more):
    where = {"contactPoints": [f"{address}:9042"], "datacenter": "datacenter1"}
    if address == SECURE:
        where |= {"secretRef": "cassandra-login", "tls": {"caSecretRef": "cassandra-ca"}}
    where |= more.pop("external", {})
    return {"engine": "cassandra", "keyspace": keyspace, "replication": {"datacenter1": 1}, "external": where, **more}


def storage_status(world, name):
    return world.control.get("storagecell", name, "-n", NAMESPACE).get("status", {})


def wait_storage(world, name, seconds=90):
    wait_for(f"StorageCell {name} to be Ready", seconds, lambda: world.fleet.condition("storagecell", name)["status"] == "True")
    return storage_status(world, name)


def write_archive(world, count=400):
    """Messages from before, as fast as the platform lets one user write: what a migration has to carry."""
    if getattr(world, "archive", None):
        return
    began, world.archive = time.monotonic(), [f"archive-{number}" for number in range(count)]

    def send(text):
        while True:
            try:
                return world.rest.call("POST", f"/channels/{world.channel}/messages", {"content": text})
            except urllib.error.HTTPError as error:
                if error.code != 429:
                    raise
                time.sleep(float(error.headers.get("retry-after") or 0.2))

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(send, world.archive))
    log(f"  {count} messages from before, written in {time.monotonic() - began:.0f} s")


def processes_of(world, pod):
    """Pids of a Pod's containers: children of this run, found by their name in the environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment = (entry / "environ").read_bytes().split(b"\0")
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if f"POD_NAME={pod}".encode() in environment and str(world.fleet.programs).encode() in line:
                found.append(int(entry.name))
    return found


def kill(world, pod):
    """Kills a Pod's processes; answers how many there were."""
    killed = 0
    for pid in processes_of(world, pod):
        try:
            os.kill(pid, signal.SIGKILL)
            killed += 1
        except ProcessLookupError:
            pass
    return killed


# ---- the checks, in order ----


def a_database_run_elsewhere_becomes_ready_by_a_look(world):
    world.databases.start_all([SECURE, PLAIN])
    secret(world, "cassandra-login", **LOGIN)
    secret(world, "cassandra-ca", **{"ca.crt": (world.databases.folder(SECURE) / "ca.pem").read_text()})
    world.fleet.resource("StorageCell", "first", external(SECURE))
    world.fleet.resource("StorageCell", "second", external(PLAIN))
    for name in ("first", "second"):
        status = wait_storage(world, name, 120)
        assert status["reachableNodes"] == 1 and status["version"].startswith("5."), status
        assert status["schemaVersion"] >= 1, status


def a_database_that_cannot_be_used_says_why(world):
    cassandra.certificate(NOBODY, made(world.databases.folder(NOBODY)))
    secret(world, "other-ca", **{"ca.crt": (world.databases.folder(NOBODY) / "ca.pem").read_text()})
    secret(world, "cassandra-wrong", username="cassandra", password=WRONG)
    wrong = {
        "no-node": (external(NOBODY), NOBODY),
        "no-login": (external(SECURE, external={"secretRef": "cassandra-wrong"}), "password"),
        "no-trust": (external(SECURE, external={"tls": {"caSecretRef": "other-ca"}}), "certificate"),
        "no-secret": (external(SECURE, external={"secretRef": "not-there"}), "not-there"),
        "no-copies": (external(PLAIN, "too_many", replication={"datacenter1": 3}), "required"),
        "no-such-place": (external(PLAIN, "elsewhere", external={"datacenter": "moon"}, replication={"moon": 1}), "moon"),
    }
    for name, (spec, _) in wrong.items():
        world.fleet.resource("StorageCell", name, spec)
    for name, (_, word) in wrong.items():
        def refused():
            ready = world.fleet.condition("storagecell", name)
            said = ready["reason"] in ("ProbeFailed", "ReferenceNotFound") and ready["status"] == "False"
            return ready if said else None

        ready = wait_for(f"StorageCell {name} to say what is wrong", 150, refused)
        log(f"  {name}: {ready['reason']}: {ready['message'][:200]}")
        assert word in ready["message"], f"{name} does not speak of {word}: {ready['message']}"
        assert WRONG not in ready["message"], ready["message"]
    for name in wrong:
        world.control.kubectl("delete", "storagecell", name, "-n", NAMESPACE, "--timeout=60s")


def made(folder):
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def units_go_to_a_database_and_back_and_there_again_while_bots_talk(world):
    write_archive(world)
    with Live(world, "there") as live:
        one = Migration(world, "main", "first", "there")
        watched = one.tell("watch", "--timeout", "300s")
        assert watched.returncode == 0 and "advance" in watched.stderr, watched.stderr
        status = one.wait_goal("ShadowRead", 30)
        clean(status)
        assert storage_of(world) == "main", "it stops before anything is cut over"
        one.tell("advance", "--yes")
        status = one.wait_goal("Reverse", 120)
        assert status["rollbackReadiness"] == "Ready", status
        assert storage_of(world) == "first"
        log(f"  shadow {status['shadow']}; commands held {status.get('heldMicroseconds', 0) / 1000:.1f} ms at most")
        live.more(20)
        one.tell("rollback", "--yes")
        one.wait_result("RolledBack", 120)
        assert storage_of(world) == "main"
        live.more(10)
        assert not live.traffic.refused, live.traffic.refused[:3]
        again = Migration(world, "main", "first", "there-again", window=3)
        again.tell("pause")
        stopped = again.tell("watch", "--timeout", "60s", check=False)
        assert stopped.returncode == 3 and "resume" in stopped.stderr, (stopped.returncode, stopped.stderr)
        again.tell("resume")
        clean(again.wait_goal("ShadowRead", 300))
        again.tell("advance", "--to", "Cutover", "--yes")
        again.wait_goal("Reverse", 120)
        again.tell("complete", "--yes")
        again.wait_result("Completed", 120)
        assert storage_of(world) == "first"
        live.more(20)
    nothing_is_left(world, one, again)


def clean(status):
    assert status["receipt"]["clean"] and status["receipt"]["rows"] > 0, status["receipt"]
    shadow = status["shadow"]
    assert shadow["samples"] > 0 and not any(shadow.get("mismatches", {}).values()), shadow


def nothing_is_left(world, *migrations):
    """Neither Pods nor claims of runs that have ended."""
    def gone():
        found = json.loads(world.control.kubectl("get", "pods,pvc,statefulsets,deployments", "-n", NAMESPACE, "-o", "json"))["items"]
        names = [f"{item['kind']} {item['metadata']['name']}" for item in found
                 if any(f"{one.name}-{part}" in item["metadata"]["name"] for one in migrations for part in ("coordinator", "workers"))]
        if names:
            raise AssertionError(f"left: {names}")
        return True

    wait_for("coordinators, workers and their claims to be gone", 60, gone)


def coordinator(migration):
    """What the coordinator says; nothing while it is away."""
    return migration.report()["coordinator"] or {}


def copied_more_than(rows, state):
    return state if state.get("rows", 0) > rows and state["workers"] else None


def kill_everyone(world, migration, least=KILLS):
    """Coordinator and workers, again and again while rows are copied, each time as soon as those before have copied something. What was
    done stays done, and what is done again was in the hands of a worker that was killed."""
    killed, in_flight = 0, 0
    seen = coordinator(migration)
    while killed < least:
        # Only what was copied since this coordinator began counts: sums are durable, so there must be more than before.
        rows = seen.get("rows", 0)
        seen = wait_for(f"something to be copied after {killed} kills", 120, lambda: copied_more_than(rows, coordinator(migration)))
        assert not seen["complete"], f"it was over after {killed} kills"
        log(f"  {killed} killed, {seen['rows']} rows copied, {seen['redone']} ranges done again")
        done = seen["donePpm"]
        pods = migration.pods("coordinator") + migration.pods("worker")
        in_flight += RANGES * (len(pods) - 1)
        # All of them before any can come again, or a worker would lease something anew in between.
        killed += sum(kill(world, pod) for pod in pods)
        for pod in pods:
            # A new Pod begins at once; the old one would wait longer before each start.
            world.control.kubectl("delete", "pod", pod, "-n", NAMESPACE, "--grace-period=0", "--force", "--wait=false")
        seen = wait_for("a coordinator after its kill", 120, lambda: coordinator(migration) or None)
        assert seen["donePpm"] >= done, f"what was done is lost: {done} parts in a million, then {seen['donePpm']}"
    redone = wait_for("the coordinator to count what was done again", 60, lambda: coordinator(migration).get("redone"))
    assert redone <= in_flight, f"{redone} ranges were done again, but only {in_flight} can have been in flight"
    log(f"  killed {killed}; {redone} ranges were done again, of {in_flight} that can have been in flight")


def a_migration_between_databases_lives_through_the_death_of_everyone_in_it(world):
    write_archive(world)
    source = storage_of(world)
    with Live(world, "deaths") as live:
        one = Migration(world, source, "second", "deaths", window=0, stage="DualWrite")
        # Every log is shipped; it waits before the copy of what is older.
        one.wait_goal("DualWrite", 120)
        world.databases.stop(PLAIN)
        began, before = time.monotonic(), len(live.traffic.acknowledged)
        # Long enough for every request to the target to have failed more than once.
        live.more(100)
        assert not live.traffic.refused and not live.readers.refused, (live.traffic.refused[:3], live.readers.refused[:3])
        during = len(live.traffic.acknowledged) - before
        log(f"  the target stopped while it gets a copy: {during} sends in {time.monotonic() - began:.0f} s, "
            f"the slowest ever {live.traffic.slowest * 1000:.0f} ms")
        one.tell("throttle", "--rows-per-second", "5")
        one.tell("advance", "--to", "ShadowRead", "--yes")
        world.databases.start(PLAIN)
        kill_everyone(world, one)
        for pod in one.pods("coordinator") + one.pods("worker"):
            world.control.kubectl("delete", "pod", pod, "-n", NAMESPACE, "--grace-period=0", "--force", "--wait=false")
        one.tell("throttle", "--rows-per-second", "0")
        clean(one.wait_goal("ShadowRead", 300))
        one.tell("advance", "--to", "Complete", "--yes")
        one.wait_result("Completed", 180)
        assert storage_of(world) == "second"
    nothing_is_left(world, one)


def a_database_that_loses_a_replica_in_the_middle_of_a_migration_serves_on(world):
    write_archive(world)
    source = storage_of(world)
    world.databases.start_trio()
    everyone = {"contactPoints": [f"{address}:9042" for address in TRIO]}
    world.fleet.resource("StorageCell", "trio", external(TRIO[0], external=everyone, replication={"datacenter1": 3}))
    assert wait_storage(world, "trio", 180)["reachableNodes"] == 3
    with Live(world, "replica", pause=0.1) as live:
        one = Migration(world, source, "trio", "replica", window=0)
        one.wait_stage("Backfill", 120)
        world.databases.stop(TRIO[2], hard=True)
        clean(one.wait_goal("ShadowRead", 420))
        # A cutover is not begun while a node is missing; the one after it may be lost again.
        world.databases.start(TRIO[2])
        one.tell("advance", "--to", "Cutover", "--yes")
        one.wait_goal("Reverse", 240)
        assert storage_of(world) == "trio"
        world.databases.stop(TRIO[1], hard=True)
        live.more(50)
        world.databases.start(TRIO[1])
        one.tell("complete", "--yes")
        one.wait_result("Completed", 180)
    nothing_is_left(world, one)


STORAGE_CHECKS = [
    a_database_run_elsewhere_becomes_ready_by_a_look,
    a_database_that_cannot_be_used_says_why,
    units_go_to_a_database_and_back_and_there_again_while_bots_talk,
    a_migration_between_databases_lives_through_the_death_of_everyone_in_it,
    a_database_that_loses_a_replica_in_the_middle_of_a_migration_serves_on,
]
