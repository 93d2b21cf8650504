//! Finds the values of a Kokoro network that are inputs and outputs of its stages, and replaces an
//! operator that `rten` does not have. Names of values differ between exporters, the structure does
//! not.

use std::collections::HashMap;

use rten_onnx::onnx::{
    AttributeProto, AttributeType, DataType, GraphProto, ModelProto, NodeProto, TensorProto,
};

use crate::onnx::places;

const MAX_NODES: usize = 100_000;
/// Numbers for each frame at any place of the network. 600 are right; where a value of another rate
/// is only a factor, twice as many are counted.
const MAX_RATE: f64 = 8192.0;
/// Strides, dilations and other settings of convolutions.
const MAX_SETTING: i64 = 8192;
/// Dimensions of a tensor.
const MAX_RANK: usize = 8;

/// Names of values.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Names {
    pub tokens: String,
    /// Frames of each token.
    pub durations: String,
    pub output: String,
    /// Places at which stages A and C can be divided.
    pub places: [Vec<Vec<String>>; 2],
}

/// The network as `rten` can load it, and the names of its values.
pub(super) fn prepare(bytes: Vec<u8>) -> Result<(Vec<u8>, Names), String> {
    let mut model = ModelProto::parse_buf(&bytes).map_err(|error| error.to_string())?;
    let graph = model.graph.as_mut().ok_or("it has no graph")?;
    if graph.node.len() > MAX_NODES {
        return Err(format!("{} nodes, at most {MAX_NODES}", graph.node.len()));
    }
    let mut names = Names::find(graph)?;
    check_rates(graph, &names.durations)?;
    names.places = [
        places(graph, &names.tokens, &names.output, &["speed"]),
        places(graph, &names.durations, &names.output, &[]),
    ];
    if !graph.node.iter().any(|node| op_type(node) == "FusedMatMul") {
        return Ok((bytes, names));
    }
    drop(bytes);
    replace_fused(graph)?;
    Ok((model.write_buf().map_err(|error| error.to_string())?, names))
}

impl Names {
    fn find(graph: &GraphProto) -> Result<Self, String> {
        let inputs = || graph.input.iter().filter_map(|input| input.name.as_deref());
        let input = |names: &[&str]| inputs().find(|input| names.contains(input));
        let tokens = input(&["tokens", "input_ids"]).ok_or("no Kokoro network: no input of tokens");
        for name in ["style", "speed"] {
            input(&[name]).ok_or_else(|| format!("no Kokoro network: it has no input {name:?}"))?;
        }
        let output = graph.output.first().and_then(|output| output.name.as_deref());
        // Durations are rounded, and at least one frame. No other number is rounded.
        let of_type = |types: &[&str]| -> Vec<&NodeProto> {
            graph.node.iter().filter(|node| types.contains(&op_type(node))).collect()
        };
        let rounded = of_type(&["Round"]);
        let is_rounded = |input: &String| rounded.iter().any(|node| node.output.contains(input));
        let mut limited = of_type(&["Clip", "Max"]);
        limited.retain(|node| node.input.iter().any(is_rounded));
        let durations = match limited[..] {
            [node] => node.output.first(),
            _ => None,
        };
        Ok(Self {
            tokens: tokens?.to_owned(),
            durations: durations.ok_or("no Kokoro network: no durations were found")?.clone(),
            output: output.ok_or("it has no output")?.to_owned(),
            places: Default::default(),
        })
    }
}

/// Checks how much a frame can grow in the network, so that a damaged one allocates no more than a
/// few times the usual memory.
fn check_rates(graph: &GraphProto, durations: &str) -> Result<(), String> {
    let mut constants: HashMap<&str, &TensorProto> = HashMap::new();
    for tensor in &graph.initializer {
        constants.extend(tensor.name.as_deref().map(|name| (name, tensor)));
    }
    for node in graph.node.iter().filter(|node| op_type(node) == "Constant") {
        let tensor = node.attribute.iter().find_map(|attribute| attribute.t.as_ref());
        constants.extend(node.output.first().map(String::as_str).zip(tensor));
    }
    let mut rates = HashMap::from([(durations, 1.0_f64)]);
    for node in &graph.node {
        let op = op_type(node);
        if op.contains("Conv") {
            let mut settings = node.attribute.iter().flat_map(|attribute| &attribute.ints);
            if !settings.all(|setting| (0..=MAX_SETTING).contains(setting)) {
                return Err("a convolution has unusual settings".to_owned());
            }
        }
        let inputs = node.input.iter().filter_map(|input| rates.get(input.as_str()));
        let Some(mut rate) = inputs.copied().reduce(f64::max) else { continue };
        let strides = || attribute(node, "strides").and_then(|strides| strides.ints.last());
        let constant = |index: usize| constants.get(node.input.get(index)?.as_str()).copied();
        match op {
            "ConvTranspose" => rate *= strides().map_or(1.0, |stride| *stride as f64),
            // A stride of zero is an error of the operator.
            _ if op.contains("Conv") => {
                rate /= strides().map_or(1.0, |stride| (*stride).max(1) as f64);
            }
            "STFT" => rate /= constant(1).and_then(last_int).map_or(1.0, |step| step.max(1) as f64),
            "Resize" => rate *= constant(2).and_then(last_float).map_or(1.0, f64::from),
            "Upsample" => rate *= constant(1).and_then(last_float).map_or(1.0, f64::from),
            _ => {}
        }
        if !(0.0..=MAX_RATE).contains(&rate) {
            return Err(format!("{rate} numbers for each frame"));
        }
        rates.extend(node.output.iter().map(|output| (output.as_str(), rate)));
    }
    Ok(())
}

/// The last number of a tensor: of the axis of time.
fn last_float(tensor: &TensorProto) -> Option<f32> {
    if let Some(number) = tensor.float_data.last() {
        return Some(*number);
    }
    let raw = tensor.raw_data.as_ref()?.borrow();
    raw.last_chunk::<4>().map(|bytes| f32::from_le_bytes(*bytes))
}

/// As [`last_float`], of integers.
fn last_int(tensor: &TensorProto) -> Option<i64> {
    if let Some(number) = tensor.int64_data.last() {
        return Some(*number);
    }
    let raw = tensor.raw_data.as_ref()?.borrow();
    raw.last_chunk::<8>().map(|bytes| i64::from_le_bytes(*bytes))
}

/// Replaces each `FusedMatMul` of ONNX Runtime, `alpha * op(A) * op(B)` where `op` may swap the
/// last two axes, by operators of the standard.
///
/// Source: `ContribOperators.md` of ONNX Runtime, `com.microsoft.FusedMatMul`.
fn replace_fused(graph: &mut GraphProto) -> Result<(), String> {
    let mut nodes = Vec::with_capacity(graph.node.len() + 4);
    for node in std::mem::take(&mut graph.node) {
        if op_type(&node) == "FusedMatMul" {
            replace(&node, graph, &mut nodes)?;
        } else {
            nodes.push(node);
        }
    }
    graph.node = nodes;
    Ok(())
}

fn replace(
    node: &NodeProto,
    graph: &mut GraphProto,
    nodes: &mut Vec<NodeProto>,
) -> Result<(), String> {
    let int = |name| attribute(node, name).and_then(|attribute| attribute.i).unwrap_or(0);
    let alpha = attribute(node, "alpha").and_then(|attribute| attribute.f).unwrap_or(1.0);
    let ([a, b], [output]) = (&node.input[..], &node.output[..]) else {
        return Err("a FusedMatMul has not two inputs and an output".to_owned());
    };
    if int("transBatchA") != 0 || int("transBatchB") != 0 {
        return Err("a FusedMatMul moves the axis of its batch: not supported".to_owned());
    }
    let mut operands = Vec::with_capacity(2);
    for (input, is_transposed) in [(a, int("transA") != 0), (b, int("transB") != 0)] {
        if !is_transposed {
            operands.push(input.clone());
            continue;
        }
        let is_named = |tensor: &&TensorProto| tensor.name.as_ref() == Some(input);
        // Values that are no weights have a batch.
        let rank = graph.initializer.iter().find(is_named).map_or(3, |tensor| tensor.dims.len());
        if !(2..=MAX_RANK).contains(&rank) {
            return Err(format!("a FusedMatMul transposes a tensor of {rank} dimensions"));
        }
        let rank = rank as i64;
        let perm = (0..rank - 2).chain([rank - 1, rank - 2]).collect();
        let transposed = format!("{output}_operand_{}", operands.len());
        let mut transpose = operator("Transpose", vec![input.clone()], &transposed);
        transpose.attribute.push(AttributeProto {
            name: Some("perm".to_owned()),
            ints: perm,
            r#type: Some(AttributeType::INTS),
            ..AttributeProto::default()
        });
        nodes.push(transpose);
        operands.push(transposed);
    }
    if alpha == 1.0 {
        nodes.push(operator("MatMul", operands, output));
        return Ok(());
    }
    let (product, factor) = (format!("{output}_product"), format!("{output}_alpha"));
    graph.initializer.push(TensorProto {
        name: Some(factor.clone()),
        data_type: Some(DataType::FLOAT),
        float_data: vec![alpha],
        ..TensorProto::default()
    });
    nodes.push(operator("MatMul", operands, &product));
    nodes.push(operator("Mul", vec![product, factor], output));
    Ok(())
}

fn operator(op: &str, input: Vec<String>, output: &str) -> NodeProto {
    NodeProto {
        op_type: Some(op.to_owned()),
        name: Some(format!("{output}_{op}")),
        input,
        output: vec![output.to_owned()],
        ..NodeProto::default()
    }
}

fn attribute<'a>(node: &'a NodeProto, name: &str) -> Option<&'a AttributeProto> {
    node.attribute.iter().find(|attribute| attribute.name.as_deref() == Some(name))
}

fn op_type(node: &NodeProto) -> &str {
    node.op_type.as_deref().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fused(attributes: &[(&str, i64)], alpha: f32) -> NodeProto {
        let mut node = operator("FusedMatMul", vec!["a".to_owned(), "b".to_owned()], "out");
        let attribute = |name: &str| AttributeProto {
            name: Some(name.to_owned()),
            ..AttributeProto::default()
        };
        for (name, value) in attributes {
            node.attribute.push(AttributeProto { i: Some(*value), ..attribute(name) });
        }
        node.attribute.push(AttributeProto { f: Some(alpha), ..attribute("alpha") });
        node
    }

    /// Operators, their inputs and permutations.
    fn replaced(node: NodeProto) -> Result<Vec<String>, String> {
        let b = TensorProto { name: Some("b".to_owned()), dims: vec![2, 3], ..Default::default() };
        let mut graph =
            GraphProto { node: vec![node], initializer: vec![b], ..GraphProto::default() };
        replace_fused(&mut graph)?;
        let text = |node: &NodeProto| {
            let perm = attribute(node, "perm").map(|perm| format!(" {:?}", perm.ints));
            format!("{} {}{}", op_type(node), node.input.join(" "), perm.unwrap_or_default())
        };
        Ok(graph.node.iter().map(text).collect())
    }

    #[test]
    fn fused_products_become_operators_of_the_standard() {
        assert_eq!(replaced(fused(&[], 1.0)).unwrap(), ["MatMul a b"]);
        assert_eq!(
            replaced(fused(&[("transA", 1)], 1.0)).unwrap(),
            ["Transpose a [0, 2, 1]", "MatMul out_operand_0 b"]
        );
        assert_eq!(
            replaced(fused(&[("transB", 1), ("transA", 0)], 0.5)).unwrap(),
            ["Transpose b [1, 0]", "MatMul a out_operand_1", "Mul out_product out_alpha"]
        );
        assert!(replaced(fused(&[("transBatchA", 1)], 1.0)).unwrap_err().contains("batch"));
        let mut wrong = fused(&[], 1.0);
        wrong.input.pop();
        assert!(replaced(wrong).unwrap_err().contains("two inputs"));
    }

    #[test]
    fn a_frame_has_a_limit() {
        let grow = |stride: i64| {
            let mut node = operator("ConvTranspose", vec!["durations".to_owned()], "out");
            node.attribute.push(AttributeProto {
                name: Some("strides".to_owned()),
                ints: vec![stride],
                ..AttributeProto::default()
            });
            let mut resize = operator("Resize", vec!["out".to_owned()], "more");
            resize.input.extend([String::new(), "scales".to_owned()]);
            let scales = TensorProto {
                name: Some("scales".to_owned()),
                raw_data: Some([1.0_f32, 300.0].map(f32::to_le_bytes).concat().into()),
                ..TensorProto::default()
            };
            let node = vec![node, resize];
            let graph = GraphProto { node, initializer: vec![scales], ..GraphProto::default() };
            check_rates(&graph, "durations")
        };
        assert_eq!(grow(2), Ok(()));
        assert!(grow(30).unwrap_err().contains("9000 numbers"));
        assert!(grow(1 << 40).is_err() && grow(-1).is_err());
    }
}
