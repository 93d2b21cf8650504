#!/usr/bin/env python3
"""Measures a good client of `walla serve` while others open connections and say nothing.

    walla serve --port 8080 &
    python3 tests/clients/flood.py 8080 [--connections 10000] [--seconds 20] [--output FILE]

A separate process opens connections as fast as the system allows, up to a number that stays open,
and replaces those that the server closes. The good client asks for short replies, each over a new
connection, and asks again at once if its connection was closed before it had an answer; this is a
part of its time.
"""

import argparse
import http.client
import json
import multiprocessing
import resource
import selectors
import socket
import sys
import time

BODY = json.dumps(
    {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 8, "temperature": 0}
)


def flood(port, connections, stop, counts):
    """Keeps connections open, and counts opened and closed ones."""
    chosen = selectors.DefaultSelector()
    count = 0
    while not stop.value:
        for _ in range(min(200, connections - count)):
            its = socket.socket()
            its.setblocking(False)
            try:
                its.connect(("127.0.0.1", port))
            except BlockingIOError:
                pass
            except OSError:
                its.close()
                break
            chosen.register(its, selectors.EVENT_READ)
            count += 1
            counts[0] += 1
        for key, _ in chosen.select(0.01):
            chosen.unregister(key.fileobj)
            key.fileobj.close()
            count -= 1
            counts[1] += 1


def ask(port):
    """One reply: its time in seconds, and the number of tries."""
    start, tries = time.monotonic(), 0
    while True:
        tries += 1
        its = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            its.request("POST", "/v1/chat/completions", BODY, {"Content-Type": "application/json"})
            answer = its.getresponse()
            answer.read()
            if answer.status == 200:
                return time.monotonic() - start, tries
        except (OSError, http.client.HTTPException):
            pass
        finally:
            its.close()
        if tries >= 1_000:
            sys.exit("no answer in 1000 tries")


def measure(port, seconds):
    times, tries, end = [], 0, time.monotonic() + seconds
    while time.monotonic() < end:
        took, tried = ask(port)
        times.append(took)
        tries += tried
    times.sort()
    at = lambda part: round(1e3 * times[min(len(times) - 1, int(part * len(times)))], 1)  # noqa: E731
    return {
        "requests": len(times),
        "tries": tries,
        "p50_ms": at(0.5),
        "p99_ms": at(0.99),
        "max_ms": round(1e3 * times[-1], 1),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("port", type=int)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--output", help="JSON file of the results")
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    quiet = measure(arguments.port, arguments.seconds / 4)
    stop = multiprocessing.Value("b", 0)
    counts = multiprocessing.Array("q", 2)
    others = multiprocessing.Process(
        target=flood, args=(arguments.port, arguments.connections, stop, counts)
    )
    others.start()
    try:
        flooded = measure(arguments.port, arguments.seconds)
    finally:
        stop.value = 1
        others.join()
    after = measure(arguments.port, arguments.seconds / 4)
    results = {
        "connections": arguments.connections,
        "opened": counts[0],
        "closed_by_the_server": counts[1],
        "quiet": quiet,
        "flood": flooded,
        "after": after,
    }
    text = json.dumps(results, indent=1)
    print(text)
    if arguments.output:
        with open(arguments.output, "w", encoding="utf-8") as file:
            file.write(text + "\n")


if __name__ == "__main__":
    main()
