//! Copies a model's weights to a device.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::{ControlFlow, Range};
use std::sync::{Mutex, PoisonError};

use walla_device::{
    Device, DeviceError, Linear, MatrixDesc, MatrixId, MatrixUse, Norm, OpKind, RopeDesc, RopeId,
    VectorId, WeightSource,
};
use walla_model::gguf::TensorData;
use walla_model::spec::{self, FeedForward, Keys, Layer, Mixer};
use walla_model::{Gguf, ModelSpec, TensorError};

use crate::error::ExecError;
use crate::options::Target;

/// Handles of a model's weights on a device, keyed by their location in the [`ModelSpec`].
#[derive(Debug, Default)]
pub(crate) struct Weights {
    matrices: HashMap<MatrixKey, MatrixId>,
    vectors: HashMap<VectorKey, VectorId>,
    /// Vectors of ones, by length: weights of norms that have none.
    ones: HashMap<usize, VectorId>,
    /// Rotation tables, in the order of [`ModelSpec::ropes`].
    pub ropes: Vec<RopeId>,
}

type MatrixKey = (usize, usize, usize, Option<spec::Bands>);
/// The last number is the bits of the scale.
type VectorKey = (usize, usize, usize, u32);

fn matrix_key(m: &spec::Matrix) -> MatrixKey {
    (m.tensor, m.first_row, m.rows, m.bands)
}

fn vector_key(v: &spec::Vector) -> VectorKey {
    (v.tensor, v.first, v.len, v.scale.to_bits())
}

impl Weights {
    /// Copies every weight that `model` names from `file` to `device`.
    ///
    /// After every matrix, `progress` receives the fraction loaded, from 0 to 1, and may stop the
    /// load.
    ///
    /// # Errors
    /// [`ExecError::Tensor`], [`ExecError::Device`], [`ExecError::Stopped`]. A device without
    /// ops of the model refuses it before it loads a weight.
    pub fn load(
        device: &mut dyn Device,
        file: &Gguf,
        model: &ModelSpec,
        target: Target,
        progress: &mut dyn FnMut(f32) -> ControlFlow<()>,
    ) -> Result<Self, ExecError> {
        let mut kinds = op_kinds(model);
        if target == Target::Hidden {
            kinds.retain(|kind| *kind != OpKind::BoundedLogits);
            kinds.push(OpKind::Hidden);
        }
        if let Some(missing) = kinds.into_iter().find(|kind| !device.runs(*kind)) {
            let (device, what) = (device.info().name.clone(), missing.to_string());
            return Err(DeviceError::Unsupported { device, what }.into());
        }
        let mut weights = Self::default();
        for rope in &model.ropes {
            let desc = RopeDesc {
                frequencies: &rope.frequencies,
                magnitude: rope.magnitude,
                pairs: rope.pairs,
            };
            weights.ropes.push(device.load_rope(&desc)?);
        }
        for vector in vectors(model, target) {
            if let Entry::Vacant(entry) = weights.vectors.entry(vector_key(&vector)) {
                let name = tensor_name(file, vector.tensor);
                entry.insert(device.load_vector(name, &file.vector(&vector)?)?);
            }
        }
        for len in value_norms(model) {
            if let Entry::Vacant(entry) = weights.ones.entry(len) {
                entry.insert(device.load_vector("ones", &vec![1.0; len])?);
            }
        }
        let matrices = matrices(model, target);
        let elements: usize = matrices.iter().map(|(m, _)| m.rows * m.cols).sum();
        let mut elements_loaded = 0;
        for (matrix, usage) in &matrices {
            let desc = MatrixDesc {
                name: tensor_name(file, matrix.tensor),
                rows: to_u32(matrix.rows)?,
                cols: to_u32(matrix.cols)?,
                ty: matrix.ty,
                usage: *usage,
            };
            let source = FileSource::new(desc.name, file.matrix_data(matrix)?);
            let id = device.load_matrix(&desc, &source).map_err(|error| source.cause(error))?;
            weights.matrices.insert(matrix_key(matrix), id);
            elements_loaded += matrix.rows * matrix.cols;
            if progress(elements_loaded as f32 / elements as f32).is_break() {
                return Err(ExecError::Stopped);
            }
        }
        Ok(weights)
    }

    pub(crate) fn matrix(&self, matrix: &spec::Matrix) -> Result<MatrixId, ExecError> {
        self.matrices.get(&matrix_key(matrix)).copied().ok_or_else(unknown)
    }

    pub(crate) fn vector(&self, vector: &spec::Vector) -> Result<VectorId, ExecError> {
        self.vectors.get(&vector_key(vector)).copied().ok_or_else(unknown)
    }

    pub(crate) fn linear(&self, linear: &spec::Linear) -> Result<Linear, ExecError> {
        let bias = linear.bias.as_ref().map(|b| self.vector(b)).transpose()?;
        Ok(Linear { matrix: self.matrix(&linear.matrix)?, bias })
    }

    pub(crate) fn norm(&self, norm: &spec::RmsNorm) -> Result<Norm, ExecError> {
        Ok(Norm { weight: self.vector(&norm.weight)?, eps: norm.eps })
    }

    /// A norm of `len` numbers without weights.
    pub(crate) fn plain_norm(&self, len: usize, eps: f32) -> Result<Norm, ExecError> {
        let weight = self.ones.get(&len).copied().ok_or_else(unknown)?;
        Ok(Norm { weight, eps })
    }
}

fn unknown() -> ExecError {
    ExecError::Options("the model is not the one that was loaded".into())
}

/// A matrix of a file as a weight source for devices. Keeps the file's first error, which has more
/// detail than the device's.
#[derive(Debug)]
pub struct FileSource<'a> {
    name: &'a str,
    data: TensorData<'a>,
    failure: Mutex<Option<TensorError>>,
}

impl<'a> FileSource<'a> {
    /// The data of a matrix, and its name for messages.
    #[must_use]
    pub fn new(name: &'a str, data: TensorData<'a>) -> Self {
        Self { name, data, failure: Mutex::new(None) }
    }

    fn fail(&self, error: TensorError) -> DeviceError {
        let (matrix, reason) = (self.name.to_owned(), error.to_string());
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        DeviceError::Source { matrix, reason }
    }

    /// The cause of a failed load: the file's error if it caused the device's.
    pub fn cause(&self, error: DeviceError) -> ExecError {
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
        match (failure, error) {
            (Some(failure), DeviceError::Source { .. }) => ExecError::Tensor(failure),
            (_, error) => ExecError::Device(error),
        }
    }
}

impl WeightSource for FileSource<'_> {
    fn bytes(&self) -> usize {
        self.data.len()
    }

    fn read<'a>(
        &'a self,
        range: Range<usize>,
        buffer: &'a mut Vec<u8>,
    ) -> Result<&'a [u8], DeviceError> {
        self.data.read(range, buffer).map_err(|error| self.fail(error))
    }

    fn read_into(&self, start: usize, out: &mut [u8]) -> Result<(), DeviceError> {
        self.data.read_into(start, out).map_err(|error| self.fail(error))
    }
}

/// Kinds of ops of a model that devices may lack; some occur several times.
#[must_use]
pub fn op_kinds(model: &ModelSpec) -> Vec<OpKind> {
    let mut kinds = Vec::new();
    for layer in &model.layers {
        match &layer.mixer {
            Mixer::DeltaNet(_) => kinds.extend([OpKind::DeltaNet, OpKind::Gate]),
            Mixer::Attention(attention) => {
                kinds.extend(attention.gate.map(|_| OpKind::Gate));
                match &attention.keys {
                    Keys::Own(own) => kinds.extend(own.value_norm_eps.map(|_| OpKind::ValueNorm)),
                    Keys::Of(_) => kinds.push(OpKind::SharedKeys),
                }
            }
            Mixer::ShortConv(_) => {}
        }
        if layer.scale != 1.0 {
            kinds.push(OpKind::ScaledSum);
        }
        if let FeedForward::Experts(experts) = &layer.feed_forward {
            kinds.push(OpKind::Experts);
            kinds.extend(experts.shared.map(|_| OpKind::Gate));
        }
    }
    kinds.extend(model.layer_inputs.map(|_| OpKind::LayerInputs));
    if model.soft_cap.is_some() || !model.suppressed.is_empty() {
        kinds.push(OpKind::BoundedLogits);
    }
    kinds
}

/// Lengths of the norms of values.
fn value_norms(model: &ModelSpec) -> impl Iterator<Item = usize> {
    model.layers.iter().filter_map(|layer| match &layer.mixer {
        Mixer::Attention(a) => a.own_keys()?.value_norm_eps.map(|_| a.head_dim),
        Mixer::ShortConv(_) | Mixer::DeltaNet(_) => None,
    })
}

fn tensor_name(file: &Gguf, tensor: usize) -> &str {
    file.tensor(tensor).map_or("?", |info| info.name)
}

fn to_u32(number: usize) -> Result<u32, ExecError> {
    u32::try_from(number).map_err(|_| ExecError::Options(format!("a matrix side of {number}")))
}

/// Every matrix once, with all its uses: a tied embedding is both gathered and multiplied.
fn matrices(model: &ModelSpec, target: Target) -> Vec<(spec::Matrix, MatrixUse)> {
    let mut all: Vec<(spec::Matrix, MatrixUse)> = Vec::new();
    let mut add = |matrix: &spec::Matrix, gather: bool| match all
        .iter_mut()
        .find(|(m, _)| matrix_key(m) == matrix_key(matrix))
    {
        // Tied embeddings: one matrix that is gathered and multiplied.
        Some((_, usage)) => {
            usage.gather |= gather;
            usage.multiply |= !gather;
        }
        None => all.push((*matrix, MatrixUse { gather, multiply: !gather })),
    };
    add(&model.embedding, true);
    if let Some(inputs) = &model.layer_inputs {
        add(&inputs.table, true);
        add(&inputs.projection.matrix, false);
    }
    for layer in &model.layers {
        for linear in layer_linears(layer) {
            add(&linear.matrix, false);
        }
        if let FeedForward::Experts(experts) = &layer.feed_forward {
            let parts = [&experts.router, &experts.gate, &experts.up, &experts.down];
            parts.into_iter().for_each(|matrix| add(matrix, false));
        }
    }
    if target == Target::Tokens {
        add(&model.head.matrix, false);
    }
    all
}

fn layer_linears(layer: &Layer) -> Vec<&spec::Linear> {
    let mut linears = match &layer.mixer {
        Mixer::Attention(a) => {
            let keys = a.own_keys().into_iter().flat_map(|own| [&own.key, &own.value]);
            [&a.query, &a.output].into_iter().chain(keys).chain(&a.gate).collect()
        }
        Mixer::ShortConv(c) => {
            let [b, gate, x] = &c.input;
            vec![b, gate, x, &c.output]
        }
        Mixer::DeltaNet(d) => vec![&d.input, &d.alpha, &d.beta, &d.gate, &d.output],
    };
    let shared = match &layer.feed_forward {
        FeedForward::Dense(_) => None,
        FeedForward::Experts(experts) => experts.shared.as_ref(),
    };
    let dense = match &layer.feed_forward {
        FeedForward::Dense(network) => Some(network),
        FeedForward::Experts(_) => shared.map(|shared| &shared.network),
    };
    linears.extend(dense.iter().flat_map(|network| [&network.gate, &network.up, &network.down]));
    linears.extend(shared.and_then(|shared| shared.weight.as_ref()));
    linears.extend(layer.input.iter().flat_map(|input| [&input.gate, &input.output]));
    linears
}

fn vectors(model: &ModelSpec, target: Target) -> Vec<spec::Vector> {
    let mut all = vec![model.output_norm.weight];
    all.extend(model.head.bias.filter(|_| target == Target::Tokens));
    if let Some(inputs) = &model.layer_inputs {
        all.push(inputs.norm.weight);
        all.extend(inputs.projection.bias);
    }
    for layer in &model.layers {
        all.extend([layer.mixer_norm.weight, layer.feed_forward_norm.weight]);
        let input = layer.input.map(|input| input.post_norm);
        let post_norms = [layer.mixer_post_norm, layer.feed_forward_post_norm, input];
        all.extend(post_norms.iter().flatten().map(|norm| norm.weight));
        all.extend(layer_linears(layer).into_iter().filter_map(|linear| linear.bias));
        if let FeedForward::Experts(experts) = &layer.feed_forward {
            all.extend(experts.selection_bias);
        }
        match &layer.mixer {
            Mixer::Attention(a) => {
                let key_norm = a.own_keys().and_then(|own| own.key_norm);
                all.extend([a.query_norm, key_norm].iter().flatten().map(|norm| norm.weight));
            }
            Mixer::ShortConv(c) => all.push(c.kernel),
            Mixer::DeltaNet(d) => all.extend([d.kernel, d.decay, d.step_bias, d.norm.weight]),
        }
    }
    all
}
