"""Strings of a known format, as JSON text between its quotes. A table; the builder reads it."""

from __future__ import annotations

_HEX = "[0-9a-f]"
_MONTH_DAY = (
    '(("01" | "03" | "05" | "07" | "08" | "10" | "12") "-" ("0" [1-9] | [12] [0-9] | "3" [01])'
    ' | ("04" | "06" | "09" | "11") "-" ("0" [1-9] | [12] [0-9] | "30")'
    ' | "02-" ("0" [1-9] | "1" [0-9] | "2" [0-8]))'
)
_DATE = f'[12] [0-9]{{3,3}} "-" {_MONTH_DAY}'
_TIME = '([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9] ":" [0-5] [0-9]'
_OCTET = '("25" [0-5] | "2" [0-4] [0-9] | "1" [0-9] [0-9] | [1-9]? [0-9])'
_LABEL = "[a-z0-9]{1,20}"
_DOMAIN = f'{_LABEL} ("-" {_LABEL})? ("." {_LABEL})? "." [a-z]{{2,3}}'
"""The last part is a short one: names such as `.test` and `.local` are no addresses."""
_PATH = '("/" [A-Za-z0-9._-]{1,30}){0,4}'
_GROUP = f"{_HEX}{{1,4}}"


def _uuid(version: str) -> str:
    return f'{_HEX}{{8,8}} "-" {_HEX}{{4,4}} "-" {version} {_HEX}{{3,3}} "-" [89ab] {_HEX}{{3,3}} "-" {_HEX}{{12,12}}'


_ZONE = ' "Z"'
NAIVE = r"^[^Zz+]*$"
"""The pattern of times without a zone, as `_schema` writes it beside their format."""

FORMATS = {
    "date": _DATE,
    "time": f"{_TIME}{_ZONE}",
    "date-time": f'{_DATE} "T" {_TIME}{_ZONE}',
    "duration": '("P" [1-9] [0-9]{0,2} "D" | "PT" [1-9] [0-9]{0,2} [HMS])',
    "uuid": _uuid("[1-5]"),
    **{f"uuid{number}": _uuid(f'"{number}"') for number in range(1, 9)},
    "email": f'[a-z0-9]{{1,20}} ([._-] [a-z0-9]{{1,20}})? "@" {_DOMAIN}',
    "name-email": f'[A-Z] [a-z]{{1,20}} " <" [a-z0-9]{{1,20}} "@" {_DOMAIN} ">"',
    "hostname": _DOMAIN,
    **dict.fromkeys(("uri", "url"), f'"http" "s"? "://" {_DOMAIN} {_PATH}'),
    **dict.fromkeys(
        ("ipv4", "ipvanyaddress", "ipvanyinterface", "ipv4interface"),
        f'{_OCTET} "." {_OCTET} "." {_OCTET} "." {_OCTET}',
    ),
    **dict.fromkeys(("ipv6", "ipv6interface"), " ".join([f'{_GROUP} ":"'] * 7 + [_GROUP])),
    **dict.fromkeys(("ipv4network", "ipvanynetwork"), f'{_OCTET} "." {_OCTET} "." {_OCTET} ".0/24"'),
    "ipv6network": f'{_GROUP} ":" {_GROUP} ":" {_GROUP} ":" {_GROUP} "::/64"',
    **dict.fromkeys(("base64", "base64url"), "([A-Za-z0-9]{4,4}){1,40}"),
    "json-string": '([1-9] [0-9]{0,8} | "true" | "false" | "null")',
}
"""What stands between the quotes, by the schema's `format`. All are plain ASCII, with nothing to escape."""


def without_zone(known: str) -> str:
    """The same date and time, of no zone."""
    return known.removesuffix(_ZONE)
