"""Suspects: whatever happens to messages, in any order, only evidence convicts."""

from hypothesis import given
from hypothesis import strategies as st

from postroom.errors import OutcomeUnknown
from postroom.relay.suspects import Suspects

LOST = OutcomeUnknown("connection lost")
HUNG = OutcomeUnknown("no answer", timed_out=True)
REPLIED = OutcomeUnknown("closed", error_reply="PRECONDITION_FAILED")
seqs = st.integers(1, 4)
steps = st.lists(
    st.tuples(st.sampled_from(["note", "alone", "clear", "confirmed", "forget"]), seqs)
)


@given(steps, st.integers(1, 3))
def test_who_is_a_suspect_has_been_unknown_often_enough(
    happened: list[tuple[str, int]], after: int
) -> None:
    suspects = Suspects(after)
    unknown = dict.fromkeys(range(1, 5), 0)
    for what, seq in happened:
        match what:
            case "note":
                unknown[seq] += 1
                assert suspects.note(seq) == (unknown[seq] == after)
            case "alone" if seq in suspects:
                suspects.convict(seq, HUNG, held=True)
            case "clear":
                suspects.clear(seq)
                unknown[seq] = 0
            case "confirmed":
                suspects.confirmed()
            case "forget":
                suspects.forget()
                unknown = dict.fromkeys(unknown, 0)
        assert {one for one in unknown if one in suspects} == {
            one for one, times in unknown.items() if times >= after
        }


@given(st.integers(1, 50), st.booleans())
def test_a_time_out_convicts_nobody(times: int, held: bool) -> None:
    suspects = _suspecting(1)

    assert not any(suspects.convict(1, HUNG, held=held) for _ in range(times))


def test_a_reply_that_names_the_error_convicts_at_once() -> None:
    assert _suspecting(1).convict(1, REPLIED, held=False)


def test_a_loss_alone_convicts_the_second_time_and_only_between_two_probes() -> None:
    suspects = _suspecting(1)

    outcomes = [suspects.convict(1, LOST, held=held) for held in (False, True, False, True)]

    assert outcomes == [False, False, False, True]


def test_losses_beside_each_other_look_like_a_flapping_broker() -> None:
    suspects = _suspecting(1, 2)

    outcomes = [suspects.convict(seq, LOST, held=True) for _ in range(4) for seq in (1, 2)]

    assert outcomes == [False] * 8
    assert suspects.convict(1, LOST, held=True)


def test_the_one_tried_longest_ago_goes_first() -> None:
    suspects = _suspecting(1, 2, 3)
    suspects.convict(2, HUNG, held=True)
    suspects.convict(1, HUNG, held=True)

    assert sorted([1, 2, 3], key=suspects.turn) == [3, 2, 1]


def test_a_suspect_that_was_forgotten_has_a_turn_like_anybody_new() -> None:
    """The lanes changed hands in the middle of a round that still has suspects to try."""
    suspects = _suspecting(1)

    suspects.forget()

    assert suspects.turn(1) == 0


def _suspecting(*suspected: int) -> Suspects:
    suspects = Suspects(1)
    for seq in suspected:
        suspects.note(seq)
    return suspects
