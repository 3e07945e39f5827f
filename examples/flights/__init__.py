"""The parts of flights_demo.py: data, sending, reading, comparing, and what is shown of it."""
