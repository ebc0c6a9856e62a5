"""Checks META.json by version 1 of PGXN's specification (https://pgxn.org/spec/).

Each check_…() yields what is wrong with a value, and where.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

Check = Callable[[str, Any], Iterator[str]]

NUMBER = r"(?:0|[1-9]\d*)"
VERSION = rf"{NUMBER}\.{NUMBER}\.{NUMBER}(?:-[0-9A-Za-z.-]+)?(?:\+[0-9A-Za-z.-]+)?"
RANGE_PART = re.compile(rf"(?:(?:[=!]=|[<>]=?)\s*)?(?:{VERSION}|0)")
URI = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/]+(?:/\S*)?")
PHASES = {"configure", "build", "test", "runtime", "develop"}
RELATIONS = {"requires", "recommends", "suggests", "conflicts"}
STATUSES = {"stable", "testing", "unstable"}
LICENSES = """
    agpl_3 apache_1_1 apache_2_0 artistic_1 artistic_2 bsd freebsd gfdl_1_2 gfdl_1_3 gpl_1 gpl_2
    gpl_3 lgpl_2_1 lgpl_3_0 mit mozilla_1_0 mozilla_1_1 openssl perl_5 postgresql qpl_1_0 ssleay
    sun zlib open_source restricted unrestricted unknown"""


def matches(what: str, pattern: str) -> Check:
    def check(place: str, value: Any) -> Iterator[str]:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            yield f"{place}: {value!r} is not {what}"

    return check


def one_of(values: set[str]) -> Check:
    def check(place: str, value: Any) -> Iterator[str]:
        if not isinstance(value, str) or value not in values:
            yield f"{place}: {value!r} is none of {', '.join(sorted(values))}"

    return check


check_string = matches("a text", r"(?s).*\S.*")
check_version = matches("a semantic version", VERSION)
check_uri = matches("a URI", URI.pattern)
check_term = matches("a term", r"[^\s/\\\x00-\x1f]{2,}")
check_tag = matches("a tag", r"[^/\\\x00-\x1f]{1,255}")
check_path = matches("a relative path", r"(?!/)(?!.*\.\.)[^\\\x00-\x1f]+")


def check_range(place: str, value: Any) -> Iterator[str]:
    # The number 0 stands for any version.
    if value == 0 and not isinstance(value, (bool, str)):
        return
    parts = value.split(",") if isinstance(value, str) else [""]
    if not all(RANGE_PART.fullmatch(part.strip()) for part in parts):
        yield f"{place}: {value!r} is not a range of versions"


def list_of(check: Check, alone: bool = True) -> Check:
    """A list that is not empty, or one value alone."""

    def check_list(place: str, value: Any) -> Iterator[str]:
        if alone and isinstance(value, str):
            yield from check(place, value)
        elif not isinstance(value, list) or not value:
            yield f"{place}: {value!r} is not a list with members"
        else:
            for number, member in enumerate(value):
                yield from check(f"{place}[{number}]", member)

    return check_list


def map_of(keys: Check, values: Check) -> Check:
    def check_map(place: str, value: Any) -> Iterator[str]:
        if not isinstance(value, dict) or not value:
            yield f"{place}: {value!r} is not an object with members"
            return
        for key, member in value.items():
            yield from keys(f"{place}: key", key)
            yield from values(f"{place}.{key}", member)

    return check_map


def struct(required: dict[str, Check], optional: dict[str, Check]) -> Check:
    """An object with known keys, and others that begin with x_."""

    def check_struct(place: str, value: Any) -> Iterator[str]:
        if not isinstance(value, dict):
            yield f"{place}: {value!r} is not an object"
            return
        for key in required.keys() - value.keys():
            yield f"{place}: {key} is missing"
        for key, member in value.items():
            if check := (required | optional).get(key):
                yield from check(f"{place}.{key}", member)
            elif not re.match(r"[xX]_.", key):
                yield f"{place}: {key} is unknown"

    return check_struct


def check_license(place: str, value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from map_of(check_string, check_uri)(place, value)
    else:
        yield from list_of(one_of(set(LICENSES.split())))(place, value)


check_meta = struct(
    {
        "name": check_term,
        "version": check_version,
        "abstract": check_string,
        "maintainer": list_of(check_string),
        "license": check_license,
        "provides": map_of(
            check_term,
            struct(
                {"file": check_path, "version": check_version},
                {"abstract": check_string, "docfile": check_path},
            ),
        ),
        "meta-spec": struct(
            {"version": matches("a version of the specification", r"1\.0\.\d+")}, {"url": check_uri}
        ),
    },
    {
        "description": check_string,
        "generated_by": check_string,
        "release_status": one_of(STATUSES),
        "tags": list_of(check_tag, alone=False),
        "no_index": struct({}, {"file": list_of(check_path), "directory": list_of(check_path)}),
        "prereqs": map_of(
            one_of(PHASES), map_of(one_of(RELATIONS), map_of(check_term, check_range))
        ),
        "resources": struct(
            {},
            {
                "homepage": check_uri,
                "license": list_of(check_uri),
                "bugtracker": struct(
                    {}, {"web": check_uri, "mailto": matches("an address", r"\S+@\S+")}
                ),
                "repository": struct(
                    {}, {"url": check_uri, "web": check_uri, "type": matches("a word", "[a-z]+")}
                ),
            },
        ),
    },
)


def problems(meta: Any) -> list[str]:
    return list(check_meta("META.json", meta))
