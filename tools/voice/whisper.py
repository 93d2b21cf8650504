"""Converts a Whisper model of CTranslate2 to the ONNX files that walla_voice reads.

    python3 -m venv environment
    environment/bin/pip install -r requirements.txt
    environment/bin/python whisper.py FOLDER OUT [--f32]

FOLDER has `model.bin` (version 6 of CTranslate2, weights f16 or f32, as faster-whisper's models
have) and `tokenizer.json`. OUT receives a copy of `tokenizer.json` and two networks, opset 20:

    encoder: mel [1, 80, frames] -> cross_k{layer} [1, heads, 64, frames / 2],
             cross_v{layer} [1, heads, frames / 2, 64]; the input of each layer of the encoder is
             called hidden{layer}, so that the layers can be run one by one
    decoder: tokens [1, n], positions [1, n], mask [n, past + n], past_k{layer}, past_v{layer},
             cross_k{layer}, cross_v{layer} -> logits [1, 1, vocabulary], present_k{layer}, ...

Their names are `encoder.int8.onnx` and `decoder.int8.onnx`; with --f32, `encoder.onnx` and
`decoder.onnx`, which are four times larger and take 1.4 to 1.8 times as long. walla_voice prefers
the former if both exist. The attention of each layer has its key and value of the past as inputs and
outputs, so a step costs one token.

Sizes: tiny, base and small, English or multilingual. The larger ones exceed the 2 GB of an ONNX
file, and large-v3 has 128 bands. Base takes 16 s and 2 GB of memory.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import struct
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

BANDS = 80
HEAD_WIDTH = 64  # of all sizes
MAX_BYTES = 2**31  # of a protobuf message
TYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}
# Operators whose weights become int8; the two convolutions stay f32.
QUANTIZED = ["MatMul", "Gather"]


class Invalid(Exception):
    """The input is no model that can be converted."""


def read(path: Path) -> dict[str, np.ndarray]:
    """The variables of a `model.bin`: a header, named arrays, and other names for some of them."""
    data = path.read_bytes()
    at = 0

    def number(kind: str) -> int:
        nonlocal at
        (value,) = struct.unpack_from("<" + kind, data, at)
        at += struct.calcsize(kind)
        return value

    def text() -> str:
        nonlocal at
        length = number("H")  # with a zero byte
        at += length
        return data[at - length : at - 1].decode()

    version = number("I")
    if version != 6:
        raise Invalid(f"{path}: version {version} of CTranslate2, expected 6")
    name = text()
    if name != "WhisperSpec":
        raise Invalid(f"{path}: a {name!r}, expected a WhisperSpec")
    number("I")  # revision
    found = {}
    for _ in range(number("I")):
        name = text()
        shape = [number("I") for _ in range(number("B"))]
        kind = TYPES.get(number("B"))
        if kind is None:
            raise Invalid(f"{path}: {name} has an unknown type; expected f16 or f32")
        size = number("I")
        found[name] = np.frombuffer(data, kind, size // np.dtype(kind).itemsize, at).reshape(shape)
        at += size
    for _ in range(number("I")):
        alias = text()
        found[alias] = found[text()]
    return found


class Weights:
    """The variables as f32, without those of another type."""

    def __init__(self, folder: Path) -> None:
        path = folder / "model.bin"
        try:
            variables = read(path)
        except (struct.error, UnicodeDecodeError, ValueError, KeyError) as error:
            raise Invalid(f"{path}: damaged: {error}") from error
        if any(name.endswith("weight_scale") for name in variables):
            raise Invalid(f"{path}: the weights are int8; expected f16 or f32")
        floats = (np.float16, np.float32)
        self.found = {k: v.astype(np.float32) for k, v in variables.items() if v.dtype in floats}
        self.path = path
        self.width, bands, _ = self["encoder/conv1/weight"].shape
        self.heads = self.width // HEAD_WIDTH
        if bands != BANDS:
            raise Invalid(f"{path}: {bands} bands, expected {BANDS}: large-v3 is not supported")
        heads = int(variables.get("encoder/num_heads", self.heads))
        if heads != self.heads:
            raise Invalid(f"{path}: {heads} heads of {self.width}, expected heads of {HEAD_WIDTH}")

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.found:
            raise Invalid(f"{self.path}: it has no {name}")
        return self.found[name]

    def layers(self, side: str) -> int:
        """Number of layers of the encoder or of the decoder."""
        count = 0
        while f"{side}/layer_{count}/ffn/linear_0/bias" in self.found:
            count += 1
        return count

    def linear(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Weight [out, in] and bias."""
        return self[f"{name}/weight"], self[f"{name}/bias"]

    def joined(self, name: str, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """A layer of several that are stored as one, such as query, key and value."""
        weight, bias = self.linear(name)
        return list(zip(np.split(weight, count), np.split(bias, count)))


class Graph:
    """A network in work. Values are the names of tensors."""

    def __init__(self, weights: Weights) -> None:
        self.weights, self.heads, self.width = weights, weights.heads, weights.width
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: dict[str, onnx.TensorProto] = {}

    def tensor(self, name: str, values: np.ndarray) -> str:
        self.tensors[name] = numpy_helper.from_array(np.ascontiguousarray(values), name)
        return name

    def ints(self, *values: int) -> str:
        name = "ints_" + "_".join(map(str, values))
        return self.tensor(name, np.array(values, np.int64))

    def op(self, kind: str, *inputs: str, to: str | None = None, **attributes: object) -> str:
        to = to or f"{kind}_{len(self.nodes)}"
        node = helper.make_node(kind, inputs, [to], name=f"node_{to}", **attributes)
        self.nodes.append(node)
        return to

    def linear(
        self, x: str, name: str, layer: tuple[np.ndarray, np.ndarray], to: str | None = None
    ) -> str:
        """x W^T + b."""
        weight, bias = layer
        y = self.op("MatMul", x, self.tensor(f"{name}.weight", weight.T))
        return self.op("Add", y, self.tensor(f"{name}.bias", bias), to=to)

    def norm(self, x: str, name: str) -> str:
        gamma = self.tensor(f"{name}.gamma", self.weights[f"{name}/gamma"])
        beta = self.tensor(f"{name}.beta", self.weights[f"{name}/beta"])
        return self.op("LayerNormalization", x, gamma, beta, axis=-1, epsilon=1e-5)

    def heads_of(
        self,
        x: str,
        name: str,
        layer: tuple[np.ndarray, np.ndarray],
        is_key: bool = False,
        to: str | None = None,
    ) -> str:
        """x W^T + b as [1, heads, n, 64]; of keys, [1, heads, 64, n], with the factor of scores.

        The last operator works in the order of the result: products of transposed numbers take
        three times as long. So the bias is added there. Keys have none, and get the factor.
        """
        weight, bias = layer
        y = self.op("MatMul", x, self.tensor(f"{name}.weight", weight.T))
        y = self.op("Reshape", y, self.ints(0, 0, self.heads, HEAD_WIDTH))
        y = self.op("Transpose", y, perm=[0, 2, 3, 1] if is_key else [0, 2, 1, 3])
        if is_key:
            if bias.any():
                raise Invalid(f"{name} has a bias, which keys of Whisper have not")
            factor = np.array(HEAD_WIDTH**-0.5, np.float32)
            return self.op("Mul", y, self.tensor("factor", factor), to=to)
        bias = bias.reshape(self.heads, 1, HEAD_WIDTH)
        return self.op("Add", y, self.tensor(f"{name}.bias", bias), to=to)

    def attention(self, x: str, name: str, qkv: tuple[str, str, str], out: int, mask="") -> str:
        """x + attention; `out` is the number of its last linear layer."""
        query, key, value = qkv
        scores = self.op("MatMul", query, key)
        if mask:
            scores = self.op("Add", scores, mask)
        y = self.op("MatMul", self.op("Softmax", scores, axis=-1), value)
        y = self.op("Transpose", y, perm=[0, 2, 1, 3])
        y = self.op("Reshape", y, self.ints(0, 0, self.width))
        layer = self.weights.linear(f"{name}/linear_{out}")
        return self.op("Add", x, self.linear(y, f"{name}.out", layer))

    def feed_forward(self, x: str, name: str, to: str | None = None) -> str:
        y = self.norm(x, f"{name}/layer_norm")
        y = self.linear(y, f"{name}.0", self.weights.linear(f"{name}/linear_0"))
        y = self.op("Gelu", y)
        y = self.linear(y, f"{name}.1", self.weights.linear(f"{name}/linear_1"))
        return self.op("Add", x, y, to=to)

    def convolution(self, x: str, name: str, stride: int) -> str:
        weight, bias = self.weights.linear(name)
        tensors = self.tensor(f"{name}.weight", weight), self.tensor(f"{name}.bias", bias)
        y = self.op("Conv", x, *tensors, kernel_shape=[3], pads=[1, 1], strides=[stride])
        return self.op("Gelu", y)

    def save(self, path: Path, inputs: list, outputs: list) -> None:
        size = sum(len(tensor.raw_data) for tensor in self.tensors.values())
        if size >= MAX_BYTES:
            raise Invalid(f"{path.name} would have {size >> 20} MiB, more than an ONNX file can")
        tensors = list(self.tensors.values())
        graph = helper.make_graph(self.nodes, path.stem, inputs, outputs, tensors)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
        model.ir_version = 9
        onnx.checker.check_model(model)
        onnx.save(model, path)


def floats(name: str, shape: list) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def encoder(weights: Weights, path: Path) -> None:
    graph = Graph(weights)
    x = graph.convolution("mel", "encoder/conv1", 1)
    x = graph.convolution(x, "encoder/conv2", 2)
    x = graph.op("Transpose", x, perm=[0, 2, 1])
    # As many positions as the window has, so that it may be shorter than 30 s.
    length = graph.op("Shape", x, start=1, end=2)
    positions = graph.tensor("positions", weights["encoder/position_encodings/encodings"])
    positions = graph.op("Slice", positions, graph.ints(0), length, graph.ints(0))
    x = graph.op("Add", x, positions, to="hidden0")
    for index in range(weights.layers("encoder")):
        name = f"encoder/layer_{index}/self_attention"
        query, key, value = weights.joined(f"{name}/linear_0", 3)
        y = graph.norm(x, f"{name}/layer_norm")
        query = graph.heads_of(y, f"{name}.query", query)
        key = graph.heads_of(y, f"{name}.key", key, is_key=True)
        value = graph.heads_of(y, f"{name}.value", value)
        x = graph.attention(x, name, (query, key, value), out=1)
        x = graph.feed_forward(x, f"encoder/layer_{index}/ffn", to=f"hidden{index + 1}")
    x = graph.norm(x, "encoder/layer_norm")
    outputs = []
    for index in range(weights.layers("decoder")):
        name = f"decoder/layer_{index}/attention"
        key, value = weights.joined(f"{name}/linear_1", 2)
        graph.heads_of(x, f"{name}.key", key, is_key=True, to=f"cross_k{index}")
        graph.heads_of(x, f"{name}.value", value, to=f"cross_v{index}")
        outputs += cached("cross", index, weights.heads, "context")
    graph.save(path, [floats("mel", [1, BANDS, "frames"])], outputs)


def cached(kind: str, layer: int, heads: int, length: str) -> list:
    """The key and the value of a layer."""
    return [
        floats(f"{kind}_k{layer}", [1, heads, HEAD_WIDTH, length]),
        floats(f"{kind}_v{layer}", [1, heads, length, HEAD_WIDTH]),
    ]


def decoder(weights: Weights, path: Path) -> None:
    graph, heads = Graph(weights), weights.heads
    words = weights["decoder/embeddings/weight"]
    x = graph.op("Gather", graph.tensor("words", words), "tokens")
    positions = graph.tensor("position_table", weights["decoder/position_encodings/encodings"])
    x = graph.op("Add", x, graph.op("Gather", positions, "positions"))
    ids = [
        helper.make_tensor_value_info(name, TensorProto.INT64, [1, "n"])
        for name in ("tokens", "positions")
    ]
    inputs = [*ids, floats("mask", ["n", "total"])]
    outputs = [floats("logits", [1, 1, len(words)])]
    for index in range(weights.layers("decoder")):
        name = f"decoder/layer_{index}/self_attention"
        query, key, value = weights.joined(f"{name}/linear_0", 3)
        y = graph.norm(x, f"{name}/layer_norm")
        query = graph.heads_of(y, f"{name}.query", query)
        key = graph.heads_of(y, f"{name}.key", key, is_key=True)
        value = graph.heads_of(y, f"{name}.value", value)
        key = graph.op("Concat", f"past_k{index}", key, to=f"present_k{index}", axis=3)
        value = graph.op("Concat", f"past_v{index}", value, to=f"present_v{index}", axis=2)
        x = graph.attention(x, name, (query, key, value), out=1, mask="mask")
        name = f"decoder/layer_{index}/attention"
        y = graph.norm(x, f"{name}/layer_norm")
        query = graph.heads_of(y, f"{name}.query", weights.linear(f"{name}/linear_0"))
        x = graph.attention(x, name, (query, f"cross_k{index}", f"cross_v{index}"), out=2)
        x = graph.feed_forward(x, f"decoder/layer_{index}/ffn")
        inputs += cached("past", index, heads, "past") + cached("cross", index, heads, "context")
        outputs += cached("present", index, heads, "total")
    # Logits of the last token alone.
    x = graph.op("Slice", x, graph.ints(-1), graph.ints(2**31), graph.ints(1))
    x = graph.norm(x, "decoder/layer_norm")
    # The same words again: a transposed copy multiplies faster.
    graph.op("MatMul", x, graph.tensor("words_transposed", words.T), to="logits")
    graph.save(path, inputs, outputs)


def quantize(path: Path, to: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    logging.getLogger().setLevel(logging.ERROR)  # its advice is for other networks
    quantize_dynamic(path, to, weight_type=QuantType.QInt8, op_types_to_quantize=QUANTIZED)


def convert(folder: Path, out: Path, is_f32: bool) -> None:
    tokenizer = folder / "tokenizer.json"
    if not tokenizer.is_file():
        raise Invalid(f"{tokenizer}: missing; the original model's repository has it")
    weights = Weights(folder)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out) as name:
        work = Path(name)
        done = []
        for part, write in (("encoder", encoder), ("decoder", decoder)):
            path = work / f"{part}.onnx"
            write(weights, path)
            if not is_f32:
                quantize(path, work / f"{part}.int8.onnx")
                path = work / f"{part}.int8.onnx"
            done.append(path)
        for path in done:
            print(out / path.name, path.stat().st_size)
            path.replace(out / path.name)
    shutil.copyfile(tokenizer, out / tokenizer.name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="with model.bin and tokenizer.json")
    parser.add_argument("out", type=Path, help="folder to write")
    parser.add_argument("--f32", action="store_true", help="without quantization to int8")
    arguments = parser.parse_args()
    try:
        convert(arguments.folder, arguments.out, arguments.f32)
    except (Invalid, OSError) as error:
        parser.exit(1, f"whisper.py: {error}\n")


if __name__ == "__main__":
    main()
