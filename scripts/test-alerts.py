"""Brings about each failure of docs/operations.md on servers of its own, and checks which alerts of examples/metrics/ come.

    test-alerts.py SERVER EXPORTER MODULE FOLDER

Each failure is a job of Prometheus, so that the alerts of a job are those of its failure. Alerts that wait for their `for:` are
pending, and count: what comes for a moment is over when the servers are looked at. FOLDER is for files. scripts/test-metrics.sh
runs it. Everything listens on 127.0.0.1 and ends with this program.
"""

import atexit
import json
import os
import pathlib
import re
import shutil
import socket
import struct
import subprocess
import sys
import time
import urllib.parse
import urllib.request

server_program, exporter_program = sys.argv[1:3]
module, folder = (pathlib.Path(argument).resolve() for argument in sys.argv[3:])
processes = []


@atexit.register
def finish():
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()


class Failed(Exception):
    pass


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as chosen:
        return chosen.getsockname()[1]


def start(name, *command, **options):
    log = open(folder / f"{name}.log", "ab")
    process = subprocess.Popen([str(word) for word in command], stdout=log, stderr=log, **options)
    processes.append(process)
    return process


class Server:
    """A new server, with the module by default, and the user of docs/operations.md."""

    count = 0

    def __init__(self, *arguments, settings="", policies="free WINDOW 5 60", with_module=True, clock_ms=None):
        Server.count += 1
        self.port = free_port()
        self.folder = folder / f"server{Server.count}"
        self.folder.mkdir()
        self.instance = f"redis://127.0.0.1:{self.port}"
        self.command = [server_program, "--bind", "127.0.0.1", "--port", self.port, "--dir", self.folder, "--save", ""]
        self.command += arguments
        if with_module:
            self.command += ["--loadmodule", module, *settings.split(), "policies", *policies.split()]
        self.with_module = with_module
        self.environment = dict(os.environ)
        if clock_ms is not None:
            clock = self.folder / "clock"
            self.set_clock(clock_ms)
            self.environment |= {"LD_PRELOAD": str(clock_library()), "RATELIMIT_TEST_CLOCK": str(clock)}
        self.start()

    def set_clock(self, ms):
        """Below 0 it is that far behind, at 0 right; above it stands there."""
        clock = self.folder / "clock"
        # In its place, as the server has it mapped.
        with open(clock, "r+b" if clock.exists() else "wb") as file:
            file.write(struct.pack("<qq", ms * 1000, 0))

    def start(self):
        self.process = start(f"server{self.port}", *self.command, env=self.environment)
        end = time.monotonic() + 30
        while True:
            try:
                self.socket = socket.create_connection(("127.0.0.1", self.port), 20)
                break
            except OSError:
                if time.monotonic() > end or self.process.poll() is not None:
                    raise
                time.sleep(0.05)
        self.file = self.socket.makefile("rb")
        rules = re.findall(r"ACL SETUSER metrics .*", pathlib.Path("docs/operations.md").read_text())
        assert len(rules) == 1, rules
        words = rules[0].replace(">PASSWORD", ">secret").split()
        self(*(word for word in words if self.with_module or word != "+rl.top"))

    def kill(self):
        self.process.kill()
        self.process.wait()

    def receive(self):
        line = self.file.readline()
        kind, rest = line[:1], line[1:].strip()
        if kind == b"*":
            return [self.receive() for _ in range(int(rest))]
        if kind == b"$":
            return None if rest == b"-1" else self.file.read(int(rest) + 2)[:-2]
        return int(rest) if kind == b":" else line.strip()

    def answer(self, *words):
        words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        self.socket.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))
        return self.receive()

    def __call__(self, *words):
        reply = self.answer(*words)
        if isinstance(reply, bytes) and reply.startswith(b"-"):
            raise Failed(f"{words} answered {reply}")
        return reply

    def refused(self, prefix, *words):
        reply = self.answer(*words)
        if not (isinstance(reply, bytes) and reply.startswith(b"-" + prefix)):
            raise Failed(f"{words} answered {reply}")

    def info(self, field):
        lines = self("INFO", "everything").decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line).get(field)


def until(what, seconds, holds):
    end = time.monotonic() + seconds
    while not (found := holds()):
        if time.monotonic() > end:
            raise Failed(f"not within {seconds} s: {what}")
        time.sleep(0.2)
    return found


def clock_library():
    """The clock that tests hold, preloaded into a server."""
    library = folder / "clock.so"
    if not library.exists():
        subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, "tests/support/src/clock.c"], check=True)
    return library


def replica_of(master):
    replica = Server()
    replica("REPLICAOF", "127.0.0.1", master.port)
    until("a replica", 60, lambda: replica.info("master_link_status") == "up")
    return replica


def calls(server, key="user:1"):
    """Ordinary calls: most are allowed, some denied, work is reserved and done."""
    server("RL.WINDOW", f"{key}:window", 5, 60)
    server("RL.THROTTLE", key, 9, 600, 60)
    server("RL.WINDOW", f"{key}:{time.monotonic_ns()}", "@free")
    taken = server("RL.ACQUIRE", f"{key}:jobs", 1_000_000, 60)
    server("RL.APPLY", f"{key}:jobs", taken[5])


def nothing(*servers):
    pass


# ---- The failures: the servers of each, what happens again and again, and the alerts, each with the server that it names ----

failures = {}


def failure(name, servers, again, *alerts):
    """Alerts are names, and names with the number of a server."""
    wanted = {alert if isinstance(alert, tuple) else (alert, None) for alert in alerts}
    failures[name] = (servers, again, {(alert, "" if number is None else servers[number].instance) for alert, number in wanted})


master = Server()
failure("no_failure", [master, replica_of(master)], lambda: calls(master))

failure("no_module", [Server(with_module=False)], nothing, ("RatelimitModuleMissing", 0))

no_rights = Server()
no_rights("ACL", "SETUSER", "metrics", "-eval")
failure("script_refused", [no_rights], lambda: calls(no_rights), ("RatelimitMetricsMissing", 0))

full = Server()
full("CONFIG", "SET", "maxmemory", 1)
failure("out_of_memory", [full], lambda: full.refused(b"OOM", "RL.WINDOW", "k", 5, 60),
        ("RatelimitWritesRefused", 0), ("RatelimitMemoryNearLimit", 0))

nearly_full = Server()
nearly_full("CONFIG", "SET", "maxmemory", int(int(nearly_full.info("used_memory")) * 1.04))
failure("nearly_out_of_memory", [nearly_full], nothing, ("RatelimitMemoryNearLimit", 0))

may_evict = Server("--maxmemory-policy", "volatile-lru", "--maxmemory", "1gb")
failure("may_evict", [may_evict], lambda: calls(may_evict), ("RatelimitMayEvict", 0))
# Without maxmemory it cannot.
cannot_evict = Server("--maxmemory-policy", "volatile-lru")
failure("cannot_evict", [cannot_evict], lambda: calls(cannot_evict))

evicting = Server("--maxmemory-policy", "allkeys-random")
evicting("CONFIG", "SET", "maxmemory", int(evicting.info("used_memory")) + 1_000_000)


def fill():
    for number in range(100):
        evicting("SET", f"filler:{time.monotonic_ns()}", "x" * 10_000)
    evicting("RL.WINDOW", "k", 5, 60)


failure("evicted", [evicting], fill,
        ("RatelimitLimitsEvicted", 0), ("RatelimitMayEvict", 0), ("RatelimitMemoryNearLimit", 0))

no_disk = Server()
no_disk("CONFIG", "SET", "save", "3600 1")
no_disk("SET", "k", "v")
shutil.rmtree(no_disk.folder)
no_disk("BGSAVE")
until("a snapshot that fails", 30, lambda: no_disk.info("rdb_last_bgsave_status") == "err")
failure("snapshot_fails", [no_disk], lambda: no_disk.refused(b"MISCONF", "RL.WINDOW", "w", 5, 60), ("RatelimitWritesRefused", 0))

lonely = Server("--min-replicas-to-write", 1)
failure("no_replicas", [lonely], lambda: lonely.refused(b"NOREPLICAS", "RL.WINDOW", "k", 5, 60), ("RatelimitWritesRefused", 0))

old_master = Server()
new_master = replica_of(old_master)
new_master("REPLICAOF", "NO", "ONE")
old_master("REPLICAOF", "127.0.0.1", new_master.port)
failure("failover", [old_master, new_master], lambda: calls(new_master))

dead_master = Server()
heir = replica_of(dead_master)
dead_master.kill()
heir("REPLICAOF", "NO", "ONE")
failure("failover_of_a_dead_master", [dead_master, heir], lambda: calls(heir), ("RatelimitServerDown", 0))

isolated = Server()
promoted = replica_of(isolated)
promoted("REPLICAOF", "NO", "ONE")
failure("two_masters", [isolated, promoted], lambda: calls(promoted), "RatelimitTwoMasters")

cut_off = Server()
cut_off("REPLICAOF", "127.0.0.1", free_port())
failure("replica_link", [cut_off], nothing, ("RatelimitReplicaLinkBroken", 0))

restarted = Server()
calls(restarted)
restarted.kill()
restarted.start()
failure("restart", [restarted], lambda: calls(restarted))

# Before Prometheus sees its keys, and after.
emptied, emptied_at = Server(), []


def come_back_empty():
    if not emptied_at:
        for number in range(100):
            emptied("RL.WINDOW", f"user:{number}", 5, "1h")
        emptied_at.append(time.monotonic() + 25)
    elif emptied_at[-1] < time.monotonic() and len(emptied_at) == 1:
        emptied_at.append(float("inf"))
        emptied.kill()
        emptied.start()
    emptied("RL.WINDOW", "user:1", 5, "1h")


failure("restart_without_data", [emptied], come_back_empty, ("RatelimitCameBackEmpty", 0))

# It was started two days ago, and its clock is right now.
unsaved = Server(clock_ms=-2 * 86_400_000)
unsaved.set_clock(0)
failure("nothing_saved", [unsaved], lambda: calls(unsaved), ("RatelimitNotSaved", 0))

now_ms = time.time_ns() // 1_000_000
behind = Server(clock_ms=-60_000)
failure("clock_steps_back", [behind], lambda: calls(behind), ("RatelimitClockOff", 0))
ahead = Server(clock_ms=now_ms + 3_600_000)
failure("clock_steps_forward", [ahead], nothing, ("RatelimitClockOff", 0))

overwritten = Server()


def overwrite():
    calls(overwritten)
    overwritten("SET", "mine", "theirs")
    overwritten.refused(b"WRONGTYPE", "RL.WINDOW", "mine", 5, 60)


failure("key_overwritten", [overwritten], overwrite, ("RatelimitErrors", 0))

deleted = Server()


def delete():
    calls(deleted)
    deleted("DEL", "user:1")


failure("key_deleted", [deleted], delete)

unreachable = Server()
unreachable.kill()
failure("unreachable", [unreachable], nothing, ("RatelimitServerDown", 0))

differing = [Server(), Server(policies="free WINDOW 6 60")]
failure("policies_differ", differing, nothing, "RatelimitPoliciesDiffer")

# The second has other settings, and the third only shows other things.
unequal = [Server(), Server(settings="timezone Europe/Berlin lease 30000"), Server(settings="top-keys 64 notify-denied yes")]
failure("settings_differ", unequal, nothing, "RatelimitSettingsDiffer")
failure("settings_show_other_things", [unequal[0], unequal[2]], nothing)

lapsing = Server()


def lapse():
    lapsing("RL.ACQUIRE", "jobs", 1_000_000, 0, 1, "LEASE", 1)
    time.sleep(0.005)
    lapsing("RL.ACQUIRE", "jobs", 1_000_000, 0, 1, "LEASE", 1)


failure("workers_die", [lapsing], lapse, ("RatelimitReservationsLapse", 0))

denying = Server(policies="free WINDOW 1 60")
failure("denied", [denying], lambda: denying("RL.WINDOW", "k", "@free"), "RatelimitPolicyDeniesMost")

shadowing = Server(policies="free WINDOW 1 60 SHADOW")
failure("shadowed", [shadowing], lambda: shadowing("RL.WINDOW", "k", "@free"), "RatelimitShadowWouldDeny")

watched = Server()
failure("exporter_down", [watched], lambda: calls(watched), ("RatelimitExporterDown", 0))

# ---- One exporter for all, one more that goes down, and Prometheus with a job for each failure ----

exporters = [free_port(), free_port()]
passwords = {server.instance: "secret" for servers, _, _ in failures.values() for server in servers}
(folder / "passwords-of-failures.json").write_text(json.dumps(passwords))
for port in exporters:
    exporter = start("exporter-of-failures", exporter_program, "-web.listen-address", f"127.0.0.1:{port}", "-redis.addr", "",
                     "-redis.user", "metrics", "-redis.password-file", folder / "passwords-of-failures.json",
                     "-script", "examples/metrics/ratelimit.lua")

published = pathlib.Path("examples/metrics/prometheus.yml").read_text()
head, job = published.split("scrape_configs:\n")
shutil.copy("examples/metrics/alerts.yml", folder / "alerts.yml")
config = "global: {scrape_interval: 2s, scrape_timeout: 2s, evaluation_interval: 1s}\n" + head + "scrape_configs:\n"
for name, (servers, _, _) in failures.items():
    targets = "\n".join(f"          - {server.instance}" for server in servers)
    port = exporters[name == "exporter_down"]
    changes = ("job_name: redis", f"job_name: {name}"), ("          - redis://127.0.0.1:6379", targets), ("127.0.0.1:9121", f"127.0.0.1:{port}")
    changed = job
    for old, new in changes:
        assert changed.count(old) == 1, old
        changed = changed.replace(old, new)
    config += changed
(folder / "failures.yml").write_text(config)
web = free_port()
start("prometheus-of-failures", "prometheus", "--config.file", folder / "failures.yml", "--storage.tsdb.path", folder / "failures",
      "--web.listen-address", f"127.0.0.1:{web}")


def get(path, **arguments):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{web}/api/v1/{path}?{urllib.parse.urlencode(arguments)}", timeout=20) as answer:
            return json.load(answer)["data"]
    except OSError:
        return None


def found():
    """The alerts of each failure, pending or firing, each with the server that it names."""
    of = {name: set() for name in failures}
    for alert in (get("alerts") or {"alerts": []})["alerts"]:
        labels = alert["labels"]
        of[labels["job"]].add((labels["alertname"], labels.get("instance", "")))
    return of


def differ():
    return "\n".join(f"{name}: wanted {sorted(wanted)}, found {sorted(alerts)}"
                     for (name, (_, _, wanted)), alerts in zip(failures.items(), found().values()) if wanted != alerts)


def main():
    servers = sum(len(servers) for servers, _, _ in failures.values())
    until("the first scrape of the job exporter_down", 60, lambda: (get("query", query='redis_up{job="exporter_down"}') or {}).get("result"))
    exporter.kill()
    # All alerts as wanted, for five seconds without a break. What is counted in rates needs some scrapes.
    end, since = time.monotonic() + 120, None
    while since is None or time.monotonic() - since < 5:
        if time.monotonic() > end:
            raise Failed(f"the alerts are not those of the failures:\n{differ()}")
        for _, again, _ in failures.values():
            again()
        time.sleep(0.5)
        since = None if differ() else since or time.monotonic()
    alerts = {alert for _, _, wanted in failures.values() for alert, _ in wanted}
    print(f"{len(failures)} failures on {servers} servers fire {len(alerts)} alerts, each for what it names and no other")


try:
    main()
except Failed as failed:
    sys.exit(f"FAILED: {failed}")
