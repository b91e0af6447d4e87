#!/usr/bin/env bash
# Scrapes a server as examples/metrics/ says, and checks that each query of the alerts and the dashboard returns a series.
# Then causes each failure that docs/operations.md describes, and checks which alerts fire. Everything listens on free ports
# of 127.0.0.1, and ends with this script.
#
#   scripts/test-metrics.sh [--if-possible]
#
# --if-possible skips the test, with a message, if a tool is missing and cannot be installed. The module must be built
# before. REDIS_SERVER= and REDIS_EXPORTER= choose other programs.
set -euo pipefail
cd "$(dirname "$0")/.."

tools=(cc python3 prometheus-redis-exporter prometheus redis-server)
if [ "${1:-}" != --if-possible ]; then
    scripts/install-tools.sh "${tools[@]}"
elif ! why=$(scripts/install-tools.sh "${tools[@]}" 2>&1); then
    scripts/skip.sh test-metrics "${why##*$'\n'}: make test-metrics"
    exit 0
fi

target=$(cd "${CARGO_TARGET_DIR:-target}" && pwd)
work=$(mktemp -d)
processes=()
finish() {
    local status=$?
    [ ${#processes[@]} = 0 ] || kill "${processes[@]}" 2>/dev/null || true
    wait
    [ $status = 0 ] || tail -n 5 "$work"/*.log >&2
    rm -rf "$work"
}
trap finish EXIT

# Starts a program in the background: name command...
start() {
    local name=$1
    shift
    "$@" >"$work/$name.log" 2>&1 &
    processes+=($!)
}

echo "=== promtool"
cp examples/metrics/* "$work"
promtool check rules "$work/alerts.yml"
promtool check config "$work/prometheus.yml"
promtool test rules "$work/alerts.test.yml"

read -r with without exporter web < <(python3 -c '
import socket
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(4)]
print(*(socket.getsockname()[1] for socket in sockets))')
server=$(scripts/find-server.sh)
# The settings are load arguments, which servers of all versions understand.
start module "$server" --bind 127.0.0.1 --port "$with" --dir "$work" --save '' --hz 100 --loadmodule \
    "$target/release/libredis_ratelimit.so" cl-throttle yes \
    policies 'free THROTTLE 1 1 60; new.limit WINDOW 1 60 SHADOW; day WINDOW 5 1d FIXED'
start bare "$server" --bind 127.0.0.1 --port "$without" --dir "$work" --save '' --dbfilename bare.rdb
printf '{"redis://127.0.0.1:%s": "secret", "redis://127.0.0.1:%s": "secret"}' "$with" "$without" >"$work/passwords.json"
start exporter "${REDIS_EXPORTER:-prometheus-redis-exporter}" -web.listen-address "127.0.0.1:$exporter" -redis.addr '' \
    -redis.user metrics -redis.password-file "$work/passwords.json" -script "$work/ratelimit.lua"
# Each second, from both servers, with the label `filename` that newer releases of redis_exporter add.
sed -i -e "s|^rule_files:|global: {scrape_interval: 1s, evaluation_interval: 1s}\n\n&|" \
    -e "s|- redis://127.0.0.1:6379|- redis://127.0.0.1:$with\n          - redis://127.0.0.1:$without|" \
    -e "s|127.0.0.1:9121|127.0.0.1:$exporter|" \
    -e 's|^    metric_relabel_configs:|&\n      - {source_labels: [__name__], regex: redis_script_values, target_label: filename, replacement: x}|' \
    "$work/prometheus.yml"
start prometheus prometheus --config.file "$work/prometheus.yml" --storage.tsdb.path "$work/data" \
    --web.listen-address "127.0.0.1:$web"

echo "=== queries"
python3 - "$with" "$without" "$web" <<'END'
import json, re, socket, sys, time, urllib.parse, urllib.request

with_module, without_module, web = (int(argument) for argument in sys.argv[1:])


class Failed(Exception):
    pass


class Connection:
    """A connection that speaks RESP2."""

    def __init__(self, port):
        end = time.monotonic() + 20
        while True:
            try:
                self.socket = socket.create_connection(("127.0.0.1", port), 20)
                break
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)
        self.file = self.socket.makefile("rb")

    def send(self, *words):
        words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        self.socket.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))

    def receive(self):
        line = self.file.readline()
        kind, rest = line[:1], line[1:].strip()
        if kind == b"*":
            return [self.receive() for _ in range(int(rest))]
        if kind == b"$":
            return None if rest == b"-1" else self.file.read(int(rest) + 2)[:-2]
        return int(rest) if kind == b":" else line.strip()

    def refused(self, *words):
        """Sends a command that must be answered with an error."""
        self.send(*words)
        reply = self.receive()
        if not (isinstance(reply, bytes) and reply.startswith(b"-")):
            raise Failed(f"{words} answered {reply}")
        return reply

    def __call__(self, *words):
        self.send(*words)
        reply = self.receive()
        if isinstance(reply, bytes) and reply.startswith(b"-"):
            raise Failed(f"{words} answered {reply}")
        return reply


def get(path, **arguments):
    url = f"http://127.0.0.1:{web}/api/v1/{path}?{urllib.parse.urlencode(arguments)}"
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return json.load(answer)["data"]
    except urllib.error.HTTPError as error:
        raise Failed(f"{path} {arguments}: {error.read().decode()}") from error


def query(expression):
    return get("query", query=expression)["result"]


def until(what, seconds, holds):
    end = time.monotonic() + seconds
    while True:
        try:
            found = holds()
        except OSError:
            found = None
        if found:
            return found
        if time.monotonic() > end:
            raise Failed(f"not within {seconds} s: {what}")
        time.sleep(0.2)


redis, bare = Connection(with_module), Connection(without_module)
# The user from docs/operations.md.
page = open("docs/operations.md").read()
users = re.findall(r"ACL SETUSER metrics .*", page)
assert len(users) == 1, users
for connection in redis, bare:
    words = users[0].replace(">PASSWORD", ">secret").split()
    # A server without the module does not know the command.
    connection(*(word for word in words if connection is redis or word != "+rl.top"))

odd_key = b'caf\xe9 "\\:\r\n\xff\x00'
waiting = Connection(with_module)
redis("RL.ACQUIRE", "lock", 1, 0, "LEASE", "1h")
waiting.send("RL.ACQUIRE", "lock", 1, 0, "BLOCK", 0)


def load():
    """What makes each metric move."""
    for key in "user:1", "user:2", odd_key:
        for _ in range(3):
            redis("RL.THROTTLE", key, "@free")
            redis("RL.WINDOW", b"new:" + (key if isinstance(key, bytes) else key.encode()), "@new.limit")
    redis("RL.WINDOW", "day", "@day")
    redis("CL.THROTTLE", "cell", 1, 1, 60)
    redis("RL.ALL", 2, "{a}1", "{a}2", "WINDOW", 1, 60, "THROTTLE", 1, 1, 60)
    redis.refused("RL.WINDOW", "w", "x", 60)
    for job in range(10):
        redis("RL.ACQUIRE", "jobs", 100, 0, 1, "LEASE", 600_000, "ID", f"job-{time.monotonic_ns()}-{job}")
    for settle in "RL.APPLY", "RL.RELEASE":
        taken = redis("RL.ACQUIRE", "window", 1_000_000, 60)
        redis(settle, "window", taken[5])
    redis("RL.ACQUIRE", "lapses", 1000, 0, 1, "LEASE", 1)
    time.sleep(0.01)
    redis("RL.ACQUIRE", "lapses", 1000, 0, 1, "LEASE", 1)
    redis("RL.WINDOW", "slides", 1, "30ms")
    redis("RL.WINDOW", "slides", 1, "30ms", 1, "BLOCK", 1000)
    redis("RL.ACQUIRE", "lock", 1, 0, 1, "BLOCK", 20)
    # What the server refuses, with the prefix of each refusal.
    for prefix, setting, value, back in (b"-OOM", "maxmemory", 1, 0), (b"-NOREPLICAS", "min-replicas-to-write", 1, 0):
        redis("CONFIG", "SET", setting, value)
        assert redis.refused("RL.THROTTLE", "refused", 1, 1, 60).startswith(prefix)
        redis("CONFIG", "SET", setting, back)


until("the first scrape", 30, lambda: query("ratelimit_loaded"))
for _ in range(12):
    load()
    time.sleep(0.4)

# The numbers of Prometheus are those of INFO, once they no longer change.
info = dict(line.split(":", 1) for line in redis("INFO", "ratelimit").decode().splitlines() if ":" in line)
expected = {}
for field, value in info.items():
    name = field.removeprefix("ratelimit_")
    of_policy = re.fullmatch(r"allowed=(\d+),denied=(\d+),shadow_denied=(\d+)", value)
    of_command = re.fullmatch(r"(\w+)_(allowed|denied|errors)", name)
    if of_policy:
        for result, number in zip(("allowed", "denied", "shadow_denied"), of_policy.groups()):
            policy = name.removeprefix("policy_")
            expected[f'ratelimit_policy_calls_total{{policy="{policy}",result="{result}"}}'] = number
    elif of_command and value.isdigit():
        expected['ratelimit_calls_total{command="%s",result="%s"}' % of_command.groups()] = value
    elif value.isdigit():
        expected[field] = value
expected['ratelimit_module{version="%s",commit="%s",policies_digest="%s",settings_digest="%s"}' % tuple(
    info["ratelimit_" + label] for label in ("version", "commit", "policies_digest", "settings_digest"))] = "1"
expected.pop("ratelimit_commit", None)
assert len(expected) >= 60, expected
here = f'instance="redis://127.0.0.1:{with_module}"'
# These move on by themselves: the script's own calls of RL.TOP, and the fields of the waiting call.
moving = {
    'ratelimit_calls_total{command="top",result="allowed"}',
    "ratelimit_waiting_oldest_ms",
    "ratelimit_waiting_longest_turn_us",
}


def differing():
    differ = []
    for selector, number in expected.items():
        name, _, labels = selector.partition("{")
        found = query(f"{name}{{{here}{',' + labels[:-1] if labels else ''}}}")
        if len(found) != 1 or (selector not in moving and found[0]["value"][1] != number):
            differ.append((selector, number, found))
    return differ


try:
    until("the numbers of INFO", 20, lambda: not differing())
except Failed as late:
    raise Failed(f"Prometheus and INFO differ: {differing()}") from late

# A key of any bytes is a label, and no two keys are the same label.
tops = {found["metric"]["denied_key"]: found["value"][1] for found in query(f"ratelimit_top_denied{{{here}}}")}
for key in "user:1", "user:2", r'caf\xe9 "\x5c:\x0d\x0a\xff\x00':
    assert int(tops.get(key, 0)) > 20, (key, tops)
left = [found for label in ("key", "filename") for found in query(f'{{__name__=~"ratelimit_.*",{label}!=""}}')]
left += query("redis_script_values")
assert not left, left


def check(origin, expression):
    """A comparison returns a series only where it holds; with `bool` it does wherever there is something to compare."""
    expression = expression.replace("$__rate_interval", "1m").replace("$instance", ".*")
    return [] if query(re.sub(r" (==|>|<) ", r" \1 bool ", expression)) else [f"{origin}: no series: {expression}"]


queries = []
for group in get("rules")["groups"]:
    queries += [(rule["name"], rule["query"]) for rule in group["rules"]]
rules = len(queries)
# scripts/test-alerts.py fires these. Here is no replica, nothing is down, and nothing may be evicted.
elsewhere = {"RatelimitMayEvict", "RatelimitServerDown", "RatelimitExporterDown", "RatelimitReplicaLinkBroken", "RatelimitMetricsMissing"}
assert elsewhere < {name for name, _ in queries}, queries
queries = [(name, expression) for name, expression in queries if name not in elsewhere]
board = json.load(open("examples/metrics/grafana.json"))
for panel in board["panels"]:
    queries += [(panel["title"], target["expr"]) for target in panel.get("targets", [])]
variables = [variable["definition"] for variable in board["templating"]["list"] if variable["type"] == "query"]
for definition in variables:
    metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", definition).groups()
    assert get(f"label/{label}/values", **{"match[]": metric}), definition
shown = len(queries) - rules + len(elsewhere)
assert rules >= 10 and shown >= 20, queries
assert check("this test", "sum(rate(ratelimit_no_such_metric[5m])) > 0"), "the check passes whatever the query"


def missing():
    return [problem for origin, expression in queries for problem in check(origin, expression)]


try:
    # A subquery has its first value at the next multiple of its step, 10 s.
    until("a series of each query", 20, lambda: not missing())
except Failed as late:
    raise Failed("\n".join(missing())) from late


# The alerts of what is wrong now, and of where.
def alerts():
    return {(alert["labels"]["alertname"], alert["labels"].get("instance", "")) for alert in get("alerts")["alerts"]}


wanted = {
    ("RatelimitModuleMissing", f"redis://127.0.0.1:{without_module}"),
    ("RatelimitWritesRefused", f"redis://127.0.0.1:{with_module}"),
    ("RatelimitErrors", f"redis://127.0.0.1:{with_module}"),
    ("RatelimitPolicyDeniesMost", ""),
    ("RatelimitShadowWouldDeny", ""),
}
until(f"the alerts {wanted}", 20, lambda: wanted <= alerts())
calm = {"RatelimitClockOff", "RatelimitLimitsEvicted", "RatelimitMetricsMissing", "RatelimitWaitersNearLimit"}
assert not calm & {name for name, _ in alerts()}, alerts()
assert ("RatelimitModuleMissing", f"redis://127.0.0.1:{with_module}") not in alerts()
print(f"{rules - len(elsewhere)} alerts and {shown} queries of the dashboard return series; {len(expected)} numbers are those of INFO")
END

echo "=== failures"
python3 scripts/test-alerts.py "$server" "${REDIS_EXPORTER:-prometheus-redis-exporter}" \
    "$target/release/libredis_ratelimit.so" "$work"
