"""Commands that read what brokers have written, without a broker."""
