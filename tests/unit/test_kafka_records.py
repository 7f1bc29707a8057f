"""Messages as records: the round trip, and how large one is."""

from hypothesis import given
from hypothesis import strategies as st

from postroom.brokers.kafka.mapping import message_of, record_of
from postroom.message import Message

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60)
messages = st.builds(
    Message,
    id=texts,
    type=texts,
    topic=st.just("orders"),
    payload=st.binary(max_size=300),
    content_type=texts.filter(bool),
    key=st.none() | texts,
    version=st.none() | st.integers(),
    headers=st.dictionaries(names | st.sampled_from(["postroom-id", "postroom-header-x"]), texts),
)


@given(messages)
def test_a_message_makes_the_round_trip(sent: Message) -> None:
    record = record_of(sent)

    assert message_of(record.topic, record.key, record.value, record.headers) == sent


@given(messages)
def test_no_record_is_larger_than_its_bound(sent: Message) -> None:
    record = record_of(sent)

    assert record.size <= record.bound
