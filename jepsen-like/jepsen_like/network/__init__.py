"""A virtual network on one machine: each host in a namespace, all frames through one user process.

    lab (namespaces, TAP devices) -> links (what the nemesis may do) -> switch (the process)
    switch: fabric (what becomes of a frame) -> rules, delays, conversations; all of these pure

Needs root, /dev/net/tun and util-linux; no packet filter, bridge or traffic shaper of the kernel.
"""
