//! Loads a model.

use std::collections::HashMap;
use std::ops::ControlFlow;

use walla_cpu::encoder::{self, CpuEncoder, EncoderProgram};
use walla_cpu::{CpuDevice, CpuOptions, Variant};
use walla_device::{Linear, MatrixDesc, MatrixId, MatrixUse, VectorId};
use walla_exec::{ExecError, Executor, FileSource, LastHidden};
use walla_model::embedding::{
    EmbeddingModel, EmbeddingSpec, EncoderLayer, EncoderSpec, LayerNorm, Pooling,
};
use walla_model::tokenizer::Tokenizer;
use walla_model::{Gguf, ModelSpec, spec};
use walla_types::{FNV1A, environment, fnv1a};

use crate::error::LoadError;
use crate::model::{Model, Network};
use crate::options::EmbedderOptions;

/// Default context of models that generate text: the cache holds all of it.
const DECODER_CONTEXT: u32 = 2_048;
/// Rows of a step of such a model.
const MAX_DECODER_ROWS: u32 = 512;

/// Loads the model of a file, in the calling thread.
pub(crate) fn load(file: &Gguf, options: EmbedderOptions) -> Result<Model, LoadError> {
    let asked = options.max_context_tokens.unwrap_or(u32::MAX);
    let spec = EmbeddingSpec::from_gguf(file, asked.min(DECODER_CONTEXT))?;
    let pooling = options.pooling.or(spec.pooling).ok_or(LoadError::NoPooling)?;
    let tokenizer = Tokenizer::from_gguf(file)?;
    // An id beyond the table would fail in the middle of a text; here the file is refused.
    if tokenizer.vocab_size() != spec.vocab() {
        let (tokens, rows) = (tokenizer.vocab_size(), spec.vocab());
        return Err(LoadError::Vocabularies { tokens, rows });
    }
    let width = spec.width();
    let (network, context) = match spec.model {
        EmbeddingModel::Encoder(encoder) => {
            let context = encoder.context.min(asked);
            (Network::Encoder(load_encoder(file, &encoder, context, &options)?), context)
        }
        EmbeddingModel::Decoder(decoder) => {
            if pooling != Pooling::Last {
                return Err(LoadError::Pooling { pooling });
            }
            let asked = options.max_context_tokens.unwrap_or(DECODER_CONTEXT);
            let context = decoder.context_train.min(asked);
            (Network::Decoder(load_decoder(file, &decoder, context, &options)?), context)
        }
    };
    Ok(Model { tokenizer, network, width, pooling, max_tokens: context as usize, options })
}

fn cpu_options(options: &EmbedderOptions) -> CpuOptions {
    CpuOptions {
        threads: Some(options.threads),
        variant: environment::cpu_variant().and_then(|name| Variant::from_name(&name)),
        max_memory_bytes: options.max_memory_bytes,
        ..CpuOptions::default()
    }
}

fn load_decoder(
    file: &Gguf,
    model: &ModelSpec,
    context: u32,
    options: &EmbedderOptions,
) -> Result<LastHidden, LoadError> {
    let rows = options.max_batch_tokens.min(MAX_DECODER_ROWS);
    let device = Box::new(CpuDevice::new(cpu_options(options))?);
    let exec = LastHidden::options(context, rows);
    let executor = Executor::load(device, file, model, exec, &mut |_| ControlFlow::Continue(()))?;
    Ok(LastHidden::new(executor)?)
}

fn load_encoder(
    file: &Gguf,
    model: &EncoderSpec,
    context: u32,
    options: &EmbedderOptions,
) -> Result<CpuEncoder, LoadError> {
    let device = CpuEncoder::new(cpu_options(options))?;
    let mut loader = Loader { file, device, vectors: HashMap::new() };
    let program = EncoderProgram {
        tokens: loader.table(&model.tokens)?,
        types: model.types.as_ref().map(|types| loader.table(types)).transpose()?,
        positions: loader.table(&model.positions)?,
        norm: loader.norm(&model.norm)?,
        heads: model.heads as u32,
        layers: model.layers.iter().map(|layer| loader.layer(layer)).collect::<Result<_, _>>()?,
        // A text is never divided.
        max_rows: options.max_batch_tokens.max(context),
    };
    loader.device.prepare(program)?;
    Ok(loader.device)
}

/// Copies weights to an encoder.
struct Loader<'a> {
    file: &'a Gguf,
    device: CpuEncoder,
    /// Parts of fused biases have other places in the same tensor.
    vectors: HashMap<(usize, usize), VectorId>,
}

impl Loader<'_> {
    fn matrix(&mut self, matrix: &spec::Matrix, usage: MatrixUse) -> Result<MatrixId, LoadError> {
        let name = self.file.tensor(matrix.tensor).map_or("?", |info| info.name);
        let side = |side: usize| {
            u32::try_from(side)
                .map_err(|_| ExecError::Options(format!("{name} has a side of {side}")))
        };
        let (rows, cols) = (side(matrix.rows)?, side(matrix.cols)?);
        let desc = MatrixDesc { name, rows, cols, ty: matrix.ty, usage };
        let source = FileSource::new(name, self.file.matrix_data(matrix)?);
        let loaded = self.device.load_matrix(&desc, &source);
        Ok(loaded.map_err(|error| source.cause(error))?)
    }

    fn table(&mut self, matrix: &spec::Matrix) -> Result<MatrixId, LoadError> {
        self.matrix(matrix, MatrixUse { gather: true, multiply: false })
    }

    fn vector(&mut self, vector: &spec::Vector) -> Result<VectorId, LoadError> {
        let key = (vector.tensor, vector.first);
        if let Some(id) = self.vectors.get(&key) {
            return Ok(*id);
        }
        let name = self.file.tensor(vector.tensor).map_or("?", |info| info.name);
        let id = self.device.load_vector(name, &self.file.vector(vector)?)?;
        self.vectors.insert(key, id);
        Ok(id)
    }

    fn linear(&mut self, linear: &spec::Linear) -> Result<Linear, LoadError> {
        let usage = MatrixUse { gather: false, multiply: true };
        let matrix = self.matrix(&linear.matrix, usage)?;
        let bias = linear.bias.as_ref().map(|bias| self.vector(bias)).transpose()?;
        Ok(Linear { matrix, bias })
    }

    fn norm(&mut self, norm: &LayerNorm) -> Result<encoder::LayerNorm, LoadError> {
        let (weight, bias) = (self.vector(&norm.weight)?, self.vector(&norm.bias)?);
        Ok(encoder::LayerNorm { weight, bias, eps: norm.eps })
    }

    fn layer(&mut self, layer: &EncoderLayer) -> Result<encoder::EncoderLayer, LoadError> {
        let [query, key, value] = &layer.attention;
        Ok(encoder::EncoderLayer {
            attention: [self.linear(query)?, self.linear(key)?, self.linear(value)?],
            output: self.linear(&layer.output)?,
            attention_norm: self.norm(&layer.attention_norm)?,
            up: self.linear(&layer.up)?,
            down: self.linear(&layer.down)?,
            output_norm: self.norm(&layer.output_norm)?,
        })
    }
}

/// Bytes of each tensor that the [hash](hash) includes.
const SAMPLE_BYTES: usize = 4 << 10;

/// A hash (64-bit FNV-1a, Fowler, Noll and Vo) of what determines vectors: the architecture, the
/// pooling, the texts of tokens, and the names, shapes, types and first bytes of all tensors.
pub(crate) fn hash(file: &Gguf, pooling: Pooling) -> Result<u64, LoadError> {
    let mut hash = FNV1A;
    let mut add = |bytes: &[u8]| {
        // The length separates neighbors.
        hash = fnv1a(fnv1a(hash, &(bytes.len() as u64).to_le_bytes()), bytes);
    };
    add(file.find::<&str>("general.architecture").ok().flatten().unwrap_or_default().as_bytes());
    add(pooling.name().as_bytes());
    let tokens = file.find::<walla_model::gguf::Strings<'_>>("tokenizer.ggml.tokens");
    for token in tokens.ok().flatten().iter().flat_map(|tokens| tokens.iter()) {
        add(token.as_bytes());
    }
    let mut buffer = Vec::new();
    for (index, tensor) in file.tensors().enumerate() {
        add(tensor.name.as_bytes());
        add(format!("{} {:?}", tensor.shape, tensor.ty).as_bytes());
        let data = file.tensor_data(index)?;
        add(data.read(0..data.len().min(SAMPLE_BYTES), &mut buffer)?);
    }
    Ok(hash)
}
