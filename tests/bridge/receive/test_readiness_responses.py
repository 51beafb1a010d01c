"""Errors and notices as bytes become what psycopg and psql make of them."""

from __future__ import annotations

import psycopg

from pgbridge.bridge.receive.readiness import as_psql, fields_of, server_error

BODY = b'SFEHLER\0VERROR\0C42P01\0Mrelation "t" does not exist\0Dno \xc3\xbc\0\0'


def test_fields():
    assert fields_of(BODY) == {
        "S": "FEHLER",
        "V": "ERROR",
        "C": "42P01",
        "M": 'relation "t" does not exist',
        "D": "no ü",
    }
    assert fields_of(b"\0") == {}


def test_errors_are_psycopgs():
    error = server_error(fields_of(BODY))
    assert isinstance(error, psycopg.errors.UndefinedTable)
    assert str(error) == 'ERROR:  relation "t" does not exist\nDETAIL:  no ü'
    unknown = server_error({"V": "FATAL", "M": "gone", "C": "ZZ000"})
    assert type(unknown) is psycopg.OperationalError
    assert str(unknown) == "FATAL:  gone"


def test_as_psql_shows_it():
    assert as_psql("NOTICE", "x", None) == "NOTICE:  x"
