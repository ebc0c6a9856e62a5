"""Real exporters measure real servers, and a real Prometheus evaluates rules and panels."""

import json
import os
import re
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from servers import Server, wait_for
from situation import DATABASE, GROUP_DATABASES, MONITORING, ROLE, Situation
from weft_monitoring.alerts import RULES
from weft_monitoring.dashboard import expression
from weft_monitoring.definitions import Source

# Jobs of scrape.yml that programs of Debian can stand for: CloudNativePG reads the queries of
# postgres_exporter, but puts cnpg_ in front of the names.
DEBIAN = "prometheus-sql-exporter"
POSTGRES = "cloudnative-pg"
# Measured every second, so that rates are known soon.
RATE_INTERVAL = "10s"


def test_rules(programs: Path) -> None:
    for arguments in (["check", "rules", RULES], ["test", "rules", "weft.rules.test.yml"]):
        made = subprocess.run(
            [programs / "promtool", *arguments],
            cwd=MONITORING / "prometheus",
            capture_output=True,
            text=True,
        )
        assert made.returncode == 0, made.stdout + made.stderr


def test_wrong_rule_is_found(programs: Path, tmp_path: Path) -> None:
    rules = (MONITORING / "prometheus" / RULES).read_text()
    wrong = rules.replace("weft_subscription_up == 0", "weft_subscription_up == 1")
    assert wrong != rules
    (tmp_path / RULES).write_text(wrong)
    tests = (MONITORING / "prometheus/weft.rules.test.yml").read_text()
    (tmp_path / "tests.yml").write_text(tests)
    made = subprocess.run(
        [programs / "promtool", "test", "rules", "tests.yml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert made.returncode != 0
    assert "WeftSubscriptionDown fires" in made.stdout + made.stderr


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


@contextmanager
def running(log: Path, url: str, command: list[Any], **environment: str) -> Iterator[None]:
    """Runs a program until the end of the block; begins when it answers."""
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=log.parent,
            env={k: v for k, v in os.environ.items() if not k.startswith("PG")} | environment,
        )

    def answers() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            get(url)
        except OSError:
            return False
        return True

    try:
        wait_for(answers, f"{Path(command[0]).name} to answer")
        yield
    finally:
        process.terminate()
        process.wait(30)


class Prometheus:
    def __init__(self, port: int):
        self.url = f"http://127.0.0.1:{port}"

    def ask(self, path: str, **parameters: str) -> Any:
        answer = json.loads(get(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"))
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, what: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("query", query=what)["result"]
        return found

    def metrics_of(self, job: str) -> set[str]:
        names = self.ask("label/__name__/values", **{"match[]": f'{{job="{job}"}}'})
        return {name for name in names if name.startswith("weft_")}


def target_of(server: Server, database: str) -> str:
    return f"postgres://{ROLE}@/{database}?host={server.directory}&port=5432&sslmode=disable"


@contextmanager
def debian_exporter(
    directory: Path, programs: Path, name: str, targets: list[str], port: int
) -> Iterator[None]:
    """The program that Debian packages as prometheus-sql-exporter, with the generated file."""
    configuration = yaml.safe_load((MONITORING / "prometheus-sql-exporter" / name).read_text())
    (job,) = configuration["jobs"]
    job |= {"interval": "1s", "connections": targets}
    file = directory / name
    file.write_text(yaml.safe_dump(configuration))
    command = [
        programs / "prometheus-sql-exporter",
        f"-config.file={file}",
        f"-web.listen-address=127.0.0.1:{port}",
    ]
    log = directory / f"{name}.log"
    with running(log, f"http://127.0.0.1:{port}/metrics", command, LOGLEVEL="warn"):
        yield


@contextmanager
def postgres_exporter(
    directory: Path, programs: Path, key: str, server: Server, database: str, port: int
) -> Iterator[None]:
    """Reads what CloudNativePG reads; its format is taken from this program."""
    data = yaml.safe_load((MONITORING / "cloudnative_pg/weft.yaml").read_text())["data"]
    file = directory / f"{database}-{key}.yaml"
    file.write_text(data[key])
    command = [
        programs / "prometheus-postgres-exporter",
        f"--extend.query-path={file}",
        "--disable-default-metrics",
        "--disable-settings-metrics",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    source = f"host={server.directory} port=5432 user={ROLE} dbname={database} sslmode=disable"
    log = directory / f"{database}-{key}.log"
    with running(log, f"http://127.0.0.1:{port}/", command, DATA_SOURCE_NAME=source):
        yield


def write_configuration(directory: Path, ports: dict[str, list[int]]) -> Path:
    """scrape.yml, with other addresses and intervals."""
    text = (MONITORING / "prometheus/scrape.yml").read_text()
    configuration = yaml.safe_load(text)
    configuration["global"] = {
        "scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s",
    }  # fmt: skip
    configuration["rule_files"] = [str(MONITORING / "prometheus" / RULES)]
    jobs = [job for job in configuration["scrape_configs"] if job["job_name"] in ports]
    assert len(jobs) == len(ports)
    for job in jobs:
        targets = [f"127.0.0.1:{port}" for port in ports[job["job_name"]]]
        job["static_configs"] = [{"targets": targets}]
    configuration["scrape_configs"] = jobs
    file = directory / "prometheus.yml"
    file.write_text(yaml.safe_dump(configuration))
    return file


@pytest.fixture(scope="module")
def prometheus(
    arranged: Situation, programs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    """Prometheus, two exporters that measure the situation, and two more in the other format."""
    directory = tmp_path_factory.mktemp("prometheus")
    publisher, subscriber = arranged.publisher, arranged.subscriber
    subscribers = [
        target_of(subscriber, DATABASE),
        target_of(publisher, GROUP_DATABASES[0]),
        target_of(subscriber, GROUP_DATABASES[1]),
    ]
    ports = {DEBIAN: [free_port(), free_port()], POSTGRES: [free_port(), free_port()]}
    with ExitStack() as stack:
        for context in (
            debian_exporter(directory, programs, "weft.yml", subscribers, ports[DEBIAN][0]),
            debian_exporter(
                directory, programs, "weft_publisher.yml",
                [target_of(publisher, DATABASE)], ports[DEBIAN][1],
            ),
            postgres_exporter(
                directory, programs, "subscriber", subscriber, DATABASE, ports[POSTGRES][0]
            ),
            postgres_exporter(
                directory, programs, "publisher", publisher, DATABASE, ports[POSTGRES][1]
            ),
        ):  # fmt: skip
            stack.enter_context(context)
        port = free_port()
        command = [
            programs / "prometheus",
            f"--config.file={write_configuration(directory, ports)}",
            f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        stack.enter_context(running(directory / "log", f"http://127.0.0.1:{port}/-/ready", command))
        yield Prometheus(port)


def wait_for_metrics(
    prometheus: Prometheus, job: str, expected: set[str], arranged: Situation
) -> None:
    def all_are_there() -> bool:
        arranged.load()
        return prometheus.metrics_of(job) == expected

    def different() -> str:
        return f"metrics of {job}: {sorted(prometheus.metrics_of(job) ^ expected)}"

    wait_for(all_are_there, different, limit=60)


def test_names_and_labels_are_those_of_the_definitions(
    prometheus: Prometheus, arranged: Situation, source: Source
) -> None:
    """After the rules of scrape.yml, whatever the exporter."""
    wait_for_metrics(prometheus, DEBIAN, set(source.metrics), arranged)
    for name, (query, _) in source.metrics.items():
        for series in prometheus.query(f'{name}{{job="{DEBIAN}"}}'):
            labels = set(series["metric"]) - {"__name__", "job", "instance", "host"}
            assert labels == set(query.all_labels), name


def test_format_of_cloudnative_pg(
    prometheus: Prometheus, arranged: Situation, source: Source
) -> None:
    """All but the group's, which is in another database."""
    expected = {
        name for name, (query, _) in source.metrics.items() if not query.name.startswith("node")
    }
    wait_for_metrics(prometheus, POSTGRES, expected, arranged)
    for name in expected:
        for series in prometheus.query(f'{name}{{job="{POSTGRES}"}}'):
            labels = set(series["metric"]) - {"__name__", "job", "instance", "server"}
            # an empty label is no label
            assert labels <= set(source.metrics[name][0].all_labels), name


def of_dashboard(text: str) -> str:
    text = expression(text).replace("$__rate_interval", RATE_INTERVAL)
    return re.sub(r"\$(instance|datname|subname)\b", ".*", text)


def test_each_panel_shows_something(
    prometheus: Prometheus, arranged: Situation, source: Source
) -> None:
    missing = {
        of_dashboard(target.expr): f"{panel.title}: {target.expr}"
        for panel in source.panels
        for target in panel.targets
    }
    deadline = time.monotonic() + 60
    while missing and time.monotonic() < deadline:
        arranged.load()
        for query in list(missing):
            if prometheus.query(query):
                del missing[query]
    assert missing == {}


def test_each_variable_has_values(prometheus: Prometheus) -> None:
    made = json.loads((MONITORING / "grafana/weft.json").read_text())
    queries = [
        variable["query"]["query"]
        for variable in made["templating"]["list"]
        if variable["type"] == "query"
    ]
    assert len(queries) == 3
    for query in queries:
        match = re.fullmatch(r"label_values\((.+), (\w+)\)", query)
        assert match
        selector, label = of_dashboard(match[1]), match[2]
        assert prometheus.ask(f"label/{label}/values", **{"match[]": selector}), query


def test_rates_are_those_of_the_load(prometheus: Prometheus, arranged: Situation) -> None:
    """The load of one transaction after another shows up as a rate of a plausible size."""
    query = (
        f'rate(weft_subscription_transactions_total{{job="{DEBIAN}", subname="main",'
        f' path="writers"}}[{RATE_INTERVAL}])'
    )

    def rate() -> float:
        arranged.load()
        return sum(float(series["value"][1]) for series in prometheus.query(query))

    wait_for(lambda: rate() > 5, "a rate of more than 5 transactions a second")


def test_alerts_see_what_is_wrong(prometheus: Prometheus, source: Source) -> None:
    def states() -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for alert in prometheus.ask("alerts")["alerts"]:
            subject = alert["labels"].get("subname") or alert["labels"].get("slot_name", "")
            found.setdefault(alert["labels"]["alertname"], set()).add(subject)
        return found

    # They wait for their time to be over.  Nothing else is wrong.
    expected = {
        "WeftCopyStalled": {"copying"},
        "WeftHealth": {""},
        "WeftSlotInactive": {"broken"},
        "WeftSubscriptionDisabled": {"broken"},
    }
    wait_for(lambda: states() == expected, lambda: f"alerts; there are: {states()}", limit=60)
    groups = prometheus.ask("rules")["groups"]
    rules = {rule["name"]: rule for group in groups for rule in group["rules"]}
    assert rules.keys() == {alert.name for alert in source.alerts}
    assert {rule["health"] for rule in rules.values()} == {"ok"}
