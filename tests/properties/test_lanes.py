"""Lanes: writers in any language must agree, so the published vectors are the test."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.lane import LANES, Lane, lane_of

VECTORS = json.loads(
    (Path(__file__).parents[2] / "docs" / "lane-vectors.json").read_text(encoding="utf-8")
)
keys = st.text(st.characters(exclude_categories=["Cs"]))


@pytest.mark.parametrize("vector", VECTORS["keys"])
def test_a_published_key_has_its_lane(vector: dict[str, Any]) -> None:
    assert lane_of(_key(vector), "any id") == vector["lane"]
    assert _lane_bit_by_bit(_key(vector)) == vector["lane"]


@pytest.mark.parametrize("vector", VECTORS["ids"])
def test_a_published_id_has_its_lane_where_there_is_no_key(vector: dict[str, Any]) -> None:
    assert lane_of(None, vector["id"]) == vector["lane"]
    assert _lane_bit_by_bit(vector["id"]) == vector["lane"]


def test_the_vectors_cover_what_writers_get_wrong() -> None:
    published = [_key(vector) for vector in VECTORS["keys"]]

    assert len(set(published)) == len(published) >= 20
    assert "" in published
    assert any(not key.isascii() for key in published)
    assert any(len(key) >= 1000 for key in published)
    assert VECTORS["lanes"] == LANES


@given(keys, keys)
def test_a_lane_is_crc_32_of_the_key_alone(key: str, message_id: str) -> None:
    lane = lane_of(key, message_id)

    assert lane == _lane_bit_by_bit(key)
    assert 0 <= lane < LANES


@given(keys)
def test_a_message_without_a_key_goes_by_its_id(message_id: str) -> None:
    assert lane_of(None, message_id) == lane_of(message_id, "")


def test_many_keys_fill_all_lanes_evenly() -> None:
    counts = [0] * LANES
    for number in range(64_000):
        counts[lane_of(f"order-{number}", "")] += 1

    assert min(counts) > 800
    assert max(counts) < 1200


def test_lanes_sort_by_route_then_number() -> None:
    lanes = [Lane("b", 1, 9), Lane("a", 2, 1), Lane("a", 1, 5)]

    assert sorted(lanes) == [Lane("a", 1, 5), Lane("a", 2, 1), Lane("b", 1, 9)]


def _key(vector: dict[str, Any]) -> str:
    if "key_repeated" in vector:
        return str(vector["key_repeated"]) * int(vector["times"])
    return str(vector["key"])


def _lane_bit_by_bit(key: str) -> int:
    """Compute a lane as a writer without a CRC library would."""
    crc = 0xFFFFFFFF
    for byte in key.encode():
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0xEDB88320 if crc & 1 else 0)
    return (crc ^ 0xFFFFFFFF) % 64
