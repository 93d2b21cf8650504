//! Lowers a model specification to a program of device ops.

use walla_device::{
    BufferId, CacheId, CacheLayer, DeltaShape, HeadShape, KeyValue, Norm, Op, Phase, Program, Slot,
    SlotDesc, op, step::StepLayout,
};
use walla_model::ModelSpec;
use walla_model::spec::{
    Activation, Attention, DeltaNet, DenseFeedForward, Experts, FeedForward, Keys, Layer,
    LayerInput, LayerInputs, Linear, Mixer, RmsNorm, ShortConv,
};

use crate::error::ExecError;
use crate::load::Weights;
use crate::options::Target;

/// State that a device must keep, for each layer of a model that has its own.
pub(crate) fn cache_layers(model: &ModelSpec, weights: &Weights) -> Vec<CacheLayer> {
    let keeps = |layer: &Layer| match &layer.mixer {
        Mixer::Attention(a) => a.own_keys().map(|_| CacheLayer::Kv {
            kv_heads: a.kv_heads as u32,
            head_dim: a.head_dim as u32,
            rope: a.rope.and_then(|rope| weights.ropes.get(rope).copied()),
        }),
        Mixer::ShortConv(c) => {
            Some(CacheLayer::ShortConv { width: c.width as u32, taps: c.taps as u32 })
        }
        Mixer::DeltaNet(d) => Some(CacheLayer::DeltaNet(delta_shape(d))),
    };
    model.layers.iter().filter_map(keeps).collect()
}

/// The layer of the cache that layer `index` of a model uses.
fn cache_layer(model: &ModelSpec, index: usize) -> u32 {
    let shared = |layer: &Layer| match &layer.mixer {
        Mixer::Attention(a) => match a.keys {
            Keys::Own(_) => None,
            Keys::Of(owner) => Some(owner),
        },
        Mixer::ShortConv(_) | Mixer::DeltaNet(_) => None,
    };
    let owner = model.layers.get(index).and_then(shared).unwrap_or(index);
    let earlier = model.layers.iter().take(owner);
    earlier.filter(|layer| shared(layer).is_none()).count() as u32
}

fn delta_shape(d: &DeltaNet) -> DeltaShape {
    DeltaShape {
        key_heads: d.key_heads as u32,
        value_heads: d.value_heads as u32,
        head_dim: d.head_dim as u32,
        taps: d.taps as u32,
    }
}

/// The buffers that every program of an executor shares.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffers {
    pub cache: CacheId,
    pub step: BufferId,
    pub results: BufferId,
    pub logits: BufferId,
    pub masks: Option<BufferId>,
}

impl Target {
    /// Numbers of a row of results.
    pub(crate) const fn row_numbers(self, model: &ModelSpec) -> usize {
        match self {
            Self::Tokens => model.vocab,
            Self::Hidden => model.width,
        }
    }
}

/// Shape bucket of a program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket {
    /// Rows.
    pub rows: u32,
    /// Outputs.
    pub outputs: u32,
    /// Longest context in tokens.
    pub context: u32,
    /// Prefill or decode.
    pub phase: Phase,
    /// Whether each row of a step belongs to a different sequence.
    pub pure_decode: bool,
    /// Result of each output.
    pub target: Target,
}

/// The forward pass of `model` for one bucket.
///
/// # Errors
/// [`ExecError::Options`] if `weights` belong to another model.
pub(crate) fn build(
    model: &ModelSpec,
    weights: &Weights,
    bucket: Bucket,
    layout: StepLayout,
    buffers: Buffers,
) -> Result<Program, ExecError> {
    let context = bucket.context;
    let mut lowering =
        Lowering { weights, context, slots: Vec::new(), kept: 0, inputs: None, ops: Vec::new() };
    let x = lowering.slot(model.width);
    lowering.ops.push(Op::Embed(op::Embed {
        table: weights.matrix(&model.embedding)?,
        scale: model.embedding_scale,
        x,
    }));
    if let Some(inputs) = &model.layer_inputs {
        lowering.layer_inputs(inputs, x)?;
    }
    lowering.kept = lowering.slots.len();
    for (index, layer) in model.layers.iter().enumerate() {
        lowering.layer(layer, (index, cache_layer(model, index)), x)?;
    }
    let norm = weights.norm(&model.output_norm)?;
    match bucket.target {
        Target::Hidden => lowering.ops.push(Op::Hidden(op::Hidden { x, norm })),
        Target::Tokens => {
            lowering.ops.push(Op::Head(op::Head {
                x,
                norm,
                linear: weights.linear(&model.head)?,
                soft_cap: model.soft_cap,
                suppressed: model.suppressed.clone(),
            }));
            lowering.ops.push(Op::Sample);
        }
    }
    Ok(Program {
        name: format!(
            "{:?} {} rows{}, contexts to {}",
            bucket.phase,
            bucket.rows,
            if bucket.pure_decode { ", each of another sequence" } else { "" },
            bucket.context
        ),
        phase: bucket.phase,
        pure_decode: bucket.pure_decode,
        max_rows: bucket.rows,
        max_outputs: bucket.outputs,
        max_context: bucket.context,
        vocab: bucket.target.row_numbers(model) as u32,
        slots: lowering.slots.iter().map(|&width| SlotDesc { width }).collect(),
        cache: buffers.cache,
        step: buffers.step,
        layout,
        results: buffers.results,
        logits: buffers.logits,
        masks: buffers.masks,
        ops: lowering.ops,
    })
}

struct Lowering<'a> {
    weights: &'a Weights,
    /// Longest context in tokens.
    context: u32,
    /// Width of each slot. The first `kept` hold the hidden state and the inputs of all layers; the
    /// others are reused by every layer.
    slots: Vec<u32>,
    kept: usize,
    /// The inputs of all layers.
    inputs: Option<Slot>,
    ops: Vec<Op>,
}

impl Lowering<'_> {
    fn slot(&mut self, width: usize) -> Slot {
        self.slots.push(width as u32);
        Slot(self.slots.len() as u32 - 1)
    }

    /// The `nth` scratch slot of this width.
    fn scratch(&mut self, width: usize, nth: usize) -> Slot {
        let of_width = |(_, w): &(usize, &u32)| **w == width as u32;
        let found = self.slots.iter().enumerate().skip(self.kept).filter(of_width).nth(nth);
        match found {
            Some((index, _)) => Slot(index as u32),
            None => self.slot(width),
        }
    }

    /// Layer `index` of the model, which uses layer `cached` of the cache.
    fn layer(
        &mut self,
        layer: &Layer,
        (index, cached): (usize, u32),
        x: Slot,
    ) -> Result<(), ExecError> {
        let (y, output) = match &layer.mixer {
            Mixer::Attention(a) => (self.attention(layer, a, cached, x)?, &a.output),
            Mixer::ShortConv(c) => (self.short_conv(layer, c, cached, x)?, &c.output),
            Mixer::DeltaNet(d) => (self.delta_net(layer, d, cached, x)?, &d.output),
        };
        self.project(y, output, layer.mixer_post_norm.as_ref(), x)?;
        match &layer.feed_forward {
            FeedForward::Dense(dense) => self.dense(layer, dense, x)?,
            FeedForward::Experts(experts) => self.experts(layer, experts, x)?,
        }
        if let Some(input) = &layer.input {
            self.layer_input(input, index, x)?;
        }
        // Every layer ends with a projection to the hidden state, except plain mixtures of experts.
        match self.ops.last_mut() {
            Some(Op::Project(op::Project { scale, .. })) => *scale = layer.scale,
            _ if layer.scale == 1.0 => {}
            _ => return Err(ExecError::Options("a scale after a mixture of experts".to_owned())),
        }
        Ok(())
    }

    /// `x += post(linear y)`.
    fn project(
        &mut self,
        y: Slot,
        linear: &Linear,
        post_norm: Option<&RmsNorm>,
        x: Slot,
    ) -> Result<(), ExecError> {
        let (linear, post_norm) = (self.weights.linear(linear)?, self.norm(post_norm)?);
        self.ops.push(Op::Project(op::Project { y, linear, post_norm, scale: 1.0, x }));
        Ok(())
    }

    fn norm(&self, norm: Option<&RmsNorm>) -> Result<Option<Norm>, ExecError> {
        norm.map(|norm| self.weights.norm(norm)).transpose()
    }

    /// Computes the inputs of all layers from the embedded tokens.
    fn layer_inputs(&mut self, inputs: &LayerInputs, x: Slot) -> Result<(), ExecError> {
        let e = self.slot(inputs.table.cols);
        self.inputs = Some(e);
        self.ops.push(Op::LayerInputs(op::LayerInputs {
            x,
            table: self.weights.matrix(&inputs.table)?,
            table_scale: inputs.table_scale,
            projection: self.weights.linear(&inputs.projection)?,
            norm: self.weights.norm(&inputs.norm)?,
            e,
        }));
        Ok(())
    }

    /// Adds the input of layer `index` to the hidden state.
    fn layer_input(&mut self, input: &LayerInput, index: usize, x: Slot) -> Result<(), ExecError> {
        let missing = || ExecError::Options("inputs of layers are missing".to_owned());
        let e = self.inputs.ok_or_else(missing)?;
        let width = input.gate.matrix.rows;
        let h = self.scratch(width, 0);
        self.ops.push(Op::GateInput(op::GateInput {
            x,
            linear: self.weights.linear(&input.gate)?,
            activation: input.activation,
            e,
            first: (index * width) as u32,
            h,
        }));
        self.project(h, &input.output, Some(&input.post_norm), x)
    }

    /// `y *= activation(linear norm(x))`.
    fn gate(
        &mut self,
        (x, norm): (Slot, &RmsNorm),
        linear: &Linear,
        activation: Activation,
        y: Slot,
    ) -> Result<(), ExecError> {
        let (norm, linear) = (self.weights.norm(norm)?, self.weights.linear(linear)?);
        self.ops.push(Op::Gate(op::Gate { x, norm, linear, activation, y }));
        Ok(())
    }

    fn gate_up(
        &mut self,
        layer: &Layer,
        ff: &DenseFeedForward,
        x: Slot,
    ) -> Result<Slot, ExecError> {
        let h = self.scratch(ff.gate.matrix.rows, 0);
        self.ops.push(Op::GateUp(op::GateUp {
            x,
            norm: self.weights.norm(&layer.feed_forward_norm)?,
            gate: self.weights.linear(&ff.gate)?,
            up: self.weights.linear(&ff.up)?,
            activation: ff.activation,
            h,
        }));
        Ok(h)
    }

    fn dense(&mut self, layer: &Layer, ff: &DenseFeedForward, x: Slot) -> Result<(), ExecError> {
        let h = self.gate_up(layer, ff, x)?;
        self.project(h, &ff.down, layer.feed_forward_post_norm.as_ref(), x)
    }

    fn experts(&mut self, layer: &Layer, experts: &Experts, x: Slot) -> Result<(), ExecError> {
        if layer.feed_forward_post_norm.is_some() {
            let why = "a norm after a mixture of experts is not supported";
            return Err(ExecError::Options(why.to_owned()));
        }
        // The shared expert reads the hidden state before the mixture is added to it.
        let mut shared = None;
        if let Some(expert) = &experts.shared {
            let h = self.gate_up(layer, &expert.network, x)?;
            if let Some(weight) = &expert.weight {
                let input = (x, &layer.feed_forward_norm);
                self.gate(input, weight, Activation::Sigmoid, h)?;
            }
            shared = Some((h, &expert.network.down));
        }
        let selection_bias = experts.selection_bias.as_ref();
        self.ops.push(Op::Experts(op::Experts {
            x,
            norm: self.weights.norm(&layer.feed_forward_norm)?,
            router: self.weights.matrix(&experts.router)?,
            selection_bias: selection_bias.map(|bias| self.weights.vector(bias)).transpose()?,
            score: experts.score,
            used: experts.used as u32,
            gate: self.weights.matrix(&experts.gate)?,
            up: self.weights.matrix(&experts.up)?,
            down: self.weights.matrix(&experts.down)?,
            activation: experts.activation,
        }));
        if let Some((y, linear)) = shared {
            self.project(y, linear, None, x)?;
        }
        Ok(())
    }

    fn attention(
        &mut self,
        layer: &Layer,
        a: &Attention,
        index: u32,
        x: Slot,
    ) -> Result<Slot, ExecError> {
        let shape = HeadShape {
            heads: a.heads as u32,
            kv_heads: a.kv_heads as u32,
            head_dim: a.head_dim as u32,
        };
        let q = self.scratch(a.heads * a.head_dim, 0);
        let out = self.scratch(a.heads * a.head_dim, 1);
        let keys = match a.own_keys() {
            Some(own) => {
                let value_norm = own.value_norm_eps;
                let value_norm = value_norm.map(|eps| self.weights.plain_norm(a.head_dim, eps));
                Some(KeyValue {
                    key: self.weights.linear(&own.key)?,
                    key_norm: self.norm(own.key_norm.as_ref())?,
                    value: self.weights.linear(&own.value)?,
                    value_norm: value_norm.transpose()?,
                })
            }
            None => None,
        };
        self.ops.push(Op::Qkv(op::Qkv {
            x,
            norm: self.weights.norm(&layer.mixer_norm)?,
            query: self.weights.linear(&a.query)?,
            query_norm: self.norm(a.query_norm.as_ref())?,
            keys,
            rope: a.rope.and_then(|rope| self.weights.ropes.get(rope).copied()),
            shape,
            layer: index,
            q,
        }));
        self.ops.push(Op::Attention(op::Attention {
            q,
            shape,
            layer: index,
            scale: a.scale,
            // Devices that do not scale by position still run the model in such contexts.
            position_scale: a.position_scale.filter(|scale| !scale.is_one_within(self.context)),
            window: a.window,
            out,
        }));
        if let Some(gate) = &a.gate {
            self.gate((x, &layer.mixer_norm), gate, Activation::Sigmoid, out)?;
        }
        Ok(out)
    }

    fn delta_net(
        &mut self,
        layer: &Layer,
        d: &DeltaNet,
        index: u32,
        x: Slot,
    ) -> Result<Slot, ExecError> {
        let out = self.scratch(d.value_heads * d.head_dim, 0);
        self.ops.push(Op::DeltaNet(op::DeltaNet {
            x,
            norm: self.weights.norm(&layer.mixer_norm)?,
            shape: delta_shape(d),
            input: self.weights.linear(&d.input)?,
            kernel: self.weights.vector(&d.kernel)?,
            alpha: self.weights.linear(&d.alpha)?,
            beta: self.weights.linear(&d.beta)?,
            decay: self.weights.vector(&d.decay)?,
            step_bias: self.weights.vector(&d.step_bias)?,
            eps: d.eps,
            head_norm: self.weights.norm(&d.norm)?,
            layer: index,
            out,
        }));
        self.gate((x, &layer.mixer_norm), &d.gate, Activation::Silu, out)?;
        Ok(out)
    }

    fn short_conv(
        &mut self,
        layer: &Layer,
        c: &ShortConv,
        index: u32,
        x: Slot,
    ) -> Result<Slot, ExecError> {
        let [b, gate, value] = &c.input;
        let out = self.scratch(c.width, 0);
        self.ops.push(Op::ShortConv(op::ShortConv {
            x,
            norm: self.weights.norm(&layer.mixer_norm)?,
            input: [
                self.weights.linear(b)?,
                self.weights.linear(gate)?,
                self.weights.linear(value)?,
            ],
            kernel: self.weights.vector(&c.kernel)?,
            taps: c.taps as u32,
            layer: index,
            out,
        }));
        Ok(out)
    }
}
