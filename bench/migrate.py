#!/usr/bin/env python3
"""How fast a table is carried between two real Cassandras, beside its peers in one run: dsbulk (unload and load) and sstableloader.

    migrate.py CELL [ROWS]       CELL is a release build of the program `cell` in its target folder; ROWS is 1,000,000
    migrate.py CELL ROWS alone   ours alone, to see what its memory does with more rows

Prints one line of JSON a figure, and last the ratios to the first and to the last run of ours. All three carry the same rows of about 130 bytes, 50 in a partition, with their write times. The
machine is shared by source, target and the tool, so ratios say more than times; ours is run first and again last, so that a machine
that became busier shows. Memory and processor time are the tool's own. Ours may make both sides slow as its peers may: its bound on latency,
which spares a cluster that serves others, is lifted, and 16 ranges are at work at once instead of 4.
"""

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "real"))
import cassandra  # noqa: E402

SOURCE, TARGET = "127.89.0.1", "127.89.0.2"
DSBULK = "1.10.0"
PARTS = ["runner", "workflow-load", "workflow-unload", "connectors-csv", "connectors-json", "codecs-text", "executor-reactor",
         "batcher-reactor"]


def dsbulk_library():
    """DataStax Bulk Loader's jars by Maven, in the cache by version."""
    library = cassandra.CACHE / f"dsbulk-{DSBULK}"
    if not (library / ".ok").exists():
        def one(group, name, version):
            return f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version></dependency>"
        wanted = [one("com.datastax.oss", f"dsbulk-{part}", DSBULK) for part in PARTS]
        wanted.append(one("ch.qos.logback", "logback-classic", "1.2.12"))
        with tempfile.TemporaryDirectory() as folder:
            pom = Path(folder) / "pom.xml"
            pom.write_text('<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
                           "<groupId>dev.cellplane</groupId><artifactId>dsbulk</artifactId><version>1</version><packaging>pom</packaging>"
                           f"<dependencies>{''.join(wanted)}</dependencies></project>")
            subprocess.run(["mvn", "-B", "-q", "-ntp", "-f", str(pom), "dependency:copy-dependencies",
                            f"-DoutputDirectory={library}", "-DincludeScope=runtime"], check=True)
        (library / ".ok").touch()
    return library


def timed(name, command, **more):
    """Seconds, processor seconds and peak memory of a command that must end well."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **more)
    output, peak = [], 0
    os.set_blocking(process.stdout.fileno(), False)
    while process.poll() is None:
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
            peak = max([peak] + [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")])
        except OSError:
            pass
        output.append(process.stdout.read() or b"")
        time.sleep(0.05)
    output.append(process.stdout.read() or b"")
    seconds = time.monotonic() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    text = b"".join(output).decode(errors="replace")
    if process.returncode != 0:
        raise SystemExit(f"{name} ended with {process.returncode}:\n{text[-3000:]}")
    return {"name": name, "seconds": round(seconds, 1), "cpuSeconds": round(cpu, 1), "peakMiB": peak // 1024}, text


def dsbulk(name, folder, *arguments):
    command = ["java", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-cp", f"{dsbulk_library()}/*",
               "com.datastax.oss.dsbulk.runner.DataStaxBulkLoader", *arguments, "--log.directory", str(folder / "dsbulk-logs")]
    return timed(name, command)


def ours(cell, state, *more):
    command = [cell, "migrate", "run", "-o", "json", "--from", f"cql://{SOURCE}/bench.rows", "--to", f"cql://{TARGET}/bench.rows",
               "--state", str(state), "--latency-ceiling-ms", "60000", "--workers", "16", *more]
    figures, text = timed("cell migrate run " + " ".join(more), command)
    outcome = json.loads(text[text.index('{"ending"'):].splitlines()[0])
    for phase in outcome["phases"]:
        rate = round(phase["rows"] / phase["seconds"])
        figures[phase["phase"]] = {"rows": phase["rows"], "seconds": round(phase["seconds"], 1), "rowsPerSecond": rate}
    figures["rowsPerCpuSecond"] = round(sum(phase["rows"] for phase in outcome["phases"]) / max(figures["cpuSeconds"], 0.1))
    figures["clean"] = (outcome["receipt"] or {}).get("clean")
    return figures


def sstableloader(folder):
    """Streams the source's own files, laid out as keyspace/table."""
    table = next((folder / "source" / "data" / "bench").glob("rows-*"))
    copy = folder / "stream" / "bench" / "rows"
    shutil.copytree(table, copy, ignore=shutil.ignore_patterns("snapshots", "backups"))
    library = cassandra.fetch()
    command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", *cassandra.java_flags(), f"-Dcassandra.storagedir={folder}/loader",
               f"-Dcassandra.config=file://{folder}/target/conf/cassandra.yaml", "-cp", f"{library}/*",
               "org.apache.cassandra.tools.BulkLoader", "-d", TARGET, str(copy)]
    return timed("sstableloader", command)[0]


def main():
    cell, rows = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000
    cassandra.jmx_port = lambda address: 7800 + int(address.rsplit(".", 1)[1])
    folder = Path(tempfile.mkdtemp(prefix="cellplane-bench-"))
    show = lambda figures: print(json.dumps({"rows": rows, **figures}), flush=True)  # noqa: E731

    # Two folders up: where cargo builds.
    program = cassandra.test_programs(Path(cell).parent, "real")["real"]

    def fill(what):
        environment = {"CELL_MIGRATE_CQL": f"{SOURCE}:9042,{TARGET}:9042", "CELL_PROGRAM": cell, "CELL_MIGRATE_ROWS": str(rows)}
        if cassandra.run_test(program, environment, "--ignored", what, stdout=subprocess.DEVNULL) != 0:
            raise SystemExit(f"{what}: failed")

    try:
        cassandra.start(SOURCE, folder / "source", cluster="source")
        cassandra.start(TARGET, folder / "target", cluster="target")
        fill("benchmark_is_filled")
        cassandra.nodetool(SOURCE, "flush")
        first = ours(cell, folder / "first")
        show(first)
        show(ours(cell, folder / "first", "--verify"))
        if sys.argv[3:] == ["alone"]:
            return
        fill("benchmark_is_emptied")
        at = ["-k", "bench", "-t", "rows", "-c", "json", "--schema.preserveTimestamp", "true", "--schema.preserveTtl", "true"]
        unload, _ = dsbulk("dsbulk unload", folder, "unload", "-h", SOURCE, *at, "-url", str(folder / "unloaded"))
        load, _ = dsbulk("dsbulk load", folder, "load", "-h", TARGET, *at, "-url", str(folder / "unloaded"))
        show(unload)
        show(load)
        fill("benchmark_is_emptied")
        loader = sstableloader(folder)
        show(loader)
        fill("benchmark_is_emptied")
        again = ours(cell, folder / "again")
        show(again)
        both = [first["seconds"], again["seconds"]]
        bulk = {part: unload[part] + load[part] for part in ("seconds", "cpuSeconds")}
        show({"ratios": {
            "dsbulkToOurs": [round(bulk["seconds"] / seconds, 2) for seconds in both],
            "dsbulkToOursCpu": [round(bulk["cpuSeconds"] / max(one["cpuSeconds"], 0.1), 1) for one in (first, again)],
            "sstableloaderToOurs": [round(loader["seconds"] / seconds, 2) for seconds in both],
        }})
    finally:
        cassandra.stop(folder / "source")
        cassandra.stop(folder / "target")
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
