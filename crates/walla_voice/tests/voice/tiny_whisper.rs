//! A recogniser of Whisper's structure that always understands the same words.

use std::path::{Path, PathBuf};

use rten_onnx::onnx::{
    AttributeProto, AttributeType, DataType, GraphProto, ModelProto, NodeProto, OperatorSetIdProto,
    TensorProto, ValueInfoProto,
};

/// Text, then special tokens: languages are between the start and `<|translate|>`.
const TOKENS: [&str; 11] = [
    "Who",
    "\u{120}goes", // a space, in the letters of byte-level vocabularies
    "\u{120}there",
    "?",
    "<|endoftext|>",
    "<|startoftranscript|>",
    "<|en|>",
    "<|de|>",
    "<|translate|>",
    "<|transcribe|>",
    "<|notimestamps|>",
];
/// The likeliest token behind each one.
const NEXT: [usize; 11] = [1, 2, 3, 4, 4, 6, 9, 9, 9, 10, 0];

/// Writes a model to a folder. It knows English and German, and takes all speech for English.
pub fn whisper(folder: &Path) -> PathBuf {
    let folder = folder.join("whisper");
    std::fs::create_dir(&folder).unwrap();
    let write = |name, bytes: &[u8]| std::fs::write(folder.join(name), bytes).unwrap();
    write("tokenizer.json", tokenizer().as_bytes());
    write("encoder.onnx", &encoder());
    write("decoder.onnx", &decoder());
    folder
}

fn tokenizer() -> String {
    let tokens = TOKENS.iter().zip(0..);
    let special = tokens.clone().filter(|(token, _)| token.starts_with("<|"));
    let special = special.map(|(token, id)| serde_json::json!({"content": token, "id": id}));
    let special: Vec<_> = special.collect();
    let vocabulary: serde_json::Map<_, _> =
        tokens.map(|(token, id)| ((*token).to_owned(), serde_json::json!(id))).collect();
    serde_json::json!({"model": {"vocab": vocabulary}, "added_tokens": special}).to_string()
}

/// Keys and values are the sound.
fn encoder() -> Vec<u8> {
    let shapes = [ints("keys", &[1, 1, 80, -1]), ints("values", &[1, 1, -1, 80])];
    let nodes = [
        node("Reshape", &["mel", "keys"], "cross_k0", None),
        node("Reshape", &["mel", "values"], "cross_v0", None),
    ];
    model(&["mel"], &["cross_k0", "cross_v0"], &nodes, &shapes)
}

/// Logits depend on the last token alone.
fn decoder() -> Vec<u8> {
    let count = TOKENS.len();
    let mut table = vec![0.0; count * count];
    for (token, next) in NEXT.into_iter().enumerate() {
        table[token * count + next] = 20.0;
    }
    let mut rows = tensor("table", &[count, count], DataType::FLOAT);
    rows.float_data = table;
    let last = [("first", -1), ("end", i64::from(i32::MAX)), ("axis", 1)];
    let last = last.map(|(name, number)| ints(name, &[number]));
    let nodes = [
        node("Gather", &["table", "tokens"], "all", Some(("axis", 0))),
        node("Slice", &["all", "first", "end", "axis"], "logits", None),
        node("Identity", &["past_k0"], "present_k0", None),
        node("Identity", &["past_v0"], "present_v0", None),
    ];
    let inputs = ["tokens", "positions", "mask", "past_k0", "past_v0", "cross_k0", "cross_v0"];
    let outputs = ["logits", "present_k0", "present_v0"];
    model(&inputs, &outputs, &nodes, &[&[rows][..], &last].concat())
}

fn tensor(name: &str, dims: &[usize], data_type: DataType) -> TensorProto {
    TensorProto {
        name: Some(name.to_owned()),
        dims: dims.iter().map(|dim| *dim as i64).collect(),
        data_type: Some(data_type),
        ..TensorProto::default()
    }
}

fn ints(name: &str, numbers: &[i64]) -> TensorProto {
    let tensor = tensor(name, &[numbers.len()], DataType::INT64);
    TensorProto { int64_data: numbers.to_vec(), ..tensor }
}

fn node(op: &str, inputs: &[&str], output: &str, attribute: Option<(&str, i64)>) -> NodeProto {
    let attribute = attribute.map(|(name, i)| AttributeProto {
        name: Some(name.to_owned()),
        i: Some(i),
        r#type: Some(AttributeType::INT),
        ..AttributeProto::default()
    });
    NodeProto {
        op_type: Some(op.to_owned()),
        name: Some(format!("node_{output}")),
        input: inputs.iter().map(|input| (*input).to_owned()).collect(),
        output: vec![output.to_owned()],
        attribute: attribute.into_iter().collect(),
        ..NodeProto::default()
    }
}

fn model(
    inputs: &[&str],
    outputs: &[&str],
    nodes: &[NodeProto],
    tensors: &[TensorProto],
) -> Vec<u8> {
    let values = |names: &[&str]| {
        let value =
            |name: &&str| ValueInfoProto { name: Some((*name).to_owned()), ..Default::default() };
        names.iter().map(value).collect()
    };
    let graph = GraphProto {
        input: values(inputs),
        output: values(outputs),
        node: nodes.to_vec(),
        initializer: tensors.to_vec(),
        ..GraphProto::default()
    };
    let model = ModelProto {
        ir_version: Some(8),
        graph: Some(graph),
        opset_import: vec![OperatorSetIdProto { domain: None, version: Some(18) }],
        ..ModelProto::default()
    };
    model.write_buf().unwrap()
}
