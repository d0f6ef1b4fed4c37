#!/usr/bin/env python3
"""The standalone migration between two real Cassandras: the suite of cell/migrate, then a table that is hard to copy.

    migrate.py suite PROGRAMS          what tests/real/run calls; PROGRAMS is the folder of the program `cell`, in the target folder. The
                                       hard table is small here, or has CELLPLANE_SKEWED_ROWS rows
    migrate.py skewed PROGRAMS [ROWS]  only the hard table: ROWS skewed rows (2,000,000), a wall of tombstones, partitions of 1 MB, one
                                       of 200 MB, all smaller with fewer rows; the copy must finish, be clean, and name what is heavy

The nodes of this suite are 127.89.0.1 (source) and 127.89.0.2 (target); only what is started here is signalled.
"""

import functools
import os
import shutil
import sys
import tempfile
from pathlib import Path

import cassandra

SOURCE, TARGET = "127.89.0.1", "127.89.0.2"
ROOT = cassandra.ROOT
FULL, SMALL = 2_000_000, 100_000


def with_nodes(work):
    """Both nodes, on a port for JMX that the other suites do not use."""
    cassandra.jmx_port = lambda address: 7800 + int(address.rsplit(".", 1)[1])
    base = Path(tempfile.mkdtemp(prefix="cellplane-migrate-"))
    folders = [base / "source", base / "target"]
    try:
        cassandra.start(SOURCE, folders[0], cluster="source")
        cassandra.start(TARGET, folders[1], cluster="target")
        code = work()
    finally:
        for folder in folders:
            cassandra.stop(folder)
    if code == 0:
        shutil.rmtree(base, ignore_errors=True)
    else:
        cassandra.say(f"the nodes' logs are in {base}")
    return code


def run_tests(programs, *arguments, **environment):
    where = {"CELL_MIGRATE_CQL": f"{SOURCE}:9042,{TARGET}:9042", "CELL_PROGRAM": str(Path(programs).resolve() / "cell")}
    return cassandra.run_test(built(programs), {**where, **environment}, "--test-threads=1", *arguments)


@functools.cache
def built(programs):
    return cassandra.test_programs(programs, "real")["real"]


def skewed(programs, rows):
    """Loaded, looked at and told by the suite's own test, which needs the driver."""
    return run_tests(programs, "--ignored", "skewed", CELL_MIGRATE_ROWS=str(rows))


def main():
    match sys.argv[1:]:
        case ["suite", programs]:
            built(programs)
            return with_nodes(lambda: run_tests(programs) or skewed(programs, int(os.environ.get("CELLPLANE_SKEWED_ROWS", SMALL))))
        case ["skewed", programs, *rows]:
            built(programs)
            return with_nodes(lambda: skewed(programs, int(rows[0]) if rows else FULL))
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main())
