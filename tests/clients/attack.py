#!/usr/bin/env python3
"""Attacks `walla serve` in several ways at once, and measures a good client meanwhile.

    walla serve --port 8080 & python3 tests/clients/attack.py 8080 $! [--seconds 600] [--output FILE]

Attackers: thousands of connections that say nothing (flood.py); requests that arrive byte by byte or
never end; streams that are dropped; schemas, regular expressions and Lark grammars that take long to
compile, that are different each time, or that are large; bodies that are not valid. The good client
asks for short replies, one after the other. Memory is that of the server's process in KiB: behind the
good client and one of each attack alone, behind each tenth of the time, and ten seconds after the end.
"""

import argparse
import http.client
import json
import multiprocessing
import random
import resource
import socket
import time

import flood


def body(seed, **members):
    question = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 16, "seed": seed}
    return json.dumps({**question, **members})


def schema(of):
    of = {"type": "object", "properties": {"a": of}, "required": ["a"]}
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": of}}


def post(port, text, seconds=20):
    """Sends a request: the status, or 0 if the server closed the connection."""
    its = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
    try:
        its.request("POST", "/v1/chat/completions", text, {"Content-Type": "application/json"})
        answer = its.getresponse()
        answer.read()
        return answer.status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        its.close()


def patterns(port, dice):
    """Many patterns for one text: an automaton with very many states."""
    count = dice.randrange(8, 40)
    letters = [dice.choice("abcdefgh") + ".*" + dice.choice("ijklmnop") for _ in range(count)]
    of = {"type": "string", "allOf": [{"pattern": letter} for letter in letters]}
    return post(port, body(1, response_format=schema(of)))


def regexes(port, dice):
    """Small sources of large automata, each another one."""
    regex = f"[a-z]{{{dice.randrange(1, 900)},{dice.randrange(900, 3_000)}}}{dice.randrange(1 << 40)}"
    return post(port, body(1, structured_outputs={"regex": regex}))


def enums(port, dice):
    """A large list of texts."""
    texts = [f"{dice.randrange(1 << 60):020}" for _ in range(dice.randrange(10, 8_000))]
    return post(port, body(1, response_format=schema({"enum": texts})))


def grammars(port, dice):
    """Left recursion with many alternatives, and an ambiguous grammar."""
    if dice.random() < 0.5:
        rules = "\n".join(f' | a "{number}"' for number in range(dice.randrange(10, 5_000)))
        return post(port, body(1, structured_outputs={"grammar": f'start: a\na: "x"\n{rules}\n'}))
    return post(port, body(1, structured_outputs={"grammar": 'start: a\na: a a | "x" | "y"\n'}))


def damaged(port, dice):
    """Bodies that are not valid."""
    text = body(dice.randrange(99), tools=[{"type": "function", "function": {"name": "a"}}])
    text = list(text)
    for _ in range(dice.randrange(1, 5)):
        text[dice.randrange(len(text))] = dice.choice('{}[]",:x0é')
    return post(port, "".join(text).encode())


def dropped(port, dice):
    """A stream whose client leaves."""
    text = body(1, stream=True, max_tokens=500)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(text)}\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=20) as its:
        its.sendall(f"{head}Content-Type: application/json\r\n\r\n{text}".encode())
        its.recv(dice.randrange(1, 2_000))
    return 0


def slow(port, dice):
    """A request that arrives byte by byte, or never ends."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as its:
        for byte in b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 99999\r\n\r\n{{{{{{{{":
            its.sendall(bytes([byte]))
            time.sleep(dice.random() / 5)
    return 0


ATTACKS = [patterns, regexes, enums, grammars, damaged, dropped, slow]


def one(port, number, dice):
    try:
        return ATTACKS[number](port, dice)
    except OSError:
        return 0  # The server closed the connection.


def attack(port, number, stop, answers):
    dice = random.Random(number)
    while not stop.value:
        status = one(port, number, dice)
        with answers.get_lock():
            answers[status // 100 if status < 600 else 0] += 1


def resident_kib(process):
    with open(f"/proc/{process}/status", encoding="utf-8") as file:
        lines = dict(line.split(":", 1) for line in file)
    return int(lines["VmRSS"].split()[0]), int(lines["Threads"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("port", type=int)
    parser.add_argument("process", type=int, help="the server's process id")
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--output", help="JSON file of the results")
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    port, memory = arguments.port, {}

    for number in range(len(ATTACKS)):
        one(port, number, random.Random(number))
    quiet = flood.measure(port, min(20, arguments.seconds / 4))
    memory["quiet"] = resident_kib(arguments.process)[0]

    stop = multiprocessing.Value("b", 0)
    counts = multiprocessing.Array("q", 2)
    answers = multiprocessing.Array("q", 6)
    others = [
        multiprocessing.Process(target=flood.flood, args=(port, arguments.connections, stop, counts))
    ]
    for number in range(len(ATTACKS)):
        its = (port, number, stop, answers)
        others.append(multiprocessing.Process(target=attack, args=its))
    for other in others:
        other.start()
    rows, memory["tenths"] = [], []
    try:
        for _ in range(10):
            rows.append(flood.measure(port, arguments.seconds / 10))
            memory["tenths"].append(resident_kib(arguments.process)[0])
    finally:
        stop.value = 1
        for other in others:
            other.join()
    time.sleep(10)
    after = flood.measure(port, min(20, arguments.seconds / 4))
    memory["after"], threads = resident_kib(arguments.process)
    results = {
        "seconds": arguments.seconds,
        "connections_opened": counts[0],
        "connections_closed_by_the_server": counts[1],
        "answers_to_attackers": {f"{at}xx" if at else "closed": answers[at] for at in range(6)},
        "good_client_quiet": quiet,
        "good_client_in_each_tenth": rows,
        "good_client_after": after,
        "resident_kib": memory,
        "threads": threads,
    }
    text = json.dumps(results, indent=1)
    print(text)
    if arguments.output:
        with open(arguments.output, "w", encoding="utf-8") as file:
            file.write(text + "\n")


if __name__ == "__main__":
    main()
