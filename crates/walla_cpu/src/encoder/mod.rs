//! Encoders: models in which every token of a text sees the whole text, for embeddings.
//!
//! An encoder is no [`Device`](walla_device::Device): a text needs no cache, all of its rows are
//! computed together, and nothing is sampled. [`CpuEncoder`] uses the device's matrices, kernels
//! and threads, but it runs in the calling thread and has no queue.
//!
//! ```text
//! x = norm(tokens[token] + types[0] + positions[position])
//! each layer:  x = norm(x + O attention(Q x, K x, V x));  x = norm(x + D gelu(U x))
//! ```
//!
//! Source: Devlin et al. 2018; the encoder of Vaswani et al. 2017 with its norms after the sums.
//! [`LayerNorm`]: Ba, Kiros and Hinton 2016. GELU: Hendrycks and Gimpel 2016.
//!
//! The rows of all texts of a call share each matrix product. Attention is computed for each text.
//! A row's result depends on its text only: neither on the other texts nor on the threads.

mod attention;
mod forward;
mod prepare;

use walla_device::{
    DeviceError, DeviceInfo, Linear, MatrixDesc, MatrixId, MemoryUse, VectorId, WeightSource,
};

use crate::device::{checked, pool_of, push};
use crate::matrix::Matrix;
use crate::memory::copied;
use crate::memory_budget::MemoryBudget;
use crate::options::{CpuOptions, Variant};
use crate::pool::Pool;
use prepare::Prepared;

/// `y[i] = (x[i] - mean(x)) / sqrt(variance(x) + eps) * weight[i] + bias[i]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerNorm {
    /// `[width]`.
    pub weight: VectorId,
    /// `[width]`.
    pub bias: VectorId,
    /// Added to the variance.
    pub eps: f32,
}

/// A layer of an encoder.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EncoderLayer {
    /// `Q`, `K` and `V`: `[width, width]` each.
    pub attention: [Linear; 3],
    /// `O`: `[width, width]`.
    pub output: Linear,
    /// Norm of the sum with the attention.
    pub attention_norm: LayerNorm,
    /// `U`: `[hidden, width]`.
    pub up: Linear,
    /// `D`: `[width, hidden]`.
    pub down: Linear,
    /// Norm of the sum with the network.
    pub output_norm: LayerNorm,
}

/// An encoder, with handles of a [`CpuEncoder`].
#[derive(Clone, Debug, PartialEq)]
pub struct EncoderProgram {
    /// `[vocab, width]`.
    pub tokens: MatrixId,
    /// `[types, width]`: the first row is added to every token.
    pub types: Option<MatrixId>,
    /// `[context, width]`.
    pub positions: MatrixId,
    /// Norm of the sum of the three.
    pub norm: LayerNorm,
    /// Heads of the attention; divides the width.
    pub heads: u32,
    /// In order.
    pub layers: Vec<EncoderLayer>,
    /// Rows of all texts of one call: at least 1.
    pub max_rows: u32,
}

/// An encoder on the host's cores.
///
/// It computes in the calling thread and in threads that it starts, which inherit the calling
/// thread's priority. Dropping it ends them and frees all memory.
pub struct CpuEncoder {
    info: DeviceInfo,
    variant: Variant,
    pool: Pool,
    room: MemoryBudget,
    memory: MemoryUse,
    matrices: Vec<Matrix>,
    vectors: Vec<Vec<f32>>,
    prepared: Option<Prepared>,
}

impl std::fmt::Debug for CpuEncoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CpuEncoder").field("info", &self.info).finish_non_exhaustive()
    }
}

impl CpuEncoder {
    /// Starts the threads.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] if this machine cannot run the requested variant,
    /// [`DeviceError::Invalid`] if [`threads`](CpuOptions::threads) is 0.
    pub fn new(options: CpuOptions) -> Result<Self, DeviceError> {
        let (info, variant) = checked(&options)?;
        let pool = pool_of(&options)?;
        Ok(Self {
            info,
            variant,
            pool,
            room: MemoryBudget::new(options.max_memory_bytes),
            memory: MemoryUse::default(),
            matrices: Vec::new(),
            vectors: Vec::new(),
            prepared: None,
        })
    }

    /// The processor and the number of threads.
    #[must_use]
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Memory allocated now.
    #[must_use]
    pub fn memory(&self) -> MemoryUse {
        self.memory
    }

    /// Copies a matrix, in the layout of the kernels.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`], [`DeviceError::Source`], [`DeviceError::Unsupported`] for the
    /// type, [`DeviceError::Invalid`] for the sizes.
    pub fn load_matrix(
        &mut self,
        desc: &MatrixDesc<'_>,
        source: &dyn WeightSource,
    ) -> Result<MatrixId, DeviceError> {
        let bytes = Matrix::bytes_of(desc, source, self.variant) as u64;
        self.room.take(self.memory, desc.name, bytes)?;
        let matrix = Matrix::load(desc, source, self.variant, &self.pool)?;
        self.memory.weight_bytes += bytes;
        Ok(MatrixId(push(&mut self.matrices, matrix)?))
    }

    /// Copies a vector.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    pub fn load_vector(&mut self, name: &str, values: &[f32]) -> Result<VectorId, DeviceError> {
        self.room.take(self.memory, name, size_of_val(values) as u64)?;
        let vector = copied(name, values)?;
        self.memory.weight_bytes += size_of_val(values) as u64;
        Ok(VectorId(push(&mut self.vectors, vector)?))
    }

    /// Checks the program and allocates the memory of its activations.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] names an unknown handle or a wrong size;
    /// [`DeviceError::OutOfMemory`].
    pub fn prepare(&mut self, program: EncoderProgram) -> Result<(), DeviceError> {
        let sizes = prepare::sizes(&program, &self.matrices, &self.vectors)?;
        let bytes = sizes.bytes(self.pool.workers());
        self.room.take(self.memory, "activations", bytes)?;
        self.prepared = Some(Prepared::new(program, sizes, self.pool.workers())?);
        // Not added: the memory of an earlier program was freed with it.
        self.memory.workspace_bytes = bytes;
        Ok(())
    }

    /// Computes the hidden states of texts, `[rows, width]`: the rows of the first text, then those
    /// of the next.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] if nothing was prepared, a text is empty or longer than the
    /// positions, a token is unknown, or the texts have more rows than the program.
    ///
    /// # Panics
    /// If a kernel does.
    pub fn run(&mut self, texts: &[&[u32]]) -> Result<&[f32], DeviceError> {
        let Self { variant, pool, matrices, vectors, prepared, .. } = self;
        let invalid = |what: &str| DeviceError::Invalid(what.to_owned());
        let prepared = prepared.as_mut().ok_or_else(|| invalid("no program is prepared"))?;
        prepared.check(texts, matrices)?;
        Ok(forward::Forward { variant: *variant, pool, matrices, vectors }.run(prepared, texts))
    }
}
