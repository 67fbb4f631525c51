#!/usr/bin/env python3
"""Processes that exchange numbered bytes and messages over one kind of channel: channel_programs.py KIND
Every receiver compares each byte with the one that it must be, and the first process prints the sums at the end. So
whatever is lost, doubled or reordered shows, as an error or as another output. Receivers are slow: the channels are
full nearly always.
"""
import sys

from channel_listeners import prefork, backlog_unix, backlog_tcp, backlog_bytes_unix, backlog_bytes_tcp, shared_epoll
from channel_messages import (
    seqpacket_pair, dgram_pair, dgram_names, udp4, udp6, udp_cork, packets, shared_seqpacket, shared_dgram, shared_stream)
from channel_streams import (
    stream_pair, unix_path, unix_abstract, tcp4, tcp6, tcp_options, half_closed_unix, half_closed_tcp, fifo, rights)

KINDS = [stream_pair, unix_path, unix_abstract, tcp4, tcp6, tcp_options, half_closed_unix, half_closed_tcp, seqpacket_pair,
         dgram_pair, dgram_names, udp4, udp6, udp_cork, shared_seqpacket, shared_dgram, shared_stream, prefork, fifo, packets, rights,
         backlog_unix, backlog_tcp, backlog_bytes_unix, backlog_bytes_tcp, shared_epoll]

if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in [k.__name__ for k in KINDS]:
        sys.exit(f"usage: channel_programs.py {'|'.join(k.__name__ for k in KINDS)}")
    print(sys.argv[1], *globals()[sys.argv[1]](), flush=True)
