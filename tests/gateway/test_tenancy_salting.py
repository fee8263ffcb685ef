"""A salt goes into a body's bytes; nothing else of them changes, and nobody gets another's salt."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expediter.errors import RequestError
from expediter.gateway.salting import combined_salt, salted, tenant_salt, value_spans

SALT = "s" * 64
space = st.text(alphabet=" \t\r\n", max_size=3)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=12
)
names = st.text() | st.sampled_from(['a"b', "a\\", "cache_salt ", "{", "]", ",", ":"])
pairs = st.lists(st.tuples(names.filter(lambda n: n != "cache_salt"), values), max_size=6)


@st.composite
def spelled(draw: st.DrawFn, items: list[tuple[str, object]]) -> bytes:
    """An object with these fields, in any spelling that JSON allows."""
    gap = draw(space)
    ascii_only = draw(st.booleans())

    def spell(value: object) -> str:
        indent = draw(st.sampled_from([None, 1]))
        return json.dumps(value, ensure_ascii=ascii_only, indent=indent)

    parts = [f"{gap}{spell(n)}{gap}:{draw(space)}{spell(v)}{gap}" for n, v in items]
    text = f"{draw(space)}{{{gap}{','.join(parts)}}}{draw(space)}"
    return text.encode("utf-8", "surrogatepass")


def fields_of(body: bytes) -> list[tuple[str, object]]:
    text = body.decode("utf-8", "surrogatepass")
    found: list[tuple[str, object]] = json.loads(text, object_pairs_hook=list)
    return found


@given(pairs.flatmap(spelled))
def test_salt_follows_all_other_bytes(body: bytes) -> None:
    """Repeated fields included: the worker sees them as they came."""
    result = salted(body, SALT)
    assert fields_of(result) == [*fields_of(body), ("cache_salt", SALT)]
    before = body.rstrip()[:-1]
    comma = b"," if fields_of(body) else b""
    assert result == before + comma + b'"cache_salt":"' + SALT.encode() + b'"}'


@given(pairs, pairs, st.none() | st.text(), st.data())
def test_clients_salt_is_replaced_by_the_combined_one_in_its_place(
    before: list[tuple[str, object]],
    after: list[tuple[str, object]],
    salt: str | None,
    data: st.DataObject,
) -> None:
    body = data.draw(spelled([*before, ("cache_salt", salt), *after]))
    [(start, end)] = value_spans(body, "cache_salt")
    assert json.loads(body[start:end]) == salt
    result = salted(body, SALT)
    assert result.startswith(body[:start])
    assert result.endswith(body[end:])
    inserted = result[start : len(result) - len(body) + end]
    assert json.loads(inserted) == combined_salt(SALT, salt)


@given(pairs, values, values, st.data())
def test_salt_that_is_there_twice_is_refused(
    others: list[tuple[str, object]], first: object, second: object, data: st.DataObject
) -> None:
    """Readers differ on which of the two counts."""
    items = [("cache_salt", first), *others, ("cache_salt", second)]
    with pytest.raises(RequestError, match="more than once"):
        salted(data.draw(spelled(items)), SALT)


def test_salt_whose_name_is_spelled_with_escapes_is_the_clients_salt() -> None:
    escaped = rb'{"cache\u005fsalt": "mine"}'
    assert json.loads(salted(escaped, SALT)) == {"cache_salt": combined_salt(SALT, "mine")}
    with pytest.raises(RequestError):
        salted(escaped[:-1] + b',"cache_salt":"mine"}', SALT)


def test_salts_within_other_values_are_left_alone() -> None:
    body = b'{"x": {"cache_salt": "a"}, "y": [{"cache_salt": "b"}], "z": "\\"cache_salt\\": 1"}'
    assert salted(body, SALT) == body[:-1] + b',"cache_salt":"' + SALT.encode() + b'"}'


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"{",
        b'{"a":1}{"b":2}',
        b'{"a": NaN}',
        b"\xef\xbb\xbf{}",
        '{"a": 1}'.encode("utf-16"),
        b"[" * 100_000,
        b'{"cache_salt": 1}',
        b'{"cache_salt": ["a"]}',
    ],
)
def test_body_that_cannot_take_a_salt_is_refused(body: bytes) -> None:
    with pytest.raises(RequestError):
        salted(body, SALT)


@given(st.text(), st.text(), st.none() | st.text(), st.none() | st.text())
def test_no_client_salt_gives_what_another_tenant_has(
    tenant: str, other: str, mine: str | None, theirs: str | None
) -> None:
    salts = [tenant_salt("a secret of ours", name) for name in (tenant, other)]
    same = combined_salt(salts[0], mine) == combined_salt(salts[1], theirs)
    assert same == ((tenant, mine) == (other, theirs))
    assert combined_salt(salts[0], salts[1]) not in salts
