#!/usr/bin/env python3
"""A real Cassandra for the suites: fetched once by Maven, one process a node, on loopback addresses of its own.

    cassandra.py suite PROGRAMS [TEST…]          what tests/real/run calls: one node, one with TLS and passwords, three, with the suites of
                                                 cell/data; PROGRAMS is a profile's folder of the target folder, where they are built
    cassandra.py start ADDRESS DIR [SEEDS] [CLUSTER]
    cassandra.py stop DIR [kill]
    cassandra.py nodetool ADDRESS COMMAND…

Only processes started here are ever signalled: by the pid in their folder.
"""

import concurrent.futures
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

VERSION = os.environ.get("CASSANDRA_VERSION", "5.0.9")
HEAP = os.environ.get("CASSANDRA_HEAP", "512m")
CACHE = Path(os.environ.get("CELLPLANE_CACHE") or Path.home() / ".cache" / "cellplane")
ROOT = Path(__file__).resolve().parent.parent.parent

# What the server needs of a Java that keeps its own packages closed: packages opened, by module, and packages shown to it.
OPENED = {
    "java.base": "java.lang.module jdk.internal.loader jdk.internal.ref jdk.internal.reflect jdk.internal.math jdk.internal.module "
                 "jdk.internal.util.jar sun.nio.ch java.io java.lang.reflect java.lang java.util java.util.concurrent "
                 "java.util.concurrent.atomic java.net java.math java.nio",
    "jdk.management": "com.sun.management.internal",
    "jdk.compiler": "com.sun.tools.javac",
}
SHOWN = {
    "java.base": "jdk.internal.misc java.lang.ref",
    "java.management.rmi": "com.sun.jmx.remote.internal.rmi",
    "java.rmi": "sun.rmi.registry sun.rmi.server",
    "java.sql": "java.sql",
    "jdk.unsupported": "sun.misc",
    "jdk.compiler": "com.sun.tools.javac.file",
    "jdk.attach": "sun.tools.attach",
}

POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>dev.cellplane</groupId><artifactId>cassandra</artifactId><version>1</version><packaging>pom</packaging>
<dependencies><dependency>
<groupId>org.apache.cassandra</groupId><artifactId>cassandra-all</artifactId><version>{version}</version>
</dependency></dependencies>
<build><plugins><plugin><groupId>org.apache.maven.plugins</groupId><artifactId>maven-dependency-plugin</artifactId>
<version>3.6.1</version></plugin></plugins></build></project>
"""

YAML = """cluster_name: {cluster}
num_tokens: 16
auto_bootstrap: false
partitioner: org.apache.cassandra.dht.Murmur3Partitioner
endpoint_snitch: SimpleSnitch
seed_provider:
  - class_name: org.apache.cassandra.locator.SimpleSeedProvider
    parameters: [{{seeds: "{seeds}"}}]
listen_address: {address}
rpc_address: {address}
native_transport_port: 9042
storage_port: 7000
data_file_directories: [{folder}/data]
commitlog_directory: {folder}/commitlog
hints_directory: {folder}/hints
saved_caches_directory: {folder}/saved_caches
cdc_raw_directory: {folder}/cdc_raw
{sync}
commitlog_segment_size: 16MiB
commitlog_total_space: 128MiB
memtable_heap_space: 64MiB
memtable_offheap_space: 64MiB
file_cache_size: 32MiB
networking_cache_size: 16MiB
key_cache_size: 8MiB
concurrent_reads: 8
concurrent_writes: 16
concurrent_compactors: 1
auto_snapshot: false
cas_contention_timeout: 5000ms
"""

# A node that is killed loses what it acknowledged since the last sync. Where several are killed, none may.
PERIODIC = "commitlog_sync: periodic\ncommitlog_sync_period: 10000ms"
DURABLE = "commitlog_sync: batch"

SECURE = """authenticator: PasswordAuthenticator
authorizer: CassandraAuthorizer
client_encryption_options:
  enabled: true
  optional: false
  keystore: {folder}/keys.p12
  keystore_password: cellplane
  require_client_auth: false
"""

LOGBACK = """<configuration><appender name="O" class="ch.qos.logback.core.ConsoleAppender">
<encoder><pattern>%-5level %d{HH:mm:ss.SSS} %logger{0} - %msg%n</pattern></encoder></appender>
<root level="INFO"><appender-ref ref="O"/></root></configuration>
"""


def say(message):
    print(f"[{time.strftime('%H:%M:%S')}] {message}", flush=True)


def fetch():
    """The server's jars, in the cache by version."""
    library = CACHE / f"cassandra-{VERSION}"
    if (library / ".ok").exists():
        return library
    say(f"fetching Cassandra {VERSION} by Maven")
    with tempfile.TemporaryDirectory() as folder:
        pom = Path(folder) / "pom.xml"
        pom.write_text(POM.format(version=VERSION))
        subprocess.run(
            ["mvn", "-B", "-q", "-ntp", "-f", str(pom), "dependency:copy-dependencies",
             f"-DoutputDirectory={library}", "-DincludeScope=runtime"], check=True)
    (library / ".ok").touch()
    return library


def java_flags():
    flags = ["-Djdk.attach.allowAttachSelf=true"]
    for option, packages in (("--add-opens", OPENED), ("--add-exports", SHOWN)):
        for module, names in packages.items():
            flags += [part for name in names.split() for part in (option, f"{module}/{name}=ALL-UNNAMED")]
    return flags


def is_open(address):
    try:
        socket.create_connection((address, 9042), timeout=1).close()
        return True
    except OSError:
        return False


def jmx_port(address):
    return 7300 + int(address.rsplit(".", 1)[1])


def certificate(address, folder):
    """A key and its certificate for an address, which is also its own authority: ca.pem."""
    keys, secret = folder / "keys.p12", "cellplane"
    if not keys.exists():
        store = ["-keystore", str(keys), "-storetype", "PKCS12", "-storepass", secret, "-alias", "node"]
        run = {"check": True, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.run(["keytool", "-genkeypair", *store, "-keyalg", "EC", "-groupname", "secp256r1", "-validity", "2",
                        "-dname", f"CN={address}", "-ext", f"SAN=ip:{address}"], **run)
        subprocess.run(["keytool", "-exportcert", "-rfc", *store, "-file", str(folder / "ca.pem")], **run)


def start(address, folder, seeds=None, cluster=None, secure=False, durable=False):
    """Starts a node and waits until it speaks CQL; `secure`: only over TLS and with a password; `durable`: it syncs what it acknowledges."""
    library = fetch()
    folder = Path(folder).resolve()
    (folder / "conf").mkdir(parents=True, exist_ok=True)
    (folder / "tmp").mkdir(exist_ok=True)
    cluster = cluster or f"alone-{address}"
    sync = DURABLE if durable else PERIODIC
    yaml = YAML.format(cluster=cluster, seeds=seeds or address, address=address, folder=folder, sync=sync)
    if secure:
        certificate(address, folder)
        yaml += SECURE.format(folder=folder)
    (folder / "conf" / "cassandra.yaml").write_text(yaml)
    (folder / "conf" / "logback.xml").write_text(LOGBACK)
    agent = next(library.glob("jamm-*.jar"))
    command = [
        "java", f"-Xms{HEAP}", f"-Xmx{HEAP}", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
        "-XX:MaxDirectMemorySize=256m", "-XX:+PerfDisableSharedMem", "-XX:+ExitOnOutOfMemoryError",
        *java_flags(), f"-javaagent:{agent}", "-Dio.netty.tryReflectionSetAccessible=true",
        "-Djava.net.preferIPv4Stack=true", f"-Djava.io.tmpdir={folder}/tmp", f"-Djna.tmpdir={folder}/tmp",
        "-Dcassandra-foreground=yes", f"-Dcassandra.config=file://{folder}/conf/cassandra.yaml",
        f"-Dlogback.configurationFile=file://{folder}/conf/logback.xml", f"-Dcassandra.storagedir={folder}",
        f"-Dcassandra.logdir={folder}", "-Dcassandra.skip_wait_for_gossip_to_settle=0",
        "-Dcassandra.ring_delay_ms=1000", "-Dcassandra.consistent.rangemovement=false",
        "-Dcassandra.superuser_setup_delay_ms=0",
        f"-Dcassandra.jmx.local.port={jmx_port(address)}", "-Dcom.sun.management.jmxremote.authenticate=false",
        "-cp", f"{folder}/conf:{library}/*", "org.apache.cassandra.service.CassandraDaemon",
    ]
    with open(folder / "out.log", "ab") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True,
                                   env={**os.environ, "MALLOC_ARENA_MAX": "2"})
    (folder / "pid").write_text(str(process.pid))
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        if is_open(address):
            say(f"{address} is ready, pid {process.pid}")
            return
        if process.poll() is not None:
            break
        time.sleep(0.2)
    tail = (folder / "out.log").read_text(errors="replace").splitlines()[-20:]
    raise SystemExit(f"{address} is not ready; the end of {folder}/out.log:\n" + "\n".join(tail))


def stop(folder, hard=False):
    """Ends the node of a folder, and waits for its end."""
    file = Path(folder) / "pid"
    if not file.exists():
        return
    pid = int(file.read_text())
    file.unlink()
    for sig, seconds in ((signal.SIGKILL if hard else signal.SIGTERM, 30), (signal.SIGKILL, 10)):
        try:
            os.kill(pid, sig)
        except ProcessLookupError:
            return
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                if os.waitpid(pid, os.WNOHANG)[0] == pid:
                    return
            except ChildProcessError:
                # Another process started it: it is gone when it cannot be signalled, or waits for its parent to notice.
                try:
                    if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                        return
                except OSError:
                    return
            time.sleep(0.1)


def ring(address):
    """How many nodes this one knows to be up."""
    status = nodetool(address, "status", stdout=subprocess.PIPE, text=True).stdout
    return sum(line.startswith("UN ") for line in status.splitlines())


def wait_ring(address, count):
    """Waits until a node knows that so many are up."""
    deadline = time.monotonic() + 120
    while ring(address) != count:
        if time.monotonic() > deadline:
            raise SystemExit(f"{address} does not know {count} nodes")


def nodetool(address, *command, **options):
    library = fetch()
    with tempfile.TemporaryDirectory() as folder:
        logback = Path(folder) / "logback.xml"
        logback.write_text('<configuration><root level="OFF"/></configuration>')
        return subprocess.run(
            ["java", "-Xmx128m", "-XX:TieredStopAtLevel=1", *java_flags(), f"-Dlogback.configurationFile=file://{logback}",
             f"-Dcassandra.storagedir={folder}", f"-Duser.home={folder}", "-cp", f"{library}/*",
             "org.apache.cassandra.tools.NodeTool", "-h", "127.0.0.1", "-p", str(jmx_port(address)), *command], **options)


def test_programs(programs, *names):
    """Builds test programs of the workspace into the target folder that `programs` is a profile's folder of; answers each by its name. The
    whole workspace is named, so that nothing is built otherwise than `cargo test --workspace` did."""
    command = ["cargo", "test", "--workspace", "--no-run", "--message-format", "json-render-diagnostics"]
    command += [part for name in names for part in ("--test", name)]
    environment = {**os.environ, "CARGO_TARGET_DIR": str(Path(programs).resolve().parent)}
    told = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    found = {}
    for line in told.splitlines():
        message = json.loads(line)
        if message.get("executable") and message["target"]["name"] in names and "test" in message["target"]["kind"]:
            # Tests run in the folder of their package.
            found[message["target"]["name"]] = (message["executable"], Path(message["manifest_path"]).parent)
    return found


def run_test(program, environment, *arguments, **options):
    executable, folder = program
    say(" ".join([Path(executable).name, *arguments]))
    return subprocess.run([executable, "--nocapture", *arguments], cwd=folder, env={**os.environ, **environment}, **options).returncode


def suite(programs, only):
    """One node for the promises; three for what happens when some are killed."""
    failed = []
    one, three = ["127.88.0.1"], [f"127.88.0.{number}" for number in (11, 12, 13)]
    secure = ["127.88.0.21"]
    built = test_programs(programs, "cql_conformance", "stores", "cql_secure", "cql_faults")
    for name, tests, addresses in (
        ("one", ["cql_conformance", "stores"], one), ("secure", ["cql_secure"], secure), ("three", ["cql_faults"], three),
    ):
        tests = [test for test in tests if not only or test in only]
        if not tests:
            continue
        base = Path(tempfile.mkdtemp(prefix="cellplane-cassandra-"))
        folders = [base / address for address in addresses]
        try:
            node = lambda address, folder: start(address, folder, addresses[0], name, name == "secure", len(addresses) > 1)
            node(addresses[0], folders[0])
            # The others at once, once the seed is there: each waits for itself most of the time.
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                list(pool.map(node, addresses[1:], folders[1:]))
            for address in addresses[1:]:
                wait_ring(address, len(addresses))
            environment = {
                "CELL_CQL_CONTACT": ",".join(f"{address}:9042" for address in addresses),
                "CELL_CQL_RUNNER": str(Path(__file__).resolve()),
                "CELL_CQL_NODES": ",".join(f"{address}={folder}" for address, folder in zip(addresses, folders)),
                "CELL_CQL_CLUSTER": name,
            }
            if name == "secure":
                environment["CELL_CQL_CA"] = str(folders[0] / "ca.pem")
            failed += [test for test in tests if run_test(built[test], environment) != 0]
        finally:
            for folder in folders:
                stop(folder)
        if not failed:
            shutil.rmtree(base, ignore_errors=True)
        else:
            say(f"the nodes' logs are in {base}")
    print(f"\ncassandra: {'failed: ' + ', '.join(failed) if failed else 'all passed'}")
    return 1 if failed else 0


def main():
    match sys.argv[1:]:
        case ["suite", programs, *only]:
            return suite(programs, only)
        case ["start", address, folder, *more]:
            # With a seed and a cluster it is one of several.
            start(address, folder, *more, durable=len(more) == 2)
            return 0
        case ["stop", folder]:
            return stop(folder) or 0
        case ["stop", folder, "kill"]:
            return stop(folder, hard=True) or 0
        case ["nodetool", address, *command]:
            return nodetool(address, *command).returncode
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main())
