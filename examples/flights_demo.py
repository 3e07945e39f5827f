"""See raftmq work: real flights through three brokers, one of them killed halfway, nothing lost.

    python examples/flights_demo.py [--flights 20000] [--directory demo-data] [--keep]

Three processes form a cluster on 127.0.0.1. All 336,776 flights that left New York in 2013 become
records of one topic, keyed by aircraft, acknowledged by all replicas in sync, while a consumer
counts. Halfway the broker that leads partition 0 is killed with SIGKILL; the others go on; it comes
back and catches up. Then everything is read and compared with what was acknowledged. Exit code 1 if
a record is missing, doubled without cause or out of order. The parts are in flights/.
"""

import sys

from flights.command import main

if __name__ == "__main__":
    sys.exit(main())
