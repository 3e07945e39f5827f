"""The parts of spark_demo.py: the streaming program, who kills it, and what is compared."""
