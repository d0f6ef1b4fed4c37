"""Starts and stops the real components on one loopback address: two etcds, the Kubernetes control plane, and our node agents.

Every program it starts is remembered by pid and stopped at the end; nothing else is ever signalled.
"""

import base64
import json
import os
import secrets
import shutil
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def log(message):
    print(f"[{time.strftime('%H:%M:%S')}] {message}", flush=True)


def wait_for(what, seconds, check):
    """Waits until check() is true; every wait has a deadline and says what it waited for."""
    deadline = time.monotonic() + seconds
    last = None
    while time.monotonic() < deadline:
        try:
            result = check()
            if result:
                return result
            last = result
        except Exception as error:  # the condition is not there yet
            last = error
        time.sleep(0.25)
    raise AssertionError(f"timed out after {seconds} s waiting for {what}; last: {last!r}")


class Processes:
    """What this run started, by name."""

    def __init__(self, folder):
        self.folder = folder
        self.running = {}

    def start(self, name, command, env=None, cwd=None):
        out = open(self.folder / f"{name}.log", "ab")
        full = {**os.environ, **(env or {})}
        for variable in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
            full.pop(variable, None)
        process = subprocess.Popen(
            [str(part) for part in command], stdout=out, stderr=out, stdin=subprocess.DEVNULL,
            env=full, cwd=cwd, start_new_session=True,
        )
        self.running[name] = process
        return process

    def alive(self, name):
        return name in self.running and self.running[name].poll() is None

    def stop(self, name, sig=signal.SIGTERM, seconds=10):
        process = self.running.pop(name, None)
        if process is None or process.poll() is not None:
            return
        process.send_signal(sig)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(5)

    def stop_all(self):
        for name in reversed(list(self.running)):
            self.stop(name)


class Etcd:
    def __init__(self, processes, tools, folder, name, address, port):
        self.processes, self.tools, self.folder = processes, tools, folder
        self.name, self.address, self.port = name, address, port

    @property
    def endpoint(self):
        return f"{self.address}:{self.port}"

    def start(self):
        url, peer = f"http://{self.endpoint}", f"http://{self.address}:{self.port + 1}"
        self.processes.start(self.name, [
            self.tools / "etcd", "--name", self.name, "--data-dir", self.folder / self.name,
            "--listen-client-urls", url, "--advertise-client-urls", url,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", f"{self.name}={peer}", "--unsafe-no-fsync", "--log-level", "warn",
        ])
        wait_for(f"etcd {self.name}", 30, lambda: b"true" in urllib.request.urlopen(f"{url}/health", timeout=2).read())

    def stop(self):
        self.processes.stop(self.name)


class ControlPlane:
    """kube-apiserver, kube-controller-manager and kube-scheduler over an etcd of their own. Token auth, no containers."""

    def __init__(self, processes, tools, folder, address):
        self.processes, self.tools, self.folder, self.address = processes, tools, folder, address
        self.token = secrets.token_hex(16)
        # Who may come in: user, then group and token. What a subclass adds must be there before the start.
        self.users = {"admin": ("system:masters", self.token)}
        self.server_flags, self.controller_flags = [], []
        self.etcd = Etcd(processes, tools, folder, "kube-etcd", address, 2379)
        self.port = 6443
        self.kubeconfig = folder / "kubeconfig"

    def trust_agents(self):
        """Before the start: the API server shows our node agents a certificate of an authority that they are told to trust."""
        pki = self.folder / "pki"
        pki.mkdir(exist_ok=True)
        make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
        run([*make, "-subj", "/CN=agents", "-keyout", pki / "agents-ca.key", "-out", pki / "agents-ca.crt"])
        run([*make, "-subj", "/O=system:masters/CN=kube-apiserver", "-CA", pki / "agents-ca.crt", "-CAkey", pki / "agents-ca.key",
             "-addext", "basicConstraints=CA:FALSE", "-addext", "extendedKeyUsage=clientAuth",
             "-keyout", pki / "agents-client.key", "-out", pki / "agents-client.crt"])
        self.server_flags += [
            f"--kubelet-client-certificate={pki / 'agents-client.crt'}", f"--kubelet-client-key={pki / 'agents-client.key'}",
            "--kubelet-preferred-address-types=InternalIP",
        ]

    def start(self):
        self.etcd.start()
        pki = self.folder / "pki"
        pki.mkdir(exist_ok=True)
        if not (pki / "sa.key").exists():
            run(["openssl", "genrsa", "-out", pki / "sa.key", "2048"])
            run(["openssl", "rsa", "-in", pki / "sa.key", "-pubout", "-out", pki / "sa.pub"])
            tokens = self.folder / "tokens.csv"
            tokens.write_text("".join(f'{token},{user},{user},"{group}"\n' for user, (group, token) in self.users.items()))
            tokens.chmod(0o600)
        self.processes.start("kube-apiserver", [
            self.tools / "kube-apiserver", f"--etcd-servers=http://{self.etcd.endpoint}",
            f"--secure-port={self.port}", f"--bind-address={self.address}", f"--cert-dir={pki}",
            f"--token-auth-file={self.folder / 'tokens.csv'}", "--authorization-mode=Node,RBAC",
            f"--service-account-key-file={pki / 'sa.pub'}", f"--service-account-signing-key-file={pki / 'sa.key'}",
            "--service-account-issuer=https://kubernetes.default.svc", "--service-cluster-ip-range=10.96.0.0/16",
            "--allow-privileged=true", "--enable-priority-and-fairness=false",
            *self.server_flags,
        ])
        wait_for("kube-apiserver's certificate", 60, lambda: (pki / "apiserver.crt").exists())
        self.write_kubeconfig(self.kubeconfig, "admin", self.token)
        wait_for("kube-apiserver", 60, lambda: self.kubectl("get", "--raw", "/readyz") == "ok")
        self.run_controllers()
        self.processes.start("kube-scheduler", [self.tools / "kube-scheduler", *self.common(), "--secure-port=10259"])
        wait_for("the default service account", 60, lambda: self.kubectl("get", "serviceaccount", "default", "-o", "name"))

    def write_kubeconfig(self, path, user, token):
        ca = base64.b64encode((self.folder / "pki" / "apiserver.crt").read_bytes()).decode()
        path.touch(mode=0o600)
        path.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "real",
            "clusters": [{"name": "real", "cluster": {
                "server": f"https://{self.address}:{self.port}", "certificate-authority-data": ca}}],
            "users": [{"name": user, "user": {"token": token}}],
            "contexts": [{"name": "real", "context": {"cluster": "real", "user": user}}],
        }))

    def common(self):
        return [f"--kubeconfig={self.kubeconfig}", "--leader-elect=false", f"--bind-address={self.address}"]

    def run_controllers(self, only="*"):
        """Starts the controller manager, or starts it anew with other controllers."""
        self.processes.stop("kube-controller-manager")
        self.processes.start("kube-controller-manager", [
            self.tools / "kube-controller-manager", *self.common(), "--secure-port=10257", f"--controllers={only}",
            f"--service-account-private-key-file={self.folder / 'pki' / 'sa.key'}",
            "--node-monitor-grace-period=16s", "--node-monitor-period=2s",
            *self.controller_flags,
        ])

    def kubectl(self, *arguments, stdin=None, check=True):
        result = subprocess.run(
            [str(self.tools / "kubectl"), "--kubeconfig", str(self.kubeconfig), *arguments],
            input=stdin, capture_output=True, text=True, timeout=120,
        )
        if check and result.returncode != 0:
            raise RuntimeError(f"kubectl {' '.join(arguments)}: {result.stderr.strip()}")
        return result.stdout if check else result

    def apply(self, objects):
        text = "\n---\n".join(json.dumps(item) for item in objects)
        return self.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=text)

    def get(self, *arguments):
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))


def kill_below(folder):
    """Ends what still runs with its working directory below a folder of this run: Pods outlive their agents."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if Path(os.readlink(entry / "cwd")).is_relative_to(folder):
                    os.kill(int(entry.name), signal.SIGKILL)
            except OSError:
                continue


def run(command, **options):
    subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)


def tools(*names):
    """Builds what is missing and returns the folder that has them."""
    output = subprocess.run([HERE / "tools" / "build.sh", *names], check=True, stdout=subprocess.PIPE, text=True)
    return Path(output.stdout.strip().splitlines()[-1])
