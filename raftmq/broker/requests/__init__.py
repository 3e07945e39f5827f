"""What clients and other brokers ask of a broker: one module for each family of requests."""
