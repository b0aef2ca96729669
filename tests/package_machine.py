"""Machines of Debian 12 in folders, for tests of the package: what runs in them, and how systemd boots one."""

import glob
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

from notify_socket import NotifySocket
from printed import typed_in

PLACES = {"STATE_DIRECTORY": "/var/lib/kvasir", "CACHE_DIRECTORY": "/var/cache/kvasir"}


def succeed(*command, **options):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=900, **options)
    if done.returncode:
        raise AssertionError(f"{command}: exit {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


def mirror():
    for name in ["/etc/apt/sources.list", *glob.glob("/etc/apt/sources.list.d/*")]:
        text = pathlib.Path(name).read_text() if os.path.isfile(name) else ""
        if found := re.search(r"(?m)^(?:deb .*?|URIs: *)(https?://\S+/debian)/?(?:\s|$)", text):
            return found[1]
    return "http://deb.debian.org/debian"


def bare_debian(folder):
    """A root that debootstrap makes, or the one that KVASIR_DEBIAN_ROOT names."""
    if given := os.environ.get("KVASIR_DEBIAN_ROOT"):
        return given
    succeed("debootstrap", "--variant=minbase", "--include=ca-certificates", "bookworm", folder, mirror())
    return folder


class Machine:
    """A copy of a root of Debian 12. Packages come the same way as on this machine."""

    def __init__(self, bare, folder):
        self.root = folder / "root"
        succeed("cp", "-a", "--one-file-system", bare, self.root)
        (self.root / "etc/apt/sources.list").unlink(missing_ok=True)
        for name in ("sources.list", "sources.list.d", "apt.conf.d", "trusted.gpg.d", "keyrings", "preferences.d"):
            if os.path.exists(f"/etc/apt/{name}"):
                succeed("cp", "-a", f"/etc/apt/{name}", self.root / "etc/apt/")
        for name in ("resolv.conf", "hosts", "ssl/certs/ca-certificates.crt"):
            succeed("cp", "-L", f"/etc/{name}", self.root / "etc" / name)
        for kind, name in (("proc", "proc"), ("sysfs", "sys")):
            succeed("mount", "-t", kind, kind, self.root / name)
        succeed("mount", "--bind", "/dev", self.root / "dev")

    def close(self):
        for name in ("dev", "sys", "proc"):
            subprocess.run(["umount", self.root / name], check=False)
            if os.path.ismount(self.root / name):
                raise AssertionError(f"{self.root / name} is still mounted")

    def environment(self):
        """Where packages come from: proxies; and nothing else of this machine."""
        proxies = {k: v for k, v in os.environ.items() if re.fullmatch("(https?|no)_proxy", k, re.I)}
        return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8",
                "DEBIAN_FRONTEND": "noninteractive", **proxies}

    def run(self, *command):
        return succeed("chroot", self.root, *command, env=self.environment())

    def install(self, package):
        shutil.copy(package, self.root / "tmp/kvasir.deb")
        self.run("apt-get", "update", "-q")
        return self.run("apt-get", "install", "-y", "-q", "--no-install-recommends", "-o", "Dpkg::Options::=--force-confold",
                        "/tmp/kvasir.deb")

    def path(self, name):
        return self.root / name.lstrip("/")


class Started:
    """A server in a machine, with the test as its service manager."""

    def __init__(self, machine, user, command, places):
        self.manager = NotifySocket()
        environment = {**places, "NOTIFY_SOCKET": self.manager.name, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        self.process = subprocess.Popen(
            ["chroot", f"--userspec={user}:{user}", str(machine.root), *command], env=environment,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if found := re.search(r"listening on http://127\.0\.0\.1:(\d+)", line):
                self.port = int(found[1])
                break
        else:
            raise AssertionError("the server did not start")
        self.manager.until("READY")

    def ask(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path, json.dumps(body) if body is not None else None)
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, json.loads(text)

    def stop(self):
        self.process.terminate()
        self.manager.until("STOPPING")
        self.process.communicate(timeout=60)
        self.manager.socket.close()
        return self.process.returncode


class Service(Started):
    """What the unit starts, by its own ExecStart line."""

    def __init__(self, machine, *flags):
        unit = machine.path("/usr/lib/systemd/system/kvasir.service").read_text()
        command = re.search(r"(?m)^ExecStart=(.+)$", unit)[1].split()
        for place in PLACES.values():  # StateDirectory=, CacheDirectory=
            machine.run("install", "-d", "-m", "0700", "-o", "kvasir", "-g", "kvasir", place)
        super().__init__(machine, "kvasir", [*command, *flags], PLACES)


class Booted:
    """What systemd-nspawn makes of a machine: systemd is its process 1, and only it is on its network."""

    def __init__(self, machine):
        machine.close()  # nspawn mounts what it needs
        self.process = subprocess.Popen(
            ["systemd-nspawn", "-q", "--register=no", "--keep-unit", "-D", str(machine.root), "--private-network",
             "--console=pipe", "--boot"], env={**os.environ, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"},
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.first = None

    def wait(self, wait_s=60):
        """Whether it comes up."""
        end = time.monotonic() + wait_s
        while time.monotonic() < end and self.process.poll() is None:
            children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
            self.first = children[0] if children else None
            if self.first and self.ask("systemctl", "is-system-running").stdout.strip() in ("running", "degraded"):
                return True
            time.sleep(0.2)
        return False

    def inside(self, *command):
        return ["nsenter", "-t", self.first, "-m", "-u", "-i", "-n", "-p", "-C", "env", "-i", "LC_ALL=C.UTF-8",
                "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive", *map(str, command)]

    def ask(self, *command):
        return subprocess.run(self.inside(*command), capture_output=True, text=True, timeout=300)

    def type(self, command, answers):
        """The exit status and last line of a shell's command in a terminal, where the answers are typed."""
        return typed_in(self.inside("sh", "-c", command), answers, dict(os.environ))

    def post(self, path, body, key):
        """The answer's JSON. A bare Debian has no client but bash."""
        text = json.dumps(body)
        request = (f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\nConnection: close\r\n"
                   f"Content-Length: {len(text)}\r\n\r\n{text}")
        said = self.run("bash", "-c", 'exec 3<>/dev/tcp/127.0.0.1/8080; printf %s "$1" >&3; cat <&3', "-", request)
        return json.loads(said.split("\n\n", 1)[1])  # read as text, its lines end so

    def run(self, *command):
        done = self.ask(*command)
        if done.returncode:
            log = self.ask("journalctl", "-n", "50", "--no-pager").stdout
            raise AssertionError(f"{command}: exit {done.returncode}\n{done.stdout}{done.stderr}\n{log}")
        return done.stdout

    def show(self, name):
        return self.run("systemctl", "show", "kvasir", "-P", name).strip()

    def close(self):
        if self.process.poll() is None and self.first:
            os.kill(int(self.first), signal.SIGRTMIN + 4)  # poweroff
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
