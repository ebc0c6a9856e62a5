"""containers/ as far as it can be checked without a registry of images."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

TREE = Path(__file__).resolve().parents[2]
FOLDER = TREE / "containers"
IMAGES = sorted(FOLDER.glob("*Containerfile"))
KNOWN = {
    *("ARG", "FROM", "RUN", "COPY", "WORKDIR", "USER", "VOLUME", "EXPOSE", "LABEL", "ENTRYPOINT"),
    "CMD",
}


def instructions(text: str) -> list[tuple[str, str]]:
    """The instructions of a Containerfile, with continued lines joined."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [
        (word, rest)
        for word, _, rest in (line.partition(" ") for line in joined.splitlines())
        if word
    ]


def findings(text: str) -> list[str]:
    found = []
    stages: set[str] = set()
    declared: set[str] = set()
    user = "0"
    first = True
    for word, rest in instructions(text):
        if word not in KNOWN:
            found.append(f"unknown instruction {word}")
        if first and word not in ("ARG", "FROM"):
            found.append(f"{word} before FROM")
        first = first and word == "ARG"
        if word == "ARG":
            declared.add(rest.partition("=")[0])
        elif word == "FROM":
            user = "0"
            stages |= set(re.findall(r" AS (\w+)", rest))
        elif word == "USER":
            user = rest
        elif word == "COPY":
            found += copy_findings(rest, stages)
        elif word == "RUN":
            found += run_findings(rest)
        elif word in ("CMD", "ENTRYPOINT") and not isinstance(json.loads(rest), list):
            found.append(f"{word} is not a list")
        found += [
            f"{name} is not declared"
            for name in re.findall(r"\$\{(\w+)\}", rest)
            if name not in declared
        ]
    if user.split(":")[0] in ("0", "root"):
        found.append("the image runs as root")
    return found


def copy_findings(rest: str, stages: set[str]) -> list[str]:
    if match := re.match(r"--from=(\w+) ", rest):
        return [] if match[1] in stages else [f"there is no stage {match[1]}"]
    *sources, _ = rest.split()
    return [f"there is no {source}" for source in sources if not (TREE / source).exists()]


def run_findings(rest: str) -> list[str]:
    found = []
    if subprocess.run(["sh", "-n", "-c", rest]).returncode:
        found.append(f"not a command: {rest}")
    for command in re.split(r"&&|;", rest):
        if "apt-get" in command and re.search(r" (install|build-dep) ", command):
            found += [
                f"apt-get without {option}"
                for option in (" -y ", " --no-install-recommends ")
                if option not in command
            ]
    if "apt-get" in rest and rest.count("rm -rf") != 1:
        found.append("the lists of apt stay in the image")
    if "apt-get" in rest and "apt-get -q update" not in rest:
        found.append("apt-get without update")
    return found


def test_there_are_containerfiles() -> None:
    assert [path.name for path in IMAGES] == ["Containerfile", "extension.Containerfile"]


@pytest.mark.parametrize("path", IMAGES, ids=lambda path: path.name)
def test_a_containerfile_is_sound(path: Path) -> None:
    assert findings(path.read_text()) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("USER postgres\n", ""),
        ("ARG BASE", "ARG OTHER"),
        ("FROM ${BASE} AS build", "FROM ${BASE} AS built"),
        ("COPY containers/entry.sh", "COPY containers/start.sh"),
        ("WORKDIR /tmp", "WORKDIRECTORY /tmp"),
        ("install --no-install-recommends /packages", "install /packages"),
        ("-y install --no-install-recommends /p", "install --no-install-recommends /p"),
        ("rm -rf /packages /var/lib/apt/lists/*", "true"),
        ("    && apt-get -q update \\\n    && apt-get -q -y install --no-install-recommends /p",
         "    && apt-get -q -y install --no-install-recommends /p"),
        ("mkdir -p /etc", "mkdir -p '/etc"),
    ],
)  # fmt: skip
def test_a_mistake_is_found(old: str, new: str) -> None:
    text = (FOLDER / "Containerfile").read_text()
    assert text.count(old) == 1
    assert findings(text.replace(old, new)) != []


def test_the_services_do_what_the_image_knows() -> None:
    services = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]
    entry = (FOLDER / "entry.sh").read_text()
    subprocess.run(["sh", "-n", FOLDER / "entry.sh"], check=True)
    known = set(re.findall(r"^\t([a-z |-]+)\)", entry, re.MULTILINE))
    words = {word for choice in known for word in choice.split(" | ")}
    assert words == {"demo", "demo-group", "publisher", "subscriber", "load"}
    for name, service in services.items():
        assert service["command"][0] in words | {"weft"}, name
        assert (FOLDER / service["build"]["context"] / service["build"]["dockerfile"]).exists()
        for other, what in service.get("depends_on", {}).items():
            assert what == {"condition": "service_healthy"}
            assert "healthcheck" in services[other]
    # entry.sh connects to the service by this name
    assert "host=publisher " in entry and "publisher" in services
