"""Unmodified client libraries as child processes that speak JSON lines: see bots/."""

import hashlib
import json
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

from components import HERE, log

CACHE = Path(os.environ.get("CELLPLANE_CACHE", Path.home() / ".cache" / "cellplane"))


def python_with_libraries():
    """A virtual environment with requirements.txt, made once and keyed by its content."""
    wanted = (HERE / "requirements.txt").read_bytes()
    folder = CACHE / "python" / hashlib.sha256(wanted + sys.version.encode()).hexdigest()[:12]
    python = folder / "bin" / "python"
    if not (folder / ".done").exists():
        log("installing discord.py (cached from then on)")
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "-r", HERE / "requirements.txt"], check=True)
        (folder / ".done").touch()
    return python


def node_with_libraries():
    """A folder with discord.js installed and the bot beside it."""
    wanted = (HERE / "bots" / "package.json").read_bytes()
    folder = CACHE / "node" / hashlib.sha256(wanted).hexdigest()[:12]
    if not (folder / ".done").exists():
        log("installing discord.js (cached from then on)")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "package.json").write_bytes(wanted)
        subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--silent"], cwd=folder, check=True)
        (folder / ".done").touch()
    shutil.copy(HERE / "bots" / "discordjs_bot.mjs", folder / "discordjs_bot.mjs")
    return folder


class Bot:
    """One client process. Remembers every event it reported."""

    def __init__(self, name, command, base, token, folder, cwd=None):
        self.name, self.events, self.seen = name, [], threading.Condition()
        env = {**os.environ, "CELLPLANE_BASE": base, "CELLPLANE_TOKEN": token}
        for variable in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
            env.pop(variable, None)
        self.process = subprocess.Popen(
            [str(part) for part in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=cwd, env=env,
            stderr=open(folder / f"{name}.log", "ab"),
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            try:
                event = json.loads(line)
            except json.JSONDecodeError:
                continue
            with self.seen:
                self.events.append(event)
                self.seen.notify_all()

    def expect(self, what, seconds, check):
        deadline = time.monotonic() + seconds
        with self.seen:
            while True:
                for event in self.events:
                    if check(event):
                        return event
                left = deadline - time.monotonic()
                if left <= 0 or (self.process.poll() is not None and not self.seen.wait(1)):
                    raise AssertionError(f"{self.name}: no {what} within {seconds} s; last events {self.events[-5:]}")
                self.seen.wait(min(left, 1))

    def count(self, check):
        with self.seen:
            return sum(1 for event in self.events if check(event))

    def messages(self):
        with self.seen:
            return [event for event in self.events if event["event"] == "message"]

    def send(self, channel, text):
        self.process.stdin.write(json.dumps({"channel": channel, "send": text}) + "\n")
        self.process.stdin.flush()

    def close(self):
        if self.process.poll() is None:
            try:
                self.process.stdin.write('{"quit": true}\n')
                self.process.stdin.flush()
                self.process.wait(10)
            except (OSError, subprocess.TimeoutExpired):
                self.process.kill()
                self.process.wait(5)


def discord_py(name, base, token, folder):
    return Bot(name, [python_with_libraries(), HERE / "bots" / "discordpy_bot.py"], base, token, folder)


def discord_js(name, base, token, folder):
    home = node_with_libraries()
    return Bot(name, ["node", home / "discordjs_bot.mjs"], base, token, folder, cwd=home)
