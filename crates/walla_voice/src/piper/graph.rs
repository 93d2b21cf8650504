//! Finds the stages of a voice in the graph of its network. Names of values differ between
//! exporters, the structure does not.

use std::collections::{HashMap, HashSet};

use rten_onnx::onnx::{GraphProto, ModelProto, NodeProto, TensorProto};

use super::config::Config;
use super::decoder::Level;
use crate::onnx;

/// Bounds of a decoder: 256 samples and 11 frames are usual.
const MAX_HOP: usize = 8192;
const MAX_CONTEXT: f64 = 256.0;
const MAX_CHANNELS: i64 = 4096;
const MAX_LEVELS: usize = 8;
const MAX_NODES: usize = 100_000;

/// Facts of the network for the stages.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Layout {
    pub names: Names,
    /// The decoder: the input of the first level are the latent frames.
    pub levels: Vec<Level<String>>,
    /// Numbers of a latent frame.
    pub channels: usize,
    /// Samples of a frame.
    pub hop: usize,
    /// Frames of noise on both sides on which a latent frame depends. `None`: all may.
    pub flow_context: Option<usize>,
    /// Places at which stage A can be divided.
    pub places: Vec<Vec<String>>,
    pub has_speakers: bool,
    /// Number of symbols, and of speakers. `None`: not known.
    rows: [Option<i64>; 2],
}

/// Names of values.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Names {
    pub durations: String,
    pub duration_noise: String,
    pub latent_noise: String,
    pub output: String,
}

impl Layout {
    pub(super) fn find(bytes: &[u8]) -> Result<Self, String> {
        let model = ModelProto::parse_buf(bytes).map_err(|error| error.to_string())?;
        let graph = model.graph.ok_or("it has no graph")?;
        Graph::new(&graph)?.layout()
    }

    /// Checks that the settings belong to the network.
    pub(super) fn check(&self, config: &Config) -> Result<(), String> {
        let [symbols, speakers] = self.rows;
        let largest = config.symbols.values().flatten().max().map_or(0, |id| i64::from(*id));
        if let Some(count) = symbols.filter(|count| *count <= largest) {
            return Err(format!(
                "its settings are of another voice: {count} symbols, and phoneme_id_map has {largest}"
            ));
        }
        let named = i64::from(config.speakers);
        let speakers = if self.has_speakers { speakers } else { Some(1) };
        match speakers.filter(|count| *count < named) {
            Some(count) => Err(format!(
                "its settings are of another voice: {count} speakers, and num_speakers is {named}"
            )),
            None => Ok(()),
        }
    }
}

/// A graph with the node that computes each value.
struct Graph<'a> {
    graph: &'a GraphProto,
    producers: HashMap<&'a str, usize>,
}

impl<'a> Graph<'a> {
    fn new(graph: &'a GraphProto) -> Result<Self, String> {
        let count = graph.node.len();
        if count > MAX_NODES {
            return Err(format!("{count} nodes, at most {MAX_NODES}"));
        }
        let mut producers = HashMap::new();
        for (index, node) in graph.node.iter().enumerate() {
            for output in &node.output {
                producers.insert(output.as_str(), index);
            }
        }
        Ok(Self { graph, producers })
    }

    fn layout(&self) -> Result<Layout, String> {
        let inputs = || self.graph.input.iter().filter_map(|input| input.name.as_deref());
        for name in ["input", "input_lengths", "scales"] {
            if !inputs().any(|input| input == name) {
                return Err(format!("no Piper voice: it has no input {name:?}"));
            }
        }
        let durations = self.only("Ceil")?;
        let noises = self.of_type("RandomNormalLike");
        let (latent_noises, duration_noises): (Vec<_>, Vec<_>) =
            noises.into_iter().partition(|noise| self.depends(noise, durations));
        let [latent_noise] = latent_noises[..] else { return Err(unknown("noise of frames")) };
        let [duration_noise] = duration_noises[..] else {
            return Err(unknown("noise of durations"));
        };
        let output = self.graph.output.first().and_then(|output| output.name.as_deref());
        let output = output.ok_or("it has no output")?;
        let (latent, channels) = self.latent(latent_noise)?;
        let (levels, hop) = self.levels(latent, channels, output)?;
        let of_noise = self.reaches(latent_noise)?;
        let flow_context = of_noise.get(latent).and_then(|reach| context(*reach, 1));
        let noises = [duration_noise, latent_noise];
        let places = onnx::places(self.graph, "input", latent, &noises);
        Ok(Layout {
            names: Names {
                durations: durations.to_owned(),
                duration_noise: duration_noise.to_owned(),
                latent_noise: latent_noise.to_owned(),
                output: output.to_owned(),
            },
            levels,
            channels,
            hop,
            flow_context,
            places,
            has_speakers: inputs().any(|input| input == "sid"),
            rows: ["input", "sid"].map(|input| self.rows(input)),
        })
    }

    /// Rows of the table whose rows an input names.
    fn rows(&self, input: &str) -> Option<i64> {
        let is_table = |node: &&NodeProto| {
            op_type(node) == "Gather" && node.input.get(1).is_some_and(|rows| rows == input)
        };
        let table = self.graph.node.iter().find(is_table)?;
        self.dims(table.input.first()?)?.first().copied()
    }

    /// Outputs of the nodes of a type.
    fn of_type(&self, op: &str) -> Vec<&'a str> {
        let nodes = self.graph.node.iter().filter(|node| op_type(node) == op);
        nodes.filter_map(|node| node.output.first()).map(String::as_str).collect()
    }

    fn only(&self, op: &str) -> Result<&'a str, String> {
        match self.of_type(op)[..] {
            [output] => Ok(output),
            ref outputs => Err(format!("no Piper voice: {} operators {op}", outputs.len())),
        }
    }

    fn producer(&self, value: &str) -> Option<&'a NodeProto> {
        self.graph.node.get(*self.producers.get(value)?)
    }

    /// Whether `value` is computed from `source`.
    fn depends(&self, value: &str, source: &str) -> bool {
        let (mut values, mut seen) = (vec![value], vec![false; self.graph.node.len()]);
        while let Some(value) = values.pop() {
            if value == source {
                return true;
            }
            let Some(&index) = self.producers.get(value) else { continue };
            let Some(seen) = seen.get_mut(index) else { continue };
            if !std::mem::replace(seen, true)
                && let Some(node) = self.graph.node.get(index)
            {
                values.extend(node.input.iter().map(String::as_str));
            }
        }
        false
    }

    /// The input of the decoder's first convolution, which precedes the first transposed one, and
    /// its number of channels.
    fn latent(&self, noise: &str) -> Result<(&'a str, usize), String> {
        let first = self.graph.node.iter().find(|node| op_type(node) == "ConvTranspose");
        let mut node = first.ok_or_else(|| unknown("decoder"))?;
        // A chain of a few nodes; the bound is for a cycle in a damaged file.
        for _ in 0..16 {
            let from_noise = node.input.iter().find(|input| self.depends(input, noise));
            let input = from_noise.ok_or_else(|| unknown("decoder"))?;
            if op_type(node) == "Conv" {
                let weights = node.input.get(1).ok_or_else(|| unknown("decoder"))?;
                let dims = self.dims(weights).ok_or_else(|| unknown("decoder"))?;
                let channels = dims.get(1).filter(|count| (1..=MAX_CHANNELS).contains(*count));
                let channels = channels.ok_or_else(|| unknown("number of channels"))?;
                return Ok((input, *channels as usize));
            }
            node = self.producer(input).ok_or_else(|| unknown("decoder"))?;
        }
        Err(unknown("decoder"))
    }

    fn dims(&self, weights: &str) -> Option<&'a [i64]> {
        let is_named = |name: &Option<String>| name.as_deref() == Some(weights);
        let weights = self.graph.initializer.iter().find(|weights| is_named(&weights.name))?;
        Some(&weights.dims)
    }

    /// The levels of the decoder, and the samples of a frame. A level ends before each transposed
    /// convolution but the first one.
    fn levels(
        &self,
        latent: &str,
        channels: usize,
        output: &str,
    ) -> Result<(Vec<Level<String>>, usize), String> {
        let of_latent = self.reaches(latent)?;
        let mut ends: Vec<&str> = Vec::new();
        for node in self.graph.node.iter().filter(|node| op_type(node) == "ConvTranspose") {
            if let Some(input) = node.input.first().map(String::as_str)
                && of_latent.get(input).is_some_and(|(reach, _)| reach.rate > 1)
                && self.is_passed_by_all(input, &of_latent)
            {
                ends.push(input);
            }
        }
        ends.truncate(MAX_LEVELS - 1);
        ends.push(output);
        let (mut levels, mut input, mut channels, mut rate) = (Vec::new(), latent, channels, 1);
        for end in ends {
            let reaches = self.reaches(input)?;
            let reach = reaches.get(end).ok_or_else(|| unknown("way to its output"))?;
            let context = context(*reach, rate);
            levels.push(Level { input: input.to_owned(), channels, rate, context });
            rate *= reach.0.rate;
            if end != output {
                channels = self.channels(end).ok_or_else(|| unknown("decoder"))?;
            }
            input = end;
        }
        Ok((levels, rate))
    }

    /// The attribute `axis` of a node.
    fn axis(&self, node: &NodeProto) -> Option<i64> {
        node.attribute.iter().find(|it| it.name.as_deref() == Some("axis"))?.i
    }

    /// A constant that is one integer.
    fn integer(&self, name: &str) -> Option<i64> {
        let is_named = |tensor: &&TensorProto| tensor.name.as_deref() == Some(name);
        let tensor = self.graph.initializer.iter().find(is_named).or_else(|| {
            self.producer(name)?.attribute.iter().find_map(|attribute| attribute.t.as_ref())
        })?;
        match (&tensor.int64_data[..], &tensor.raw_data) {
            (&[integer], _) => Some(integer),
            (_, Some(bytes)) => Some(i64::from_le_bytes(bytes.borrow()[..].try_into().ok()?)),
            _ => None,
        }
    }

    /// Rows of the input of a transposed convolution.
    fn channels(&self, input: &str) -> Option<usize> {
        let of_input = |node: &&NodeProto| {
            op_type(node) == "ConvTranspose" && node.input.first().is_some_and(|it| it == input)
        };
        let node = self.graph.node.iter().find(of_input)?;
        let channels = *self.dims(node.input.get(1)?)?.first()?;
        (1..=MAX_CHANNELS).contains(&channels).then_some(channels as usize)
    }

    /// Whether everything behind `value` depends on the latent frames by it alone.
    fn is_passed_by_all(&self, value: &str, of_latent: &Reaches<'_>) -> bool {
        let mut behind = HashSet::from([value]);
        self.graph.node.iter().all(|node| {
            let is_behind = |input: &String| behind.contains(input.as_str());
            if !node.input.iter().any(is_behind) {
                return true;
            }
            let is_latent = |input: &String| of_latent.contains_key(input.as_str());
            let is_passed = node.input.iter().all(|input| is_behind(input) || !is_latent(input));
            behind.extend(node.output.iter().map(String::as_str));
            is_passed
        })
    }

    /// How all values depend on `source`, and whether only on numbers near their own.
    fn reaches<'b>(&'b self, source: &'b str) -> Result<Reaches<'b>, String> {
        let mut reaches = HashMap::from([(source, (Reach { rate: 1, frames: 0.0 }, true))]);
        // Shapes depend on no number.
        for node in self.graph.node.iter().filter(|node| op_type(node) != "Shape") {
            let inputs = node.input.iter().filter_map(|input| reaches.get(input.as_str()));
            let both = |a: (Reach, bool), b: (Reach, bool)| (a.0.max(b.0), a.1 && b.1);
            let Some((mut reach, mut is_local)) = inputs.copied().reduce(both) else { continue };
            is_local &= reach.apply(node, self)?;
            for output in &node.output {
                reaches.insert(output, (reach, is_local));
            }
        }
        Ok(reaches)
    }
}

/// The context in frames, of a value with `rate` numbers for each.
fn context((reach, is_local): (Reach, bool), rate: usize) -> Option<usize> {
    let frames = (reach.frames / rate as f64).ceil();
    (is_local && frames <= MAX_CONTEXT).then_some(frames as usize)
}

/// How values depend on another one.
type Reaches<'a> = HashMap<&'a str, (Reach, bool)>;

/// Dependence of a value on an earlier one.
#[derive(Clone, Copy, Debug)]
struct Reach {
    /// Numbers for each number of the earlier value.
    rate: usize,
    /// Numbers of it before or behind, the larger of both.
    frames: f64,
}

impl Reach {
    fn max(self, other: Self) -> Self {
        Self { rate: self.rate.max(other.rate), frames: self.frames.max(other.frames) }
    }

    /// Adds the reach of an operator. Returns whether it is local.
    fn apply(&mut self, node: &NodeProto, graph: &Graph<'_>) -> Result<bool, String> {
        let ints = |name: &str| {
            let attribute = node.attribute.iter().find(|a| a.name.as_deref() == Some(name));
            attribute.map_or(&[][..], |attribute| &attribute.ints)
        };
        // Of one axis: time.
        let of_time = |name: &str, default: i64| {
            let value = ints(name).first().copied().unwrap_or(default);
            usize::try_from(value).ok().filter(|value| *value <= MAX_HOP)
        };
        let wrong = || unknown("convolution");
        let kernel = || {
            let kernel = of_time("kernel_shape", 0).filter(|kernel| *kernel > 0);
            let weights = || node.input.get(1).and_then(|weights| graph.dims(weights)?.get(2));
            kernel.or_else(|| usize::try_from(*weights()?).ok().filter(|size| *size <= MAX_HOP))
        };
        match op_type(node) {
            "Conv" => {
                let dilation = of_time("dilations", 1).ok_or_else(wrong)?;
                let kernel = kernel().ok_or_else(wrong)?;
                if of_time("strides", 1) != Some(1) || kernel == 0 {
                    return Err(wrong());
                }
                let width = (kernel - 1) * dilation;
                let before = of_time("pads", 0).ok_or_else(wrong)?;
                let most = before.max(width.saturating_sub(before));
                self.frames += most as f64 / self.rate as f64;
            }
            "ConvTranspose" => {
                let stride =
                    of_time("strides", 1).filter(|stride| *stride > 0).ok_or_else(wrong)?;
                let kernel = kernel().ok_or_else(wrong)?;
                let before = of_time("pads", 0).ok_or_else(wrong)?;
                self.rate = self
                    .rate
                    .checked_mul(stride)
                    .filter(|hop| *hop <= MAX_HOP)
                    .ok_or_else(wrong)?;
                let most = before.max(kernel.saturating_sub(before + 1));
                self.frames += most as f64 / self.rate as f64;
            }
            "Add" | "Sub" | "Mul" | "Div" | "LeakyRelu" | "Relu" | "Tanh" | "Sigmoid" | "Snake"
            | "Sin" | "Pow" | "Unsqueeze" | "Squeeze" | "Identity" | "Cast" | "Clip" | "Sum"
            | "Neg" | "Exp" => {}
            // Between the rows of a frame.
            "Split" | "Concat" => return Ok(graph.axis(node) == Some(1)),
            "Slice" => {
                let axes = node.input.get(3).and_then(|axes| graph.integer(axes));
                return Ok(axes == Some(1));
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

fn op_type(node: &NodeProto) -> &str {
    node.op_type.as_deref().unwrap_or_default()
}

fn unknown(part: &str) -> String {
    format!("no Piper voice: the {part} of its network was not found")
}
