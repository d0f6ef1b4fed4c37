"""A fleet of ours on the real control plane: node agents, the operator, one StorageCell, two cells; and a small REST client."""

import json
import os
import subprocess
import urllib.error
import urllib.request

from components import ROOT, Etcd, log, wait_for

NAMESPACE = "cellplane"
PREFIX = f"/cellplane/{NAMESPACE}/"
API = "cellplane.dev/v1alpha1"
NODES = 3
MIGRATIONS = 6


class Fleet:
    def __init__(self, processes, tools, folder, programs, control, network):
        self.processes, self.folder, self.programs, self.control, self.network = processes, folder, programs, control, network
        self.etcd = Etcd(processes, tools, folder, "fleet-etcd", f"127.{network}.0.2", 2379)
        self.entry = f"127.{network}.1.1"
        self.base = f"http://{self.entry}:30080"
        self.volume, self.small = folder / "volume", False

    def node(self, number):
        """Starts one node agent; Pods it ran before are adopted."""
        name = f"node-{number}"
        self.processes.start(name, [
            self.programs / "cell-node", f"--node-name={name}", f"--zone={'abc'[number - 1]}",
            f"--address=127.{self.network}.{number}.1", f"--pod-cidr=127.{self.network}.{number}.0/24",
            f"--kubeconfig={self.control.kubeconfig}", f"--state-dir={self.folder / name}",
            f"--image=cellplane/cell:dev={self.programs / 'cell'}",
            f"--image=cellplane/operator:dev={self.programs / 'cell-operator'}",
            "--image=shell:dev=/bin/sh", f"--client-ca={self.control.folder / 'pki' / 'agents-ca.crt'}",
        ], env={"RUST_LOG": "info"})

    def start(self):
        self.etcd.start()
        for number in range(1, NODES + 1):
            self.node(number)
        self.control.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}])
        self.control.kubectl("apply", "--server-side", "-f", str(ROOT / "deploy" / "operator-rbac.yaml"))
        self.control.apply(self.volumes() + self.operator())
        self.control.apply(self.resources())

    def close(self):
        if self.small:
            subprocess.run(["umount", "--lazy", self.volume], check=False)

    def volumes(self):
        """A real controller manager provisions nothing: one local volume, and the class that waits for the scheduler."""
        folder = self.volume
        folder.mkdir(exist_ok=True)
        # Small enough to be filled by a check; only root can make such a volume.
        self.small = os.geteuid() == 0 and subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=512m", "cellplane", folder], capture_output=True).returncode == 0
        stores = [self.local("store-0", folder, "10Gi", 1)]
        # Coordinators of migrations: a claim each, and a volume is not given to a second one.
        for number in range(MIGRATIONS):
            (self.folder / f"ledger-{number}").mkdir(exist_ok=True)
            stores.append(self.local(f"ledger-{number}", self.folder / f"ledger-{number}", "1Gi", number % NODES + 1))
        default = {"storageclass.kubernetes.io/is-default-class": "true"}
        return [
            {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "cellplane-local", "annotations": default},
             "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"},
            *stores,
        ]

    def local(self, name, folder, size, node):
        wanted = [{"key": "kubernetes.io/hostname", "operator": "In", "values": [f"node-{node}"]}]
        return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": {
            "capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"], "storageClassName": "cellplane-local",
            "persistentVolumeReclaimPolicy": "Retain", "local": {"path": str(folder)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": wanted}]}}}}

    def operator(self):
        labels = {"app.kubernetes.io/name": "cellplane", "app.kubernetes.io/component": "operator"}
        field = lambda name, path: {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
        meta = {"name": "cellplane-operator", "namespace": NAMESPACE, "labels": labels}
        return [
            {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": {
                "replicas": 1, "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": {
                    "serviceAccountName": "cellplane-operator",
                    "terminationGracePeriodSeconds": 10,
                    "containers": [{
                        "name": "operator", "image": "cellplane/operator:dev", "imagePullPolicy": "IfNotPresent",
                        "args": ["--namespace=$(POD_NAMESPACE)"],
                        "env": [field("POD_NAME", "metadata.name"), field("POD_NAMESPACE", "metadata.namespace"),
                                field("POD_IP", "status.podIP")],
                        "readinessProbe": {"httpGet": {"path": "/readyz", "port": 9090}, "periodSeconds": 2},
                    }]}}}},
        ]

    def resources(self):
        def resource(kind, name, spec):
            return {"apiVersion": API, "kind": kind, "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}

        roles = {"gateway": {"replicas": 2}, "guild": {"replicas": 2}, "data": {"replicas": 1}}
        cells = ["shared-1", "shared-2"]
        return [
            resource("StorageCell", "main", {"engine": "embedded", "embedded": {"size": "10Gi", "storageClassName": "cellplane-local"}}),
            *[resource("Cell", cell, {"storageCellRef": "main", "roles": roles}) for cell in cells],
            resource("Fleet", "main", {
                "etcd": {"endpoints": [self.etcd.endpoint], "prefix": PREFIX},
                "entry": {"host": self.entry, "port": 30080, "service": "NodePort"},
                "image": {"cell": "cellplane/cell:dev", "pullPolicy": "IfNotPresent"},
                "bootstrapCells": cells,
                "dedicatedTemplate": {"roles": {"gateway": {"replicas": 1}, "guild": {"replicas": 2}, "data": {"replicas": 1}}},
            }),
        ]

    def resource(self, kind, name, spec):
        """Makes one resource of ours."""
        self.control.apply([{"apiVersion": API, "kind": kind, "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}])

    def condition(self, kind, name, wanted="Ready"):
        conditions = self.control.get(kind, name, "-n", NAMESPACE).get("status", {}).get("conditions", [])
        return next((found for found in conditions if found["type"] == wanted), None)

    def wait_ready(self, seconds):
        def ready():
            found = self.condition("fleet", "main")
            return found if found and found["status"] == "True" else None

        wait_for("the Fleet to be Ready", seconds, ready)

    def cellctl(self, *arguments, check=True):
        result = subprocess.run(
            [self.programs / "cellctl", *arguments, "--kubeconfig", self.control.kubeconfig, "-n", NAMESPACE],
            capture_output=True, text=True, timeout=420,
            env={**{k: v for k, v in os.environ.items() if "proxy" not in k.lower()}, "NO_COLOR": "1"},
        )
        if check and result.returncode != 0:
            raise RuntimeError(f"cellctl {' '.join(arguments)}: exit {result.returncode}: {result.stderr.strip()}")
        return result

    def token(self, name):
        return json.loads(self.cellctl("token", "issue", "--bot", name, "-o", "json").stdout)

    def pods(self, **labels):
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        return self.control.get("pods", "-n", NAMESPACE, *(["-l", selector] if selector else []))["items"]


class Rest:
    """The few calls the suite makes itself, beside the bots'."""

    def __init__(self, base, token):
        self.base, self.token = base, token

    def call(self, method, path, body=None):
        request = urllib.request.Request(f"{self.base}/api/v10{path}", method=method)
        request.add_header("Authorization", f"Bot {self.token}")
        data = None
        if body is not None:
            request.add_header("Content-Type", "application/json")
            data = json.dumps(body).encode()
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, data, timeout=30) as response:
            text = response.read()
        return json.loads(text) if text else None

    def history(self, channel):
        """Every message of a channel, oldest first."""
        found, before = [], None
        while True:
            page = self.call("GET", f"/channels/{channel}/messages?limit=100" + (f"&before={before}" if before else ""))
            if not page:
                return list(reversed(found))
            found.extend(page)
            before = page[-1]["id"]
