//! A voice of Piper's structure with a few weights, so that tests need no file.

use std::path::{Path, PathBuf};

use rten_onnx::onnx::{
    AttributeProto, AttributeType, DataType, GraphProto, ModelProto, NodeProto, OperatorSetIdProto,
    TensorProto, ValueInfoProto,
};

/// Numbers of a latent frame.
const CHANNELS: usize = 4;

/// Weights that look random, and are the same each time.
pub fn weights(count: usize, scale: f32) -> Vec<f32> {
    let number = |index: usize| ((index as f32 * 12.9898).sin() * 43758.547).fract();
    (0..count).map(|index| number(index) * scale).collect()
}

/// A graph in the making.
#[derive(Default)]
pub struct Builder(pub GraphProto);

impl Builder {
    fn tensor(&mut self, name: &str, dims: &[usize], data_type: DataType) -> &mut TensorProto {
        self.0.initializer.push(TensorProto {
            name: Some(name.to_owned()),
            dims: dims.iter().map(|dim| *dim as i64).collect(),
            data_type: Some(data_type),
            ..TensorProto::default()
        });
        self.0.initializer.last_mut().unwrap()
    }

    /// Adds weights. Returns their name.
    pub fn floats<'a>(&mut self, name: &'a str, dims: &[usize], numbers: Vec<f32>) -> &'a str {
        self.tensor(name, dims, DataType::FLOAT).float_data = numbers;
        name
    }

    /// Adds integers. Returns their name.
    pub fn ints<'a>(&mut self, name: &'a str, dims: &[usize], numbers: &[i64]) -> &'a str {
        self.tensor(name, dims, DataType::INT64).int64_data = numbers.to_vec();
        name
    }

    /// Adds an operator with integers as attributes, lists of them with `*` behind their names.
    /// Returns the name of its output.
    pub fn node(&mut self, op: &str, inputs: &[&str], attributes: &[(&str, &[i64])]) -> String {
        let output = format!("{op}_{}", self.0.node.len());
        let attribute = |(name, ints): &(&str, &[i64])| {
            let (name, is_list) = (name.trim_end_matches('*'), name.ends_with('*'));
            AttributeProto {
                name: Some(name.to_owned()),
                i: ints.first().copied().filter(|_| !is_list),
                ints: if is_list { ints.to_vec() } else { Vec::new() },
                r#type: Some(if is_list { AttributeType::INTS } else { AttributeType::INT }),
                ..AttributeProto::default()
            }
        };
        self.0.node.push(NodeProto {
            op_type: Some(op.to_owned()),
            name: Some(format!("node_{output}")),
            input: inputs.iter().map(|input| (*input).to_owned()).collect(),
            output: vec![output.clone()],
            attribute: attributes.iter().map(attribute).collect(),
            ..NodeProto::default()
        });
        output
    }
}

/// Writes the network and its settings to a folder. Returns the path of the network.
pub fn voice(folder: &Path) -> PathBuf {
    let path = folder.join("tiny.onnx");
    std::fs::write(&path, network()).unwrap();
    std::fs::write(folder.join("tiny.onnx.json"), settings()).unwrap();
    path
}

/// One id for each symbol that English texts have.
pub fn settings() -> String {
    let symbols = "_^$ !'(),-.:;?abcdefhijklmnopqrstuvwxyzæðŋɐɑɔəɚɛɜɡɪɹɾʃʊʌʒˈˌːθᵻ\"";
    let ids = symbols
        .chars()
        .enumerate()
        .map(|(id, symbol)| format!("{}: [{id}]", serde_json::to_string(&symbol).unwrap()));
    let ids = ids.collect::<Vec<_>>().join(", ");
    format!(
        r#"{{"audio": {{"sample_rate": 16000}}, "espeak": {{"voice": "en-us"}}, "phoneme_id_map": {{{ids}}}}}"#
    )
}

/// A text encoder, durations with noise, their expansion to frames, noise of frames, and a decoder
/// of two steps, as in VITS.
pub fn network() -> Vec<u8> {
    const SYMBOLS: usize = 128;
    let mut net = Builder::default();
    let inputs = ["input", "input_lengths", "scales"];
    net.0.input = inputs
        .map(|name| ValueInfoProto { name: Some(name.to_owned()), ..ValueInfoProto::default() })
        .to_vec();
    let one = net.ints("one", &[1], &[1]);
    let two = net.ints("two", &[1], &[2]);
    let scalars: Vec<String> = (0..3)
        .map(|index| {
            let name = format!("index_{index}");
            let index = net.ints(&name, &[], &[index]);
            net.node("Gather", &["scales", index], &[("axis", &[0])])
        })
        .collect();
    // Symbols: [1, CHANNELS, symbols].
    let table = net.floats("table", &[SYMBOLS, CHANNELS], weights(SYMBOLS * CHANNELS, 1.0));
    let text = net.node("Gather", &[table, "input"], &[("axis", &[0])]);
    let text = net.node("Transpose", &[&text], &[("perm*", &[0, 2, 1])]);
    // Durations: 2 to 5 frames and noise, at least one.
    let lengths: Vec<f32> = weights(SYMBOLS * 2, 1.0).iter().map(|w| 3.0 + 2.0 * w).collect();
    let lengths = net.floats("lengths", &[SYMBOLS, 2], lengths);
    let lengths = net.node("Gather", &[lengths, "input"], &[("axis", &[0])]);
    let lengths = net.node("Transpose", &[&lengths], &[("perm*", &[0, 2, 1])]);
    let noise = net.node("RandomNormalLike", &[&lengths], &[]);
    let noise = net.node("Mul", &[&noise, &scalars[2]], &[]);
    let lengths = net.node("Add", &[&lengths, &noise], &[]);
    let lengths = net.node("Mul", &[&lengths, &scalars[1]], &[]);
    let lengths = net.node("ReduceMax", &[&lengths, one], &[("keepdims", &[1])]);
    let least = net.floats("least", &[1], vec![0.5]);
    let lengths = net.node("Max", &[&lengths, least], &[]);
    let frames = net.node("Ceil", &[&lengths], &[]);
    // Which frame belongs to which symbol: [1, frames, symbols].
    let axis = net.ints("axis", &[], &[2]);
    let ends = net.node("CumSum", &[&frames, axis], &[]);
    let starts = net.node("Sub", &[&ends, &frames], &[]);
    let count = net.node("ReduceSum", &[&frames], &[("keepdims", &[0])]);
    let count = net.node("Cast", &[&count], &[("to", &[7])]);
    let zero = net.ints("zero", &[], &[0]);
    let step = net.ints("step", &[], &[1]);
    let places = net.node("Range", &[zero, &count, step], &[]);
    let places = net.node("Cast", &[&places], &[("to", &[1])]);
    let shape = net.ints("shape", &[3], &[1, -1, 1]);
    let places = net.node("Reshape", &[&places, shape], &[]);
    let before_end = net.node("Less", &[&places, &ends], &[]);
    let before_start = net.node("Less", &[&places, &starts], &[]);
    let [before_end, before_start] =
        [before_end, before_start].map(|mask| net.node("Cast", &[&mask], &[("to", &[1])]));
    let path = net.node("Sub", &[&before_end, &before_start], &[]);
    let path = net.node("Transpose", &[&path], &[("perm*", &[0, 2, 1])]);
    let mean = net.node("MatMul", &[&text, &path], &[]);
    let noise = net.node("RandomNormalLike", &[&mean], &[]);
    let noise = net.node("Mul", &[&noise, &scalars[0]], &[]);
    let latent = net.node("Add", &[&mean, &noise], &[]);
    let flow = net.floats("flow", &[1, CHANNELS, 1], vec![0.9, -0.8, 0.7, 0.6]);
    let latent = net.node("Mul", &[&latent, flow], &[]);
    // One half of the rows depends on the other one, as in the flow.
    let numbers = [("begin", 0), ("middle", 2), ("end", 4), ("rows", 1)];
    let [begin, middle, end, rows] = numbers.map(|(name, number)| net.ints(name, &[1], &[number]));
    let half = net.node("Slice", &[&latent, begin, middle, rows], &[]);
    let other = net.node("Slice", &[&latent, middle, end, rows], &[]);
    let moved = net.floats("moved", &[2, 2, 5], weights(2 * 2 * 5, 0.3));
    let moved = net.node("Conv", &[&half, moved], &[("kernel_shape*", &[5]), ("pads*", &[2, 2])]);
    let moved = net.node("Tanh", &[&moved], &[]);
    let moved = net.node("Add", &[&moved, &other], &[]);
    let latent = net.node("Concat", &[&half, &moved], &[("axis", &[1])]);
    // The decoder.
    let first = net.floats("first", &[8, CHANNELS, 7], weights(8 * CHANNELS * 7, 0.3));
    let sound = net.node("Conv", &[&latent, first], &[("kernel_shape*", &[7]), ("pads*", &[3, 3])]);
    let up = net.floats("up", &[8, 4, 8], weights(8 * 4 * 8, 0.3));
    let attributes: &[(&str, &[i64])] =
        &[("kernel_shape*", &[8]), ("strides*", &[4]), ("pads*", &[2, 2])];
    let sound = net.node("ConvTranspose", &[&sound, up], attributes);
    let inner = net.node("LeakyRelu", &[&sound], &[]);
    let wide = net.floats("wide", &[4, 4, 3], weights(4 * 4 * 3, 0.3));
    let attributes: &[(&str, &[i64])] =
        &[("kernel_shape*", &[3]), ("dilations*", &[3]), ("pads*", &[3, 3])];
    let inner = net.node("Conv", &[&inner, wide], attributes);
    let sound = net.node("Add", &[&sound, &inner], &[]);
    let last = net.floats("last", &[4, 2, 4], weights(4 * 2 * 4, 0.3));
    let attributes: &[(&str, &[i64])] =
        &[("kernel_shape*", &[4]), ("strides*", &[2]), ("pads*", &[1, 1])];
    let sound = net.node("ConvTranspose", &[&sound, last], attributes);
    let one_channel = net.floats("out", &[1, 2, 7], weights(2 * 7, 0.3));
    let attributes: &[(&str, &[i64])] = &[("kernel_shape*", &[7]), ("pads*", &[3, 3])];
    let sound = net.node("Conv", &[&sound, one_channel], attributes);
    let sound = net.node("Tanh", &[&sound], &[]);
    let output = net.node("Unsqueeze", &[&sound, two], &[]);
    net.0.output = vec![ValueInfoProto { name: Some(output), ..ValueInfoProto::default() }];
    let model = ModelProto {
        ir_version: Some(8),
        graph: Some(net.0),
        opset_import: vec![OperatorSetIdProto { domain: None, version: Some(18) }],
        ..ModelProto::default()
    };
    model.write_buf().unwrap()
}
