#!/usr/bin/env python3
"""llama.cpp's Vulkan backend with the options and the output of `llama-batched-bench`.

For machines without its build: PyPI's `cyllama-vulkan` (tried: 0.7.0, Python 3.12 or later) has
the library. Batches are made before the clock starts; steps are in order, since each waits for the
one before when it sets its inputs, and reading logits at the end waits for the last one.

    compare_llama --device vulkan:0 --llama-batched-bench benches/peers/llama_vulkan.py …
"""
import json
import sys
import time

from cyllama.llama import llama_cpp as llama


def batches(tokens, size):
    """Batches of at most `size` (token, position, sequence, is output)."""
    made = []
    for first in range(0, len(tokens), size):
        part = tokens[first:first + size]
        batch = llama.LlamaBatch(n_tokens=len(part), embd=0, n_seq_max=1)
        for token, position, sequence, is_output in part:
            batch.add(token, position, [sequence], is_output)
        made.append(batch)
    return made


def seconds(context, work):
    start = time.perf_counter()
    for batch in work:
        context.decode(batch)
    context.get_logits_ith(-1)
    return time.perf_counter() - start


def main():
    given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
    prompt, steps = int(given["-npp"]), int(given["-ntg"])
    size = int(given.get("-b", 2048))
    agents = [int(number) for number in given["-npl"].split(",")]

    llama.disable_logging()
    llama.ggml_backend_load_all()
    options = llama.LlamaModelParams()
    options.n_gpu_layers = 999
    model = llama.LlamaModel(given["-m"], options)
    options = llama.LlamaContextParams()
    options.n_ctx = int(given["-c"])
    options.n_batch = size
    options.n_ubatch = int(given.get("-ub", 512))
    options.n_seq_max = max(agents)
    options.kv_unified = False
    options.flash_attn_type = 1 if given.get("-fa", "on") == "on" else 0
    context = llama.LlamaContext(model, options)

    token = lambda position, sequence: 1000 + (7919 * position + 104729 * sequence) % 20000
    for count in agents:
        whole = [(token(p, s), p, s, p == prompt - 1) for s in range(count) for p in range(prompt)]
        work = [batches([(token(p, s), p, s, True) for s in range(count)], count)[0]
                for p in range(prompt, prompt + steps)]
        context.kv_cache_clear()
        seconds(context, batches(whole, size) + work[:2])
        context.kv_cache_clear()
        t_pp = seconds(context, batches(whole, size))
        t_tg = seconds(context, work)
        print(json.dumps({
            "pp": prompt, "tg": steps, "pl": count,
            "t_pp": t_pp, "speed_pp": prompt * count / t_pp,
            "t_tg": t_tg, "speed_tg": steps * count / t_tg,
        }), flush=True)


if __name__ == "__main__":
    main()
