"""`:names` become what each client library wants, and nothing else is touched."""

import sqlite3
from contextlib import closing

import pytest

from postroom.connections.paramstyle import bind, translate
from postroom.statement import Statement

SQL = "insert into t (a, b, c) values (:a, :b, :a)"


@pytest.mark.parametrize(
    ("style", "sql", "names"),
    [
        ("named", SQL, ()),
        ("qmark", "insert into t (a, b, c) values (?, ?, ?)", ("a", "b", "a")),
        ("format", "insert into t (a, b, c) values (%s, %s, %s)", ("a", "b", "a")),
        ("pyformat", "insert into t (a, b, c) values (%(a)s, %(b)s, %(a)s)", ()),
        ("numeric", "insert into t (a, b, c) values (:1, :2, :1)", ("a", "b")),
        ("numeric_dollar", "insert into t (a, b, c) values ($1, $2, $1)", ("a", "b")),
    ],
)
def test_styles(style: str, sql: str, names: tuple[str, ...]) -> None:
    assert translate(SQL, style) == (sql, names)


@pytest.mark.parametrize(
    "kept",
    [
        "a::text",
        "':a'",
        "'it''s :a'",
        '":a"',
        "`:a`",
        "-- :a\n",
        "/* :a\n :a */",
        "x[1:2]",
        "array[b:c]",
        "12:30",
    ],
)
def test_what_is_no_name_stays(kept: str) -> None:
    sql, names = translate(f"select {kept} , :real", "qmark")

    assert sql == f"select {kept} , ?"
    assert names == ("real",)


def test_a_cast_of_a_name() -> None:
    assert translate("select :a::jsonb", "numeric_dollar") == ("select $1::jsonb", ("a",))


@pytest.mark.parametrize("style", ["format", "pyformat"])
def test_percent_signs_are_doubled_where_they_mean_something(style: str) -> None:
    sql, _ = translate("select 5 % 2, 'x%' -- 100%", style)

    assert sql == "select 5 %% 2, 'x%%' -- 100%%"
    assert translate("select 5 % 2", "qmark")[0] == "select 5 % 2"


def test_unknown_styles() -> None:
    with pytest.raises(ValueError, match="parameter style 'other'"):
        translate(SQL, "other")


def test_rows_follow_the_names() -> None:
    statement = Statement(SQL, [{"a": 1, "b": 2}, {"b": 4, "a": 3}])

    assert bind(statement, "qmark")[1] == [(1, 2, 1), (3, 4, 3)]
    assert bind(statement, "numeric_dollar")[1] == [(1, 2), (3, 4)]
    assert bind(statement, "pyformat")[1] == [{"a": 1, "b": 2}, {"b": 4, "a": 3}]


@pytest.mark.parametrize("style", ["named", "qmark"])
def test_a_database_agrees(style: str) -> None:
    sql = "select :b, ':a', :a /* :a */ -- :a"
    translated, rows = bind(Statement(sql, [{"a": 1, "b": 2}]), style)

    with closing(sqlite3.connect(":memory:")) as connection:
        assert connection.execute(translated, rows[0]).fetchall() == [(2, ":a", 1)]
