"""Scrapes servers as examples/metrics/ says: one whose metrics all move, and some for each failure of docs/operations.md.

    test-metrics.py SERVER EXPORTER MODULE FOLDER

Each query of the alerts and the dashboard must return a series, and each failure must bring its alerts and no others. Each
failure is a job of Prometheus, so that the alerts of a job are those of its failure. Alerts that wait for their `for:` are
pending, and count: what comes for a moment is over when the servers are looked at. FOLDER is for files. It is run by
scripts/test-metrics.sh. Everything listens on 127.0.0.1 and ends with this program.
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
import urllib.error
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
        """Below 0: the clock is that far behind. 0: it is correct. Above 0: it stands at that time."""
        clock = self.folder / "clock"
        # Written in place, because the server has mapped the file.
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
        rules = re.findall(r"^ACL SETUSER metrics on .*", pathlib.Path("docs/operations.md").read_text(), re.MULTILINE)
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

    def send(self, *words):
        words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        self.socket.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))

    def answer(self, *words):
        self.send(*words)
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

    def info(self, section="everything"):
        return dict(line.split(":", 1) for line in self("INFO", section).decode().splitlines() if ":" in line)


def until(what, seconds, holds, instead=lambda: ""):
    end = time.monotonic() + seconds
    while True:
        try:
            if holds():
                return
        except OSError:
            pass
        if time.monotonic() > end:
            raise Failed(f"not within {seconds} s: {what} {instead()}")
        time.sleep(0.2)


def clock_library():
    """The clock that tests hold, preloaded into a server."""
    library = folder / "clock.so"
    if not library.exists():
        subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, "tests/support/src/clock.c"], check=True)
    return library


def replica_of(master):
    replica = Server()
    replica("REPLICAOF", "127.0.0.1", master.port)
    until("a replica", 60, lambda: replica.info()["master_link_status"] == "up")
    return replica


def calls(server, key="user:1"):
    """Ordinary calls: most are allowed, some denied, work is reserved and done."""
    server("RL.WINDOW", f"{key}:window", 5, 60)
    server("RL.THROTTLE", key, 9, 600, 60)
    server("RL.WINDOW", f"{key}:{time.monotonic_ns()}", "@free")
    taken = server("RL.ACQUIRE", f"{key}:jobs", 1_000_000, 60)
    server("RL.APPLY", f"{key}:jobs", taken[5])


def lapse(server):
    for _ in range(2):
        server("RL.ACQUIRE", "lapses", 1_000_000, 0, 1, "LEASE", 1)
        time.sleep(0.005)


def nothing():
    pass


# ---- The failures: the servers of each, a function that is called repeatedly, and the alerts ----

failures = {}


def failure(name, servers, again, *alerts):
    """An alert is a name, or a name and the number of the server that it names."""
    wanted = {(alert, "") if isinstance(alert, str) else (alert[0], servers[alert[1]].instance) for alert in alerts}
    failures[name] = (servers, again, wanted)


everything = Server("--hz", 100, settings="cl-throttle yes",
                    policies="free THROTTLE 1 1 60; new.limit WINDOW 1 60 SHADOW; day WINDOW 5 1d FIXED")
odd_key = b'caf\xe9 "\\:\r\n\xff\x00'
everything("RL.ACQUIRE", "lock", 1, 0, "LEASE", "1h")
waiting = socket.create_connection(("127.0.0.1", everything.port))
waiting.sendall(b"RL.ACQUIRE lock 1 0 BLOCK 0\r\n")


def move_everything():
    """Calls that change every metric."""
    for key in b"user:1", b"user:2", odd_key:
        for _ in range(3):
            everything("RL.THROTTLE", key, "@free")
            everything("RL.WINDOW", b"new:" + key, "@new.limit")
    everything("RL.WINDOW", "day", "@day")
    everything("CL.THROTTLE", "cell", 1, 1, 60)
    everything("RL.ALL", 2, "{a}1", "{a}2", "WINDOW", 1, 60, "THROTTLE", 1, 1, 60)
    everything.refused(b"", "RL.WINDOW", "w", "x", 60)
    for job in range(10):
        everything("RL.ACQUIRE", "jobs", 100, 0, 1, "LEASE", 600_000, "ID", f"job-{time.monotonic_ns()}-{job}")
    for settle in "RL.APPLY", "RL.RELEASE":
        taken = everything("RL.ACQUIRE", "window", 1_000_000, 60)
        everything(settle, "window", taken[5])
    lapse(everything)
    everything("RL.WINDOW", "slides", 1, "30ms")
    everything("RL.WINDOW", "slides", 1, "30ms", 1, "BLOCK", 1000)
    everything("RL.ACQUIRE", "lock", 1, 0, 1, "BLOCK", 20)
    # What the server refuses, with the prefix of each refusal.
    for prefix, setting, value, back in (b"OOM", "maxmemory", 1, 0), (b"NOREPLICAS", "min-replicas-to-write", 1, 0):
        everything("CONFIG", "SET", setting, value)
        everything.refused(prefix, "RL.THROTTLE", "refused", 1, 1, 60)
        everything("CONFIG", "SET", setting, back)


failure("everything", [everything], move_everything,
        ("RatelimitWritesRefused", 0), ("RatelimitErrors", 0), ("RatelimitReservationsLapse", 0), ("RatelimitLongWait", 0),
        "RatelimitPolicyDeniesMost", "RatelimitShadowWouldDeny")

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
nearly_full("CONFIG", "SET", "maxmemory", int(int(nearly_full.info()["used_memory"]) * 1.04))
failure("nearly_out_of_memory", [nearly_full], nothing, ("RatelimitMemoryNearLimit", 0))

may_evict = Server("--maxmemory-policy", "volatile-lru", "--maxmemory", "1gb")
failure("may_evict", [may_evict], lambda: calls(may_evict), ("RatelimitMayEvict", 0))
# Without maxmemory it cannot.
cannot_evict = Server("--maxmemory-policy", "volatile-lru")
failure("cannot_evict", [cannot_evict], lambda: calls(cannot_evict))

evicting = Server("--maxmemory-policy", "allkeys-random")
evicting("CONFIG", "SET", "maxmemory", int(evicting.info()["used_memory"]) + 1_000_000)


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
until("a snapshot that fails", 30, lambda: no_disk.info()["rdb_last_bgsave_status"] == "err")
failure("snapshot_fails", [no_disk], lambda: no_disk.refused(b"MISCONF", "RL.WINDOW", "w", 5, 60),
        ("RatelimitWritesRefused", 0))

lonely = Server("--min-replicas-to-write", 1)
failure("no_replicas", [lonely], lambda: lonely.refused(b"NOREPLICAS", "RL.WINDOW", "k", 5, 60),
        ("RatelimitWritesRefused", 0))

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

# When it is restarted: after Prometheus has seen its keys.
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

# By its clock it was started two days ago. Since then the clock is correct.
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
failure("workers_die", [lapsing], lambda: lapse(lapsing), ("RatelimitReservationsLapse", 0))

denying = Server(policies="free WINDOW 1 60")
failure("denied", [denying], lambda: denying("RL.WINDOW", "k", "@free"), "RatelimitPolicyDeniesMost")

shadowing = Server(policies="free WINDOW 1 60 SHADOW")
failure("shadowed", [shadowing], lambda: shadowing("RL.WINDOW", "k", "@free"), "RatelimitShadowWouldDeny")

watched = Server()
failure("exporter_down", [watched], lambda: calls(watched), ("RatelimitExporterDown", 0))

# ---- One exporter for all, one more that goes down, and Prometheus with a job for each failure ----

exporters = [free_port(), free_port()]
passwords = {server.instance: "secret" for servers, _, _ in failures.values() for server in servers}
(folder / "passwords.json").write_text(json.dumps(passwords))
for port in exporters:
    exporter = start("exporter", exporter_program, "-web.listen-address", f"127.0.0.1:{port}", "-redis.addr", "",
                     "-redis.user", "metrics", "-redis.password-file", folder / "passwords.json",
                     "-script", "examples/metrics/ratelimit.lua")

head, job = pathlib.Path("examples/metrics/prometheus.yml").read_text().split("scrape_configs:\n")
config = "global: {scrape_interval: 2s, scrape_timeout: 2s, evaluation_interval: 1s}\n" + head + "scrape_configs:\n"
# Newer releases of redis_exporter add the label `filename`.
filename = "{source_labels: [__name__], regex: redis_script_values, target_label: filename, replacement: x}"
for name, (servers, _, _) in failures.items():
    changed = job
    for old, new in {
        "job_name: redis": f"job_name: {name}",
        "          - redis://127.0.0.1:6379": "\n".join(f"          - {server.instance}" for server in servers),
        "127.0.0.1:9121": f"127.0.0.1:{exporters[name == 'exporter_down']}",
        "    metric_relabel_configs:": f"    metric_relabel_configs:\n      - {filename}",
    }.items():
        assert changed.count(old) == 1, old
        changed = changed.replace(old, new)
    config += changed
(folder / "failures.yml").write_text(config)
web = free_port()
start("prometheus", "prometheus", "--config.file", folder / "failures.yml", "--storage.tsdb.path", folder / "data",
      "--web.listen-address", f"127.0.0.1:{web}")


def get(path, **arguments):
    try:
        url = f"http://127.0.0.1:{web}/api/v1/{path}?{urllib.parse.urlencode(arguments)}"
        with urllib.request.urlopen(url, timeout=20) as answer:
            return json.load(answer)["data"]
    except urllib.error.HTTPError as error:
        # While Prometheus starts.
        if error.code == 503:
            raise
        raise Failed(f"{path} {arguments}: {error.read().decode()}") from error


def query(expression):
    return get("query", query=expression)["result"]


def again():
    for _, happens, _ in failures.values():
        happens()


def check_numbers():
    """A metric of each form has the number of INFO. tests/server checks that the script exports all of INFO."""
    info = everything.info("ratelimit")
    here = f'instance="{everything.instance}"'
    digests = ",".join(f'{label}="{info[f"ratelimit_{label}"]}"'
                       for label in ("version", "commit", "policies_digest", "settings_digest"))
    expected = {
        "ratelimit_reservations_lapsed{%s}": info["ratelimit_reservations_lapsed"],
        'ratelimit_calls_total{command="cl_throttle",result="denied",%s}': info["ratelimit_cl_throttle_denied"],
        'ratelimit_policy_calls_total{policy="new.limit",result="shadow_denied",%s}':
            info["ratelimit_policy_new.limit"].rpartition("=")[2],
        f"ratelimit_module{{{digests},%s}}": "1",
    }

    def differing():
        found = {selector: query(selector % here) for selector in expected}
        return {selector: series for selector, series in found.items()
                if [each["value"][1] for each in series] != [expected[selector]] or expected[selector] == "0"}

    until("the numbers of INFO", 20, lambda: not differing(), differing)
    # A key of any bytes is a label, and no two keys are the same label.
    tops = {found["metric"]["denied_key"]: found["value"][1] for found in query(f"ratelimit_top_denied{{{here}}}")}
    for key in "user:1", "user:2", r'caf\xe9 "\x5c:\x0d\x0a\xff\x00':
        assert int(tops.get(key, 0)) > 20, (key, tops)
    left = [found for label in ("key", "filename") for found in query(f'{{__name__=~"ratelimit_.*",{label}!=""}}')]
    left += query("redis_script_values")
    assert not left, left


def check_queries():
    """Each returns a series: a comparison only where it holds, but with `bool` wherever there is something to compare."""
    board = json.loads(pathlib.Path("examples/metrics/grafana.json").read_text())
    queries = [(rule["name"], rule["query"]) for group in get("rules")["groups"] for rule in group["rules"]]
    rules = len(queries)
    queries += [(panel["title"], target["expr"]) for panel in board["panels"] for target in panel.get("targets", [])]
    assert rules >= 10 and len(queries) - rules >= 20, queries
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["definition"]).groups()
            assert get(f"label/{label}/values", **{"match[]": metric}), variable

    def without_series(queries):
        filled = ((at, asked.replace("$__rate_interval", "1m").replace("$instance", ".*")) for at, asked in queries)
        return [(at, asked) for at, asked in filled if not query(re.sub(r" (==|>|<) ", r" \1 bool ", asked))]

    assert without_series([("", "sum(rate(ratelimit_no_such_metric[5m])) > 0")]), "the check passes whatever the query"
    until("a series of each query", 30, lambda: not without_series(queries), lambda: without_series(queries))
    return f"{rules} alerts and {len(queries) - rules} queries of the dashboard return series"


def differ():
    """The failures whose alerts, pending or firing, each with the server that it names, are not those wanted."""
    found = {name: set() for name in failures}
    for alert in get("alerts")["alerts"]:
        if alert["labels"]["alertname"] == "RatelimitLongTurn":
            # The machine has stalled. alerts.test.yml tests this alert.
            continue
        found[alert["labels"]["job"]].add((alert["labels"]["alertname"], alert["labels"].get("instance", "")))
    return "\n".join(f"{name}: wanted {sorted(wanted)}, found {sorted(found[name])}"
                     for name, (_, _, wanted) in failures.items() if wanted != found[name])


def main():
    for first in 'redis_up{job="exporter_down"}', 'ratelimit_loaded{job="everything"}':
        until(f"the first {first}", 60, lambda: query(first))
    exporter.kill()
    for _ in range(12):
        again()
        time.sleep(0.4)
    check_numbers()
    queries = check_queries()
    # All alerts as wanted, for five seconds without a break. What is counted in rates needs some scrapes.
    end, since = time.monotonic() + 120, None
    while since is None or time.monotonic() - since < 5:
        if time.monotonic() > end:
            raise Failed(f"the alerts are not those of the failures:\n{differ()}")
        again()
        time.sleep(0.5)
        since = None if differ() else since or time.monotonic()
    servers = sum(len(servers) for servers, _, _ in failures.values())
    alerts = {alert for _, _, wanted in failures.values() for alert, _ in wanted}
    print(queries)
    print(f"{len(failures)} failures on {servers} servers fire {len(alerts)} alerts, each for what it names and no other")


try:
    main()
except Failed as failed:
    sys.exit(f"FAILED: {failed}")
