//! Places at which a run of a network can be divided into pieces of work.

use std::collections::{BTreeSet, HashMap, HashSet};

use rten_onnx::onnx::{GraphProto, NodeProto};

/// Divides the work from `source` to `output`: places between operators that take the most time,
/// in order, each as the names of the values that are needed behind it. Of all places between two
/// such operators, it is the one with the fewest values. What depends on `later` is left out.
pub(crate) fn places(
    graph: &GraphProto,
    source: &str,
    output: &str,
    later: &[&str],
) -> Vec<Vec<String>> {
    let mut behind = HashSet::from([source]);
    let mut later: HashSet<&str> = later.iter().copied().collect();
    let mut nodes: Vec<&NodeProto> = Vec::new();
    for node in &graph.node {
        let depends_on =
            |values: &HashSet<&str>| node.input.iter().any(|input| values.contains(input.as_str()));
        if depends_on(&later) {
            later.extend(node.output.iter().map(String::as_str));
        }
        if depends_on(&behind) {
            behind.extend(node.output.iter().map(String::as_str));
            nodes.push(node);
        }
    }
    let mut needed = HashSet::from([output]);
    nodes.reverse();
    nodes.retain(|node| {
        let is_needed = node.output.iter().any(|output| needed.contains(output.as_str()));
        if is_needed {
            needed.extend(node.input.iter().map(String::as_str));
        }
        is_needed
    });
    nodes.reverse();
    let mut last_use: HashMap<&str, usize> = HashMap::new();
    for (index, node) in nodes.iter().enumerate() {
        last_use.extend(node.input.iter().map(|input| (input.as_str(), index)));
    }
    let (mut places, mut alive): (Vec<Vec<String>>, BTreeSet<&str>) = Default::default();
    // The values of the best place since the last such operator.
    let mut best: Option<Vec<&str>> = None;
    let is_later = |node: &NodeProto| node.output.iter().any(|it| later.contains(it.as_str()));
    for (index, node) in nodes.iter().enumerate().filter(|(_, node)| !is_later(node)) {
        let is_long = ["Conv", "MatMul", "LSTM", "Gemm"]
            .iter()
            .any(|op| node.op_type.as_deref().is_some_and(|it| it.contains(op)));
        if is_long && let Some(best) = best.take() {
            places.push(best.into_iter().map(str::to_owned).collect());
        }
        alive.extend(node.output.iter().map(String::as_str));
        alive.retain(|value| last_use.get(value).is_some_and(|last| *last > index));
        let is_better = best.as_ref().is_some_and(|best| alive.len() < best.len());
        if is_long || is_better {
            best = Some(alive.iter().copied().collect());
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_divided_where_few_values_are_needed() {
        let op = |op: &str, inputs: &[&str], output: &str| NodeProto {
            op_type: Some(op.to_owned()),
            input: inputs.iter().map(|input| (*input).to_owned()).collect(),
            output: vec![output.to_owned()],
            ..NodeProto::default()
        };
        let node = vec![
            op("Conv", &["text"], "before"),
            op("Expand", &["durations", "before"], "frames"),
            op("Conv", &["frames"], "a"),
            op("Relu", &["a"], "b"),
            op("Split", &["b"], "c"),
            op("Add", &["b", "c"], "d"),
            op("Relu", &["d"], "unused"),
            op("Conv", &["d"], "e"),
            op("Add", &["d", "e"], "f"),
            op("ConvTranspose", &["f"], "out"),
        ];
        let graph = GraphProto { node, ..GraphProto::default() };
        assert_eq!(places(&graph, "durations", "out", &[]), [["a"], ["f"]]);
        assert_eq!(places(&graph, "durations", "out", &["f"]), [["a"]]);
        assert_eq!(places(&graph, "nothing", "out", &[]), [[""; 0]; 0]);
    }
}
