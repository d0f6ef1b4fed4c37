#!/usr/bin/env python3
"""Wraps one program into a container image, without a container engine and without a base image.

    image.py PROGRAM REFERENCE ARCHIVE [PATH]     PATH: where the program is in the image (default: /<its name>)

The archive is an OCI layout: `ctr -n k8s.io images import`, `kind load image-archive`, `skopeo copy oci-archive:…` and others take it.
The image has the program and the shared libraries that `ldd` names on this machine, none for a static program, and nothing else: no
shell, no package. Same files, same bytes.
"""

import hashlib
import io
import json
import platform
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


def libraries(program):
    """The loader and the shared libraries of a program, by the paths under which it looks for them. None for a static one."""
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        return []
    missing = [line.split()[0] for line in listed.stdout.splitlines() if line.endswith("not found")]
    if missing:
        raise SystemExit(f"{program} needs {', '.join(missing)}, which this machine lacks")
    words = [word for line in listed.stdout.splitlines() for word in line.split()]
    return sorted(Path(word) for word in words if word.startswith("/"))


class Archive:
    """An OCI layout that is written blob by blob."""

    def __init__(self, path):
        self.tar = tarfile.open(path, "w")

    def add(self, name, data):
        entry = tarfile.TarInfo(name)
        entry.size = len(data)
        self.tar.addfile(entry, io.BytesIO(data))

    def blob(self, data, media_type):
        """Adds a small blob and returns its descriptor."""
        digest = hashlib.sha256(data).hexdigest()
        self.add(f"blobs/sha256/{digest}", data)
        return {"mediaType": f"application/vnd.oci.image.{media_type}", "digest": f"sha256:{digest}", "size": len(data)}

    def layer(self, file):
        """Adds what a file holds as a layer."""
        digest, size = hashlib.file_digest(file, "sha256").hexdigest(), file.tell()
        file.seek(0)
        entry = tarfile.TarInfo(f"blobs/sha256/{digest}")
        entry.size = size
        self.tar.addfile(entry, file)
        return {"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": f"sha256:{digest}", "size": size}


def write_layer(files, tar):
    """The image's only layer: the files (a path in the image, and what is there), and the folders above them."""
    known = set()
    for path, source in files:
        for folder in list(reversed(path.parents))[1:]:
            if folder not in known:
                known.add(folder)
                entry = tarfile.TarInfo(str(folder).lstrip("/"))
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(entry)
        entry = tarfile.TarInfo(str(path).lstrip("/"))
        entry.mode, entry.size = 0o755, source.stat().st_size
        with open(source, "rb") as content:
            tar.addfile(entry, content)


def write_image(program, reference, archive, path=None, labels=None):
    """Writes the image's archive. Labels become part of the image: other labels, another image."""
    program = Path(program)
    path = Path(path or f"/{program.name}")
    target = {"architecture": MACHINES[platform.machine()], "os": "linux"}
    written = Archive(archive)
    with tempfile.TemporaryFile() as file:
        with tarfile.open(fileobj=file, mode="w") as tar:
            write_layer([(library, library) for library in libraries(program)] + [(path, program)], tar)
        file.seek(0)
        layer = written.layer(file)
    config = {**target, "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]}, "history": [],
              "config": {"Entrypoint": [str(path)], "Env": [f"PATH={path.parent}"], "User": "65532:65532", "WorkingDir": "/",
                         "Labels": labels or {}}}
    manifest = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "config": written.blob(json.dumps(config).encode(), "config.v1+json"), "layers": [layer]}
    described = written.blob(json.dumps(manifest).encode(), "manifest.v1+json")
    names = {"io.containerd.image.name": reference, "org.opencontainers.image.ref.name": reference.rsplit(":", 1)[-1]}
    index = {"schemaVersion": 2, "manifests": [{**described, "platform": target, "annotations": names}]}
    written.add("oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
    written.add("index.json", json.dumps(index).encode())
    written.tar.close()


if __name__ == "__main__":
    if not 4 <= len(sys.argv) <= 5:
        raise SystemExit(__doc__)
    write_image(*sys.argv[1:])
