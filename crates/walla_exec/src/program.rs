//! Lowers a model specification to a program of device ops.

use walla_device::{
    BufferId, CacheId, CacheLayer, DeltaShape, HeadShape, Op, Phase, Program, Slot, SlotDesc,
    step::StepLayout,
};
use walla_model::ModelSpec;
use walla_model::spec::{
    Activation, Attention, DeltaNet, DenseFeedForward, Experts, FeedForward, Layer, Linear, Mixer,
    RmsNorm, ShortConv,
};

use crate::error::ExecError;
use crate::load::Weights;

/// State that a device must keep for each layer of a model.
pub(crate) fn cache_layers(model: &ModelSpec, weights: &Weights) -> Vec<CacheLayer> {
    let keeps = |layer: &Layer| match &layer.mixer {
        Mixer::Attention(a) => CacheLayer::Kv {
            kv_heads: a.kv_heads as u32,
            head_dim: a.head_dim as u32,
            rope: a.rope.and_then(|rope| weights.ropes.get(rope).copied()),
        },
        Mixer::ShortConv(c) => CacheLayer::ShortConv { width: c.width as u32, taps: c.taps as u32 },
        Mixer::DeltaNet(d) => CacheLayer::DeltaNet(delta_shape(d)),
    };
    model.layers.iter().map(keeps).collect()
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
    let mut lowering = Lowering { weights, context, slots: Vec::new(), ops: Vec::new() };
    let x = lowering.slot(model.width);
    lowering.ops.push(Op::Embed {
        table: weights.matrix(&model.embedding)?,
        scale: model.embedding_scale,
        x,
    });
    for (index, layer) in model.layers.iter().enumerate() {
        lowering.layer(layer, index as u32, x)?;
    }
    lowering.ops.push(Op::Head {
        x,
        norm: weights.norm(&model.output_norm)?,
        linear: weights.linear(&model.head)?,
    });
    lowering.ops.push(Op::Sample);
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
        rows_max: bucket.rows,
        outputs_max: bucket.outputs,
        context_max: bucket.context,
        vocab: model.vocab as u32,
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
    /// Width of each slot. Slot 0 is the hidden state; the others are reused by every layer.
    slots: Vec<u32>,
    ops: Vec<Op>,
}

impl Lowering<'_> {
    fn slot(&mut self, width: usize) -> Slot {
        self.slots.push(width as u32);
        Slot(self.slots.len() as u32 - 1)
    }

    /// The `nth` scratch slot of this width (slot 0, the hidden state, is never scratch).
    fn scratch(&mut self, width: usize, nth: usize) -> Slot {
        let of_width = |(_, w): &(usize, &u32)| **w == width as u32;
        let found = self.slots.iter().enumerate().skip(1).filter(of_width).nth(nth);
        match found {
            Some((index, _)) => Slot(index as u32),
            None => self.slot(width),
        }
    }

    fn layer(&mut self, layer: &Layer, index: u32, x: Slot) -> Result<(), ExecError> {
        let (y, output) = match &layer.mixer {
            Mixer::Attention(a) => (self.attention(layer, a, index, x)?, &a.output),
            Mixer::ShortConv(c) => (self.short_conv(layer, c, index, x)?, &c.output),
            Mixer::DeltaNet(d) => (self.delta_net(layer, d, index, x)?, &d.output),
        };
        self.ops.push(Op::Project {
            y,
            linear: self.weights.linear(output)?,
            post_norm: layer.mixer_post_norm.as_ref().map(|n| self.weights.norm(n)).transpose()?,
            x,
        });
        match &layer.feed_forward {
            FeedForward::Dense(dense) => self.dense(layer, dense, x),
            FeedForward::Experts(experts) => self.experts(layer, experts, x),
        }
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
        self.ops.push(Op::Gate { x, norm, linear, activation, y });
        Ok(())
    }

    fn gate_up(
        &mut self,
        layer: &Layer,
        ff: &DenseFeedForward,
        x: Slot,
    ) -> Result<Slot, ExecError> {
        let h = self.scratch(ff.gate.matrix.rows, 0);
        self.ops.push(Op::GateUp {
            x,
            norm: self.weights.norm(&layer.feed_forward_norm)?,
            gate: self.weights.linear(&ff.gate)?,
            up: self.weights.linear(&ff.up)?,
            activation: ff.activation,
            h,
        });
        Ok(h)
    }

    fn dense(&mut self, layer: &Layer, ff: &DenseFeedForward, x: Slot) -> Result<(), ExecError> {
        let h = self.gate_up(layer, ff, x)?;
        let post_norm = layer.feed_forward_post_norm.as_ref();
        self.ops.push(Op::Project {
            y: h,
            linear: self.weights.linear(&ff.down)?,
            post_norm: post_norm.map(|n| self.weights.norm(n)).transpose()?,
            x,
        });
        Ok(())
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
            shared = Some((h, self.weights.linear(&expert.network.down)?));
        }
        let selection_bias = experts.selection_bias.as_ref();
        self.ops.push(Op::Experts {
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
        });
        if let Some((y, linear)) = shared {
            self.ops.push(Op::Project { y, linear, post_norm: None, x });
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
        let head_norms = match &a.head_norms {
            Some((q, k)) => Some((self.weights.norm(q)?, self.weights.norm(k)?)),
            None => None,
        };
        self.ops.push(Op::Qkv {
            x,
            norm: self.weights.norm(&layer.mixer_norm)?,
            query: self.weights.linear(&a.query)?,
            key: self.weights.linear(&a.key)?,
            value: self.weights.linear(&a.value)?,
            head_norms,
            rope: a.rope.and_then(|rope| self.weights.ropes.get(rope).copied()),
            shape,
            layer: index,
            q,
        });
        self.ops.push(Op::Attention {
            q,
            shape,
            layer: index,
            scale: a.scale,
            // Devices that do not scale by position still run the model in such contexts.
            position_scale: a.position_scale.filter(|scale| !scale.is_one_within(self.context)),
            window: a.window,
            out,
        });
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
        self.ops.push(Op::DeltaNet {
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
        });
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
        self.ops.push(Op::ShortConv {
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
        });
        Ok(out)
    }
}
