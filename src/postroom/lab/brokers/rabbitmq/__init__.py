"""RabbitMQ as the shop's broker."""
