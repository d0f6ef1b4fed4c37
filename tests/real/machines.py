"""Machines of a real cluster, made of namespaces: each has its own network, mounts, processes and host name, and runs containerd,
kubelet and kube-proxy. Everything lies inside the namespaces that `enter` makes for the run, so that nothing of it outlives the run: when
its first process ends, however it ends, the kernel ends all others and unmounts everything. Of the host itself only control groups are
used, below a folder of the run's name in each hierarchy (version 1), which `enter` removes.
"""

import http.client
import json
import os
import secrets
import shutil
import signal
import socketserver
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path

from components import HERE, ControlPlane, run, wait_for

ADDRESS = "172.31.87.1"
SERVICES = "10.96.0.0/16"
PAUSE = "registry.k8s.io/pause:3.10"
CGROUPS = Path("/sys/fs/cgroup")


def what_the_kernel_refuses():
    """Why machines cannot be made here, or nothing: tried, for rights and kernels differ in more than can be asked for."""
    if os.geteuid() != 0:
        return "machines are made of namespaces and mounts: run it as root"
    if (CGROUPS / "cgroup.controllers").exists():
        return "control groups of version 1 are needed; boot with systemd.unified_cgroup_hierarchy=0"
    probe = f"cellplane-probe-{os.getpid()}"
    try:
        for hierarchy in ("memory", "pids", "cpuset", "devices"):
            (CGROUPS / hierarchy / probe).mkdir()
            (CGROUPS / hierarchy / probe).rmdir()
    except OSError as error:
        return f"control groups cannot be made: {error}"
    steps = [
        "mount -t tmpfs tmpfs /run",
        "mkdir /run/lower /run/upper /run/work /run/both",
        "mount -t overlay overlay -o lowerdir=/run/lower,upperdir=/run/upper,workdir=/run/work /run/both",
        "ip link add switch type bridge",
        "ip link add one type veth peer name other",
        "iptables -t nat -A POSTROUTING -m conntrack --ctstate NEW -j MASQUERADE",
    ]
    spaces = ["unshare", "--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--mount-proc", "--kill-child"]
    tried = subprocess.run([*spaces, "sh", "-ec", "\n".join(steps)], capture_output=True, text=True, timeout=60, check=False)
    return f"the kernel refuses a part of a machine: {tried.stderr.strip()}" if tried.returncode else ""


def enter(program, arguments, folder):
    """Runs this suite's inside in namespaces of its own and returns its exit code; whatever it leaves is gone afterwards."""
    # Told to end, this process ends as on an error, so that what follows is done; killed, it takes the inside with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    inside = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--net", "--pid", "--ipc", "--fork", "--mount-proc", "--kill-child",
              sys.executable, program, "--inside", str(folder), *arguments]
    try:
        return subprocess.run(inside, check=False).returncode
    finally:
        remove_groups(folder.name)


def remove_groups(name):
    """Removes the control groups of a run or of one of its machines, whose processes have ended or are about to."""
    def removed():
        for top in CGROUPS.glob(f"*/{name}"):
            for folder, _, _ in os.walk(top, topdown=False):
                try:
                    os.rmdir(folder)
                except OSError:
                    pass  # its last process is still going
        return not list(CGROUPS.glob(f"*/{name}"))

    wait_for(f"the control groups of {name} to be empty", 30, removed)


def prepare_network():
    """The switch that all machines and this process are plugged into; this process is where clients and the control plane are."""
    run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run"])
    run(["ip", "link", "set", "lo", "up"])
    run(["ip", "link", "add", "switch", "type", "bridge"])
    run(["ip", "address", "add", f"{ADDRESS}/24", "dev", "switch"])
    run(["ip", "link", "set", "switch", "up"])


class ClusterControlPlane(ControlPlane):
    """The control plane, for machines that run containers."""

    def __init__(self, processes, tools, folder, machines):
        super().__init__(processes, tools, folder, ADDRESS)
        for name in machines:
            self.users[f"system:node:{name}"] = ("system:nodes", secrets.token_hex(16))
        self.users["system:kube-proxy"] = ("system:node-proxiers", secrets.token_hex(16))
        pki = folder / "pki"
        pki.mkdir(exist_ok=True)
        # What the API server shows the kubelets: they trust this one certificate.
        run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
             "-subj", "/O=system:masters/CN=kube-apiserver", "-addext", "extendedKeyUsage=clientAuth",
             "-keyout", pki / "kubelet-client.key", "-out", pki / "kubelet-client.crt"])
        self.server_flags += [
            f"--kubelet-client-certificate={pki / 'kubelet-client.crt'}", f"--kubelet-client-key={pki / 'kubelet-client.key'}",
            "--kubelet-preferred-address-types=InternalIP", "--enable-admission-plugins=NodeRestriction",
        ]
        # Pods are told whom to trust by the ConfigMap that this makes.
        self.controller_flags += [f"--root-ca-file={pki / 'ca.crt'}"]

    def run_controllers(self, only="*"):
        pki = self.folder / "pki"
        begin = "-----BEGIN CERTIFICATE-----"
        # The API server made its certificate itself: first its own, then the one that signed it.
        (pki / "ca.crt").write_text(begin + (pki / "apiserver.crt").read_text().split(begin)[-1])
        super().run_controllers(only)

    def kubeconfig_of(self, user, path):
        self.write_kubeconfig(path, user, self.users[user][1])


class Machine:
    """One node. Its disk (folder) outlives its power."""

    def __init__(self, control, number, images):
        self.control, self.number, self.images = control, number, images
        self.name, self.address, self.pods = f"n{number}", f"172.31.87.{10 + number}", f"10.244.{number}.0/24"
        self.folder = control.folder / self.name
        self.process = None

    def boot(self):
        """Plugs it in and starts it; does not wait until it is Ready."""
        if not self.folder.exists():
            self.install()
        name = self.name
        self.make_groups()
        run(["ip", "netns", "add", name])
        run(["ip", "link", "add", f"port-{name}", "type", "veth", "peer", "name", "eth0", "netns", name])
        run(["ip", "link", "set", f"port-{name}", "master", "switch", "up"])
        inside = ["ip", "-n", name]
        run([*inside, "address", "add", f"{self.address}/24", "dev", "eth0"])
        for link in ("lo", "eth0"):
            run([*inside, "link", "set", link, "up"])
        run([*inside, "route", "add", "default", "via", ADDRESS])
        self.process = self.control.processes.start(f"machine-{name}", [
            "nsenter", f"--net=/run/netns/{name}", "unshare", "--mount", "--pid", "--uts", "--ipc", "--fork", "--mount-proc", "--kill-child",
            HERE / "machine.sh", name, self.folder, self.folder / "bin",
        ])

    def make_groups(self):
        """The control groups below which its Pods are."""
        for top in CGROUPS.iterdir():
            folder = top / self.control.folder.name / self.name
            folder.mkdir(parents=True, exist_ok=True)
            if top.name == "cpuset":
                for level in (folder.parent, folder):
                    for file in ("cpuset.cpus", "cpuset.mems"):
                        (level / file).write_text((top / file).read_text())

    def route_to(self, other):
        """Pods of the other machine are behind it."""
        run(["ip", "-n", self.name, "route", "replace", other.pods, "via", other.address])

    def cut_power(self):
        """Ends everything on it at once; first the cable, so that nobody is told."""
        run(["ip", "link", "set", f"port-{self.name}", "down"])
        self.control.processes.stop(f"machine-{self.name}", sig=signal.SIGKILL)
        remove_groups(f"{self.control.folder.name}/{self.name}")
        run(["ip", "link", "delete", f"port-{self.name}"])
        run(["ip", "netns", "delete", self.name])

    def execute(self, *command):
        """Runs a command on it and returns what it printed."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        result = subprocess.run(["nsenter", "--target", children[0], "--all", *command], capture_output=True, text=True, timeout=60)
        if result.returncode != 0:
            raise RuntimeError(f"{self.name}: {' '.join(command)}: {result.stderr.strip()}")
        return result.stdout

    def install(self):
        """Writes what is on its disk before it first starts."""
        folder, control = self.folder, self.control
        (folder / "bin").mkdir(parents=True)
        (folder / "cni").mkdir()
        for name in ("kubelet", "kube-proxy"):
            (folder / "bin" / name).symlink_to(control.tools / name)
        (folder / "bin" / "containerd").symlink_to(shutil.which("containerd"))
        (folder / "address").write_text(self.address)
        (folder / "images").write_text("".join(f"{image}\n" for image in self.images))
        control.kubeconfig_of(f"system:node:{self.name}", folder / "kubelet.kubeconfig")
        control.kubeconfig_of("system:kube-proxy", folder / "proxy.kubeconfig")
        (folder / "resolv.conf").write_text(f"nameserver {ADDRESS}\n")
        (folder / "containerd.toml").write_text(CONTAINERD.format(pause=PAUSE, cni=folder / "cni"))
        (folder / "cni" / "10-pods.conflist").write_text(json.dumps(self.pod_network()))
        (folder / "kubelet.yaml").write_text(json.dumps(self.kubelet()))
        (folder / "proxy.yaml").write_text(json.dumps(self.proxy()))

    def pod_network(self):
        ranges = {"type": "host-local", "ranges": [[{"subnet": self.pods}]], "routes": [{"dst": "0.0.0.0/0"}]}
        bridge = {"type": "bridge", "bridge": "pods", "isGateway": True, "hairpinMode": True, "ipam": ranges}
        return {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge, {"type": "portmap", "capabilities": {"portMappings": True}}]}

    def kubelet(self):
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": True},
                               "x509": {"clientCAFile": str(self.control.folder / "pki" / "kubelet-client.crt")}},
            "authorization": {"mode": "Webhook"},
            "cgroupDriver": "cgroupfs", "cgroupRoot": f"/{self.control.folder.name}/{self.name}", "failCgroupV1": False,
            "clusterDNS": [ADDRESS], "clusterDomain": "cluster.local", "resolvConf": str(self.folder / "resolv.conf"),
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            # The machine's disk is the host's, and others fill it too.
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "failSwapOn": False, "imageGCHighThresholdPercent": 100, "imageGCLowThresholdPercent": 99, "maxOpenFiles": 20000,
            "nodeLeaseDurationSeconds": 16, "nodeStatusUpdateFrequency": "4s",
            "volumePluginDir": "/var/lib/kubelet/plugins",
        }

    def proxy(self):
        return {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "mode": "nftables",
            "bindAddress": self.address, "clientConnection": {"kubeconfig": str(self.folder / "proxy.kubeconfig")},
            "conntrack": {"maxPerCore": 0, "min": 0}, "hostnameOverride": self.name,
        }


CONTAINERD = """version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{cni}"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
"""


class Names:
    """The cluster's DNS: answers the address of a Service, `<service>.<namespace>.svc[.cluster.local]`, and knows nothing else."""

    def __init__(self, control):
        self.control, self.known = control, {}
        names = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self):
                question, socket = self.request
                socket.sendto(names.answer(question), self.client_address)

        self.server = socketserver.ThreadingUDPServer((ADDRESS, 53), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def address(self, labels):
        """The ClusterIP of a name's Service, or none."""
        if labels[2:] not in (["svc"], ["svc", "cluster", "local"]):
            return None
        kept = self.known.get(tuple(labels[:2]))
        if kept and time.monotonic() < kept[0]:
            return kept[1]
        context = ssl._create_unverified_context()
        connection = http.client.HTTPSConnection(ADDRESS, self.control.port, context=context, timeout=5)
        connection.request("GET", f"/api/v1/namespaces/{labels[1]}/services/{labels[0]}",
                           headers={"Authorization": f"Bearer {self.control.token}"})
        found = json.loads(connection.getresponse().read()).get("spec", {}).get("clusterIP")
        self.known[tuple(labels[:2])] = (time.monotonic() + 5, found)
        return found

    def answer(self, question):
        labels, at = [], 12
        while question[at]:
            labels.append(question[at + 1:at + 1 + question[at]].decode().lower())
            at += question[at] + 1
        asked = question[at + 1:at + 3]
        found = self.address(labels)
        wants_address = asked == b"\0\1"
        body = question[12:at + 5]
        count = 0
        if found and wants_address:
            count = 1
            body += b"\xc0\x0c\0\1\0\1" + (5).to_bytes(4, "big") + b"\0\4" + bytes(int(part) for part in found.split("."))
        # Authoritative; a name that is not there is no such domain.
        code = b"\x85\x80" if found else b"\x85\x83"
        return question[:2] + code + b"\0\1" + count.to_bytes(2, "big") + b"\0\0\0\0" + body
