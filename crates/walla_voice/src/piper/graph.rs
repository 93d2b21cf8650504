//! Finds the stages of a voice in the graph of its network. Names of values differ between
//! exporters, the structure does not.

use std::collections::HashMap;

use rten_onnx::onnx::{GraphProto, ModelProto, NodeProto};

/// Bounds of a decoder: 256 samples and 11 frames are usual.
const MAX_HOP: usize = 8192;
const MAX_CONTEXT: f64 = 256.0;
const MAX_CHANNELS: i64 = 4096;
const MAX_NODES: usize = 100_000;

/// Facts of the network for the stages.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Layout {
    pub names: Names,
    /// Numbers of a latent frame.
    pub channels: usize,
    /// Samples of a frame.
    pub hop: usize,
    /// Frames on both sides on which the samples of a frame depend. `None`: all may.
    pub context: Option<usize>,
    pub has_speakers: bool,
}

/// Names of values.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Names {
    pub durations: String,
    pub duration_noise: String,
    pub latent_noise: String,
    pub latent: String,
    pub output: String,
}

impl Layout {
    pub(super) fn find(bytes: &[u8]) -> Result<Self, String> {
        let model = ModelProto::parse_buf(bytes).map_err(|error| error.to_string())?;
        let graph = model.graph.ok_or("it has no graph")?;
        Graph::new(&graph)?.layout()
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
        let (hop, context) = self.decoder(latent, output)?;
        Ok(Layout {
            names: Names {
                durations: durations.to_owned(),
                duration_noise: duration_noise.to_owned(),
                latent_noise: latent_noise.to_owned(),
                latent: latent.to_owned(),
                output: output.to_owned(),
            },
            channels,
            hop,
            context,
            has_speakers: inputs().any(|input| input == "sid"),
        })
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

    /// Samples of a frame, and the frames on each side on which they depend.
    fn decoder(&self, latent: &str, output: &str) -> Result<(usize, Option<usize>), String> {
        let mut reaches = HashMap::from([(latent, Reach { rate: 1, frames: 0.0 })]);
        let mut is_local = true;
        for node in &self.graph.node {
            let inputs = node.input.iter().filter_map(|input| reaches.get(input.as_str()));
            let Some(mut reach) = inputs.copied().reduce(Reach::max) else { continue };
            is_local &= reach.apply(node, self)?;
            for output in &node.output {
                reaches.insert(output, reach);
            }
        }
        let reach = reaches.get(output).ok_or_else(|| unknown("way to its output"))?;
        let context = (is_local && reach.frames <= MAX_CONTEXT).then(|| reach.frames.ceil());
        Ok((reach.rate, context.map(|frames| frames as usize)))
    }
}

/// Dependence of a value on latent frames.
#[derive(Clone, Copy, Debug)]
struct Reach {
    /// Numbers for each frame.
    rate: usize,
    /// Frames before or behind, the larger of both.
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
            | "Sin" | "Pow" | "Unsqueeze" | "Squeeze" | "Identity" | "Cast" | "Clip" | "Sum" => {}
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
