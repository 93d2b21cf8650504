"""Processor time of walla's speech next to onnxruntime, on one thread, with the same files.

    cargo build --release -p walla --features voice
    python tools/voice/compare.py target/release/walla target/voice [-o RESULT.json]

Speech: each sentence is spoken by `walla speak`, which also writes its phonemes; onnxruntime runs
the same network on the same phonemes as a whole. Hearing: `walla transcribe` of a recording;
onnxruntime runs the same encoder once and the same decoder for each token of a text of the same
length, without the spectrum. Times are processor times without loading, the median of the rounds.
Needs numpy and onnxruntime (requirements.txt).
"""

import argparse
import json
import re
import statistics
import subprocess
import tempfile
import time
import wave
from pathlib import Path

import numpy as np
import onnxruntime

WINDOW_FRAMES = 1000  # 10 s, walla's window for utterances of up to 9 s
REPORT = re.compile(r"([\d.]+) s of sound, ([\d.]+) s of processor time for each")


def session(path):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def spent(work):
    begin = time.process_time()
    result = work()
    return result, time.process_time() - begin


def report(command):
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    found = REPORT.search(ran.stderr)
    return ran.stdout, float(found[1]), float(found[2])


def speech(walla, parts, sentences, rounds):
    """Processor time for each second of sound: walla's and onnxruntime's, a pair each round."""
    voice = parts / "en_US-joe-medium.onnx"
    settings = json.loads(voice.with_suffix(".onnx.json").read_text())
    symbols, rate = settings["phoneme_id_map"], settings["audio"]["sample_rate"]
    network = session(voice)
    text = " ".join(sentences)
    pairs = []
    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder) / "times.json"
        command = [walla, "speak", text, "--voice", voice, "-o", Path(folder) / "a.wav"]
        for _ in range(rounds):
            _, _, share = report([*command, "--visemes", times])
            phonemes = [it["phoneme"] for it in json.loads(times.read_text())["phonemes"]]
            # A part ends with a mark; onnxruntime gets one at a time, as walla does.
            lines, line = [], []
            for phoneme in phonemes:
                line.append(phoneme)
                if phoneme in ".?!":
                    lines.append(line)
                    line = []
            sound = total = 0.0
            for line in filter(None, [*lines, line]):
                ids = [1, 0]
                for phoneme in line:
                    if phoneme in symbols and phoneme not in "^_$":
                        ids += [symbols[phoneme][0], 0]
                inputs = {
                    "input": np.array([ids + [2]], np.int64),
                    "input_lengths": np.array([len(ids) + 1], np.int64),
                    "scales": np.array([0.667, 1.0, 0.8], np.float32),
                }
                (samples,), seconds = spent(lambda: network.run(None, inputs))
                sound, total = sound + samples.size / rate, total + seconds
            pairs.append((share, total / sound))
    return pairs


def hearing(walla, parts, wav, rounds):
    """As `speech`, of one utterance in `wav` with tiny.en."""
    model = parts / "tiny.en"
    encoder, decoder = (session(model / f"{name}.int8.onnx") for name in ("encoder", "decoder"))
    vocabulary = json.loads((model / "tokenizer.json").read_text())["model"]["vocab"]
    seconds = wave.open(str(wav)).getnframes() / wave.open(str(wav)).getframerate()
    pairs = []
    for _ in range(rounds):
        text, _, share = report([walla, "transcribe", str(wav), "--model", str(model)])
        # As many steps as the text has tokens: words and marks, at least.
        words = re.findall(r"[\w']+|[.,?!]", text.split("]", 1)[1])
        steps = sum(1 if f"Ġ{word}" in vocabulary or word in vocabulary else 2 for word in words)
        mel = np.zeros((1, 80, WINDOW_FRAMES), np.float32)
        total = 0.0
        crosses, spent_here = spent(lambda: encoder.run(None, {"mel": mel}))
        total += spent_here
        crosses = dict(zip([output.name for output in encoder.get_outputs()], crosses))
        past = {
            it.name: np.zeros([1, *[n if isinstance(n, int) else 0 for n in it.shape[1:]]], np.float32)
            for it in decoder.get_inputs()
            if it.name.startswith("past_")
        }
        names = [output.name for output in decoder.get_outputs()]
        position, tokens = 0, [50257, 50362]
        for _ in range(steps + 1):
            count = len(tokens)
            inputs = {
                "tokens": np.array([tokens], np.int64),
                "positions": np.arange(position, position + count)[None].astype(np.int64),
                "mask": np.triu(np.full((count, position + count), -1e9, np.float32), position + 1),
                **past,
                **{name: crosses[name] for name in crosses if name in inputs_of(decoder)},
            }
            outputs, spent_here = spent(lambda: decoder.run(None, inputs))
            total += spent_here
            outputs = dict(zip(names, outputs))
            past = {name: outputs[name.replace("past", "present")] for name in past}
            position, tokens = position + count, [int(outputs["logits"][0, -1].argmax())]
        pairs.append((share, total / seconds))
    return pairs


def inputs_of(network):
    return {it.name for it in network.get_inputs()}


def summary(pairs):
    walla, peer = zip(*pairs)
    ratios = [a / b for a, b in pairs]
    return {
        "walla": statistics.median(walla),
        "onnxruntime": statistics.median(peer),
        "ratio": statistics.median(ratios),
        "ratio_min_max": [min(ratios), max(ratios)],
        "rounds": len(pairs),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("walla")
    parser.add_argument("parts", type=Path)
    parser.add_argument("--sentences", type=Path, default=Path(__file__).parents[2] / "crates/walla_voice/tests/voice/sentences.txt")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    sentences = arguments.sentences.read_text().splitlines()
    result = {"speech": summary(speech(arguments.walla, arguments.parts, sentences, arguments.rounds))}
    with tempfile.TemporaryDirectory() as folder:
        wav = Path(folder) / "utterance.wav"
        # About 8 s: one utterance in the short window.
        text = "The guard at the gate asks for your name and your business in the city, and he wants to see your hands."
        voice = arguments.parts / "en_US-joe-medium.onnx"
        report([arguments.walla, "speak", text, "--voice", voice, "--speed", "0.8", "-o", wav])
        result["hearing"] = summary(hearing(arguments.walla, arguments.parts, wav, 2 * arguments.rounds))
    result["versions"] = {"onnxruntime": onnxruntime.__version__, "numpy": np.__version__}
    text = json.dumps(result, indent=2)
    print(text)
    if arguments.output:
        arguments.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
