"""The codes of errors that librdkafka makes itself; the library writes them with an underscore."""

from confluent_kafka import KafkaError

ALL_BROKERS_DOWN = KafkaError._ALL_BROKERS_DOWN
AUTHENTICATION = KafkaError._AUTHENTICATION
FAIL = KafkaError._FAIL
FATAL = KafkaError._FATAL
GAPLESS_GUARANTEE = KafkaError._GAPLESS_GUARANTEE
MSG_TIMED_OUT = KafkaError._MSG_TIMED_OUT
PURGE_INFLIGHT = KafkaError._PURGE_INFLIGHT
PURGE_QUEUE = KafkaError._PURGE_QUEUE
SSL = KafkaError._SSL
UNKNOWN_PARTITION = KafkaError._UNKNOWN_PARTITION
UNKNOWN_TOPIC = KafkaError._UNKNOWN_TOPIC
