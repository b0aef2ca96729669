#!/usr/bin/env python3
"""The Debian package on a bare Debian 12 (debootstrap): installed, run as its unit runs it, upgraded, purged; and the
steps of the Dockerfile. Needs root, debootstrap and a Debian mirror.

KVASIR_DEBIAN_ROOT: a folder that debootstrap made, with libraries installed or not; it is copied.
KVASIR_OLDER_DEB: a package that `./dev package` made of an older commit with packaging/kvasir.service. Its program then
writes what an upgrade finds (default: today's program, under an older number).
"""

import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import tempfile
import unittest

from needs import needs_programs, refused
from notify_socket import NotifySocket
from package_machine import PLACES, Booted, Machine, Service, Started, bare_debian, succeed
from printed import commands, section, shown, without_figures
from server_harness import BINARY, ROOT

BUILD = pathlib.Path(BINARY).parent
WORDS = "The brass key is in the blue drawer of the old desk. " * 8


@unittest.skipUnless(os.geteuid() == 0, "needs root")
@needs_programs("debootstrap", "dpkg-deb", "dpkg-shlibdeps", "file")
class Package(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(dir="/var/tmp", prefix="kvasir-debian.")
        cls.addClassCleanup(folder.cleanup)
        cls.bare = bare_debian(pathlib.Path(folder.name) / "bare")
        succeed("cpack", "--config", BUILD / "CPackConfig.cmake", "-B", f"{folder.name}/made")
        [cls.package] = pathlib.Path(folder.name, "made").glob("*.deb")

    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir="/var/tmp", prefix="kvasir-package.")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.machine = Machine(self.bare, self.folder)
        self.addCleanup(self.machine.close)

    def unpack_older(self):
        """A folder with the files of KVASIR_OLDER_DEB, else those of today's package."""
        succeed("dpkg-deb", "-R", os.environ.get("KVASIR_OLDER_DEB", self.package), self.folder / "older")
        return self.folder / "older"

    def older(self):
        """A package of an older version, with another default configuration."""
        tree = self.unpack_older()
        control = tree / "DEBIAN/control"
        control.write_text(re.sub(r"(?m)^Version: .*$", "Version: 0.1.9", control.read_text()))
        (tree / "etc/kvasir/serve.json").write_text('{"port": 8079}\n')
        (tree / "DEBIAN/md5sums").unlink(missing_ok=True)
        succeed("dpkg-deb", "-b", tree, self.folder / "older.deb")
        return self.folder / "older.deb"

    def before_the_service(self):
        """The package with the files that 0.2.0 had before it brought a service (cmake/install.cmake of that time), its
        control file and no scripts."""
        tree = self.unpack_older()
        kept = ("usr/bin/kvasir", "usr/share/kvasir/models/", "usr/share/doc/kvasir/LICENSE",
                "usr/share/doc/kvasir/CHANGELOG.md", "DEBIAN/control")
        for path in sorted(tree.rglob("*"), reverse=True):
            if path.is_dir() and not path.is_symlink():
                if not any(path.iterdir()):
                    path.rmdir()
            elif not str(path.relative_to(tree)).startswith(kept):
                path.unlink()
        control = (tree / "DEBIAN/control").read_text()
        control = re.sub(r"(?m)^(Version: .*)$", r"\1~before", control).replace(", adduser", "").replace("adduser, ", "")
        control = re.sub(r"(?m)^Suggests: .*\n", "", control)
        self.assertNotIn("adduser", control)
        (tree / "DEBIAN/control").write_text(control)
        succeed("dpkg-deb", "-b", tree, self.folder / "before.deb")
        return self.folder / "before.deb"

    def test_upgrade_of_a_package_without_a_service(self):
        """What dpkg makes of an upgrade that brings the user, the unit, the configuration and their scripts, beside a server
        that somebody runs."""
        machine = self.machine
        machine.install(self.before_the_service())
        self.assertEqual(machine.run("dpkg-query", "-W", "-f", "${Conffiles}", "kvasir").strip(), "")
        self.assertFalse(machine.path("/usr/lib/systemd/system/kvasir.service").exists())
        self.assertNotIn("kvasir", machine.path("/etc/passwd").read_text())

        def own():
            """What root runs by hand."""
            return Started(machine, "root", ["/usr/bin/kvasir", "serve", "--port", "0", "--kv-memory", "32MiB", "--disk-cap",
                                             "64MiB", "--disk-reserve", "0"], {"HOME": "/root"})

        server = own()
        session = server.ask("POST", "/v1/sessions", {"messages": [{"role": "user", "content": "Hello"}]})[1]
        chat = {"messages": [{"role": "user", "content": WORDS}], "max_tokens": 4, "temperature": 0}
        first = server.ask("POST", "/v1/chat/completions", chat)[1]
        self.assertEqual(server.ask("POST", "/v1/cache/flush", {})[0], 200)
        before = machine.path("/usr/bin/kvasir").stat().st_ino
        machine.install(self.package)  # while it runs
        self.assertNotEqual(machine.path("/usr/bin/kvasir").stat().st_ino, before)
        again = server.ask("POST", "/v1/chat/completions", chat)[1]
        self.assertEqual(again["choices"][0]["message"], first["choices"][0]["message"])
        self.assertEqual(server.stop(), 0)

        self.assertIn("kvasir", machine.path("/etc/passwd").read_text())
        self.assertEqual(machine.path("/etc/kvasir/serve.json").read_text(), (ROOT / "packaging/serve.json").read_text())
        self.assertEqual(machine.path("/etc/kvasir/credentials").stat().st_mode & 0o777, 0o700)
        self.assertTrue(machine.path("/etc/systemd/system/multi-user.target.wants/kvasir.service").is_symlink())
        service = Service(machine, "--port", "0", "--kv-memory", "32MiB")
        self.assertEqual(service.ask("GET", "/v1/sessions")[1]["data"], [])  # its own place
        self.assertEqual(service.stop(), 0)
        self.assertNotEqual(machine.path("/var/lib/kvasir/secret").read_bytes(),
                            machine.path("/root/.local/state/kvasir/secret").read_bytes())
        server = own()
        self.assertEqual([one["id"] for one in server.ask("GET", "/v1/sessions")[1]["data"]], [session["id"]])
        again = server.ask("POST", "/v1/chat/completions", chat)[1]
        self.assertGreater(again["kvasir"]["reused"]["disk"], 0)
        self.assertEqual(again["choices"][0]["message"], first["choices"][0]["message"])
        self.assertEqual(server.stop(), 0)

        machine.run("dpkg", "--purge", "kvasir")
        left = machine.run("find", "/etc", "/run", "/usr", "/var", "-xdev", "-name", "*kvasir*").split()
        self.assertEqual(left, [])
        self.assertTrue(machine.path("/root/.local/state/kvasir/secret").exists())  # whose it is, it stays

    def test_install_run_upgrade_and_purge(self):
        machine = self.machine
        machine.install(self.older())
        self.assertIn("kvasir", machine.path("/etc/passwd").read_text())
        self.assertEqual(machine.path("/etc/kvasir/credentials").stat().st_mode & 0o777, 0o700)
        config = machine.path("/etc/kvasir/serve.json")
        config.write_text('{"port": 0, "alias": "mine", "kv-memory": "32MiB", "disk-cap": "64MiB"}\n')

        service = Service(machine)
        session = service.ask("POST", "/v1/sessions", {"messages": [{"role": "user", "content": "Hello"}]})[1]
        self.assertEqual(service.ask("POST", f"/v1/sessions/{session['id']}/generate", {})[0], 200)
        said = service.ask("GET", f"/v1/sessions/{session['id']}")[1]["messages"]
        chat = {"messages": [{"role": "user", "content": WORDS}], "max_tokens": 4, "temperature": 0}
        status, first = service.ask("POST", "/v1/chat/completions", chat)
        self.assertEqual((status, first["kvasir"]["reused"]["disk"]), (200, 0))
        self.assertEqual(service.ask("POST", "/v1/cache/flush", {})[0], 200)
        self.assertEqual(service.stop(), 0)
        secret = machine.path("/var/lib/kvasir/secret").read_bytes()
        self.assertEqual(len(secret), 32)

        machine.install(self.package)  # over the older one
        self.assertIn('"alias": "mine"', config.read_text())
        self.assertEqual(machine.path("/var/lib/kvasir/secret").read_bytes(), secret)
        service = Service(machine)
        self.assertEqual(service.ask("GET", "/v1/models")[1]["data"][0]["id"], "mine")
        sessions = [one["id"] for one in service.ask("GET", "/v1/sessions")[1]["data"]]
        self.assertIn(session["id"], sessions)
        self.assertEqual(service.ask("GET", f"/v1/sessions/{session['id']}")[1]["messages"], said)
        self.assertEqual(len(said), 2)
        status, again = service.ask("POST", "/v1/chat/completions", chat)
        self.assertGreater(again["kvasir"]["reused"]["disk"], 0)
        self.assertEqual(again["choices"][0]["message"], first["choices"][0]["message"])
        said = machine.run("kvasir", "health", "--url", f"http://127.0.0.1:{service.port}")
        self.assertEqual(said, "ready\n")
        second = subprocess.run(["chroot", "--userspec=kvasir:kvasir", machine.root, "/usr/bin/kvasir", "serve", "--config",
                                 "/etc/kvasir/serve.json", "--port", str(service.port)], env={**machine.environment(), **PLACES}, capture_output=True,
                                text=True, timeout=120)
        self.assertEqual(second.returncode, 1, second.stderr)
        self.assertEqual(service.ask("GET", "/ready")[0], 200)
        self.assertEqual(service.stop(), 0)

        for wrong, says in (("{\"port\": true}", "key 'port' takes a string or a whole number"), ("", "Permission denied")):
            path = machine.path("/etc/kvasir/wrong.json")
            path.write_text(wrong)
            path.chmod(0o644 if wrong else 0o600)  # root's alone
            refused = subprocess.run(["chroot", "--userspec=kvasir:kvasir", machine.root, "/usr/bin/kvasir", "serve",
                                      "--config", "/etc/kvasir/wrong.json"], env=machine.environment(),
                                     capture_output=True, text=True, timeout=120)
            self.assertEqual(refused.returncode, 2, refused.stderr)  # RestartPreventExitStatus=2
            self.assertIn(f"--config: /etc/kvasir/wrong.json: {says}" if wrong else says, refused.stderr)

        wants = machine.path("/etc/systemd/system/multi-user.target.wants/kvasir.service")
        self.assertTrue(wants.is_symlink())  # it starts with the machine
        machine.run("dpkg", "--remove", "kvasir")
        self.assertTrue(machine.path("/var/lib/kvasir/secret").exists())
        self.assertTrue(config.exists())
        machine.run("dpkg", "--purge", "kvasir")
        left = machine.run("find", "/etc", "/run", "/usr", "/var", "-xdev", "-name", "*kvasir*").split()
        self.assertEqual(left, [])
        self.assertNotIn("kvasir", machine.path("/etc/passwd").read_text())

    def boot(self):
        booted = Booted(self.machine)
        self.addCleanup(booted.close)
        if not booted.wait():
            refused("systemd-nspawn boots no Debian here; test_install_run_upgrade_and_purge is the manager itself")
        return booted

    @needs_programs("systemd-nspawn", "nsenter")
    def test_systemd_runs_the_service(self):
        machine = self.machine
        machine.run("apt-get", "update", "-q")
        machine.run("apt-get", "install", "-y", "-q", "--no-install-recommends", "systemd", "systemd-sysv", "dbus", "sudo")
        machine.install(self.older())
        machine.path("/etc/kvasir/serve.json").write_text('{"kv-memory": "64MiB", "disk-cap": "64MiB", "parallel": 2}\n')
        keys = machine.path("/etc/kvasir/credentials/api-keys")
        keys.write_text("alpha\n")
        keys.chmod(0o600)
        booted = self.boot()

        booted.run("systemctl", "start", "kvasir")  # it starts with the machine; this waits for READY=1
        self.assertEqual(booted.run("kvasir", "health"), "ready\n")
        self.assertEqual(booted.show("StatusText"), "serving kvasir-demo")
        self.assertIn("needs a key", booted.ask("kvasir", "ps").stderr)  # of the credential
        self.assertIn("kvasir-demo", booted.run("kvasir", "ps", "--api-key", "alpha"))
        plan = json.loads(booted.run("kvasir", "plan", "--config", "/etc/kvasir/serve.json", "--json"))
        need = plan["total_bytes"] + plan["process_bytes"]
        self.assertTrue(need < int(booted.show("MemoryMax")) < 2 * need + plan["load_peak_bytes"] + plan["mapped_bytes"])
        first = booted.show("MainPID")
        booted.run("systemctl", "reload", "kvasir")
        booted.run("systemctl", "start", "kvasir")  # a second time
        self.assertEqual((booted.show("MainPID"), booted.show("ActiveState")), (first, "active"))
        self.assertEqual(machine.path("/var/lib/kvasir").stat().st_mode & 0o777, 0o700)
        secret = machine.path("/var/lib/kvasir/secret").read_bytes()

        shutil.copy(self.package, machine.path("/root/kvasir.deb"))
        booted.run("dpkg", "-i", "--force-confold", "/root/kvasir.deb")
        self.assertNotEqual(booted.show("MainPID"), first)
        self.assertEqual(booted.run("kvasir", "health"), "ready\n")
        self.assertEqual(machine.path("/var/lib/kvasir/secret").read_bytes(), secret)

        self.check_backup_as_printed(booted)

        machine.path("/etc/kvasir/serve.json").write_text('{"kv-memroy": "64MiB"}\n')
        self.assertNotEqual(booted.ask("systemctl", "restart", "kvasir").returncode, 0)
        self.assertEqual((booted.show("ExecMainStatus"), booted.show("NRestarts"), booted.show("ActiveState")),
                         ("2", "0", "failed"))
        self.assertIn("did you mean 'kv-memory'?", booted.run("journalctl", "-u", "kvasir", "--no-pager"))
        booted.run("dpkg", "--purge", "kvasir")
        self.assertEqual(booted.show("LoadState"), "not-found")
        self.assertEqual(booted.run("find", "/etc", "/usr", "/var", "-xdev", "-name", "*kvasir*"), "")

    def check_backup_as_printed(self, booted):
        """The commands of docs/operations.md: a backup while the service runs, and back after its disk was lost."""
        text = section("operations.md", "Backup")
        backup, stop, restore = commands(text)
        known = ("passphrase of the backup: ", "a long passphrase")
        sessions = [booted.post("/v1/sessions", {"messages": [{"role": "user", "content": WORDS}]}, "alpha")["id"]
                    for _ in range(3)]
        booted.post("/v1/responses", {"input": "Hello", "max_output_tokens": 4}, "alpha")
        status, said = booted.type(backup, [known, ("once more: ", known[1])])
        self.assertEqual((status, without_figures(said)), (0, without_figures(shown(text)[0])))
        booted.run("sh", "-c", stop)
        booted.run("rm", "-r", "/var/cache/kvasir/kv", "/var/lib/kvasir/secret")
        status, said = booted.type(restore, [known])
        self.assertEqual((status, without_figures(said)), (0, without_figures(shown(text)[1])))
        booted.run("systemctl", "start", "kvasir")
        for one in sessions:
            made = booted.post(f"/v1/sessions/{one}/messages", {"messages": [{"role": "user", "content": "More."}]}, "alpha")
            self.assertEqual(made.get("id", one), one, made)
            self.assertNotIn("error", made)

    def test_the_steps_of_the_image(self):
        """What `docker build` does with the Dockerfile, and what the container would run."""
        text = (ROOT / "docker/Dockerfile").read_text().replace("\\\n", " ")
        steps = re.findall(r"(?m)^([A-Z]+) +(.+)$", text)
        self.assertEqual(steps[0], ("FROM", "debian:12-slim"))
        shutil.copy(self.package, self.machine.path("/tmp/kvasir.deb"))  # COPY
        for word, line in steps:
            if word == "RUN":
                self.machine.run("sh", "-c", line)
        settings = dict(steps)
        environment = dict(one.split("=", 1) for one in settings["ENV"].split())
        self.assertEqual({k: environment[k] for k in PLACES}, PLACES)
        command = json.loads(settings["ENTRYPOINT"]) + json.loads(settings["CMD"])
        with socket.socket() as free:  # a container has every port, this machine may not
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        with NotifySocket() as manager:
            process = subprocess.Popen(
                ["chroot", f"--userspec={settings['USER']}", self.machine.root, *command, "--kv-memory", "16MiB",
                 "--port", str(port)],
                env={**environment, "NOTIFY_SOCKET": manager.name, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}, stderr=subprocess.DEVNULL)
            try:
                manager.until("READY")
                command = settings["HEALTHCHECK"].split(" CMD ")[1].replace("127.0.0.1:8080", f"127.0.0.1:{port}")
                self.assertTrue(command.startswith("kvasir health || kvasir health --url https://"), command)
                health = ["sh", "-c", command.replace("health ||", f"health --url http://127.0.0.1:{port} ||")]
                self.assertEqual(self.machine.run(*health), "ready\n")
            finally:
                process.terminate()
                process.wait(60)
        failed = subprocess.run(["chroot", self.machine.root, *health], capture_output=True, text=True)
        self.assertEqual(failed.returncode, 1)

    @needs_programs("buildah")
    def test_buildah_builds_the_image_and_its_healthcheck_passes(self):
        """The Dockerfile itself. Its debian:12-slim is the bare Debian of this test: nothing is pulled."""
        self.machine.close()  # no /proc in an image
        context = self.folder / "context/build/package"
        context.mkdir(parents=True)
        shutil.copy(self.package, context)

        def buildah(*words):
            return succeed("buildah", "--root", self.folder / "images", "--runroot", self.folder / "run",
                           "--storage-driver", "vfs", *words).strip()

        base = buildah("from", "scratch")
        buildah("copy", base, self.machine.root, "/")
        buildah("commit", "--rm", base, "docker.io/library/debian:12-slim")
        buildah("bud", "--isolation", "chroot", "--pull-never", "--format", "docker", "-f", ROOT / "docker/Dockerfile",
                "-t", "kvasir", self.folder / "context")
        config = json.loads(buildah("inspect", "--type", "image", "kvasir"))["Docker"]["config"]
        self.assertEqual((config["User"], sorted(config["Volumes"])), ("kvasir", ["/var/cache/kvasir", "/var/lib/kvasir"]))
        made = buildah("from", "--pull-never", "kvasir")
        with socket.socket() as free:  # with chroot isolation the network is this machine's
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        kind, command = config["Healthcheck"]["Test"]
        self.assertEqual(kind, "CMD-SHELL")
        health = command.replace("kvasir health ||", f"kvasir health --url http://127.0.0.1:{port} ||")
        self.assertNotEqual(health, command)
        run = ["buildah", "--root", self.folder / "images", "--runroot", self.folder / "run", "--storage-driver", "vfs",
               "run", "--isolation", "chroot", made, "--"]

        def healthy():
            return subprocess.run([*map(str, run), "sh", "-c", health], capture_output=True, text=True, timeout=120)

        self.assertEqual(healthy().returncode, 1)  # nothing runs yet
        server = subprocess.Popen([*map(str, run), *config["Entrypoint"], *config["Cmd"], "--port", str(port), "--kv-memory",
                                   "16MiB"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            for line in server.stderr:
                if "listening on" in line:
                    break
            else:
                self.fail("the container's server did not start")
            done = healthy()
            self.assertEqual((done.returncode, done.stdout), (0, "ready\n"), done.stderr)
            owner = buildah("run", "--isolation", "chroot", made, "--", "stat", "-c", "%U %a", "/var/lib/kvasir/secret")
            self.assertEqual(owner, "kvasir 600")
        finally:
            server.terminate()
            server.communicate(timeout=60)


if __name__ == "__main__":
    unittest.main()
