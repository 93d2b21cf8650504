//! Networks in the ONNX format, evaluated by `rten` on threads of low priority.

mod check;
mod places;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use rten::{
    Model, ModelOptions, NodeId, RunError, RunErrorKind, RunOptions, ThreadPool, Value,
    ValueOrView, ValueView,
};
use rten_tensor::prelude::*;
use rten_tensor::{NdTensor, Tensor, TensorView};
use walla_cpu::priority::ThreadClass;

use crate::error::VoiceError;

pub(crate) use places::places;

/// The largest file that is read.
const MAX_FILE_BYTES: u64 = 2 << 30;

/// Whether there is something at a path: otherwise the error would name a file next to it.
pub(crate) fn check_path(path: &Path) -> Result<(), VoiceError> {
    let found = std::fs::metadata(path);
    found.map(drop).map_err(|source| VoiceError::File { path: path.to_owned(), source })
}

/// Reads a file of at most `max` bytes.
pub(crate) fn read(path: &Path, max: u64) -> Result<Vec<u8>, VoiceError> {
    let failed = |source| VoiceError::File { path: path.to_owned(), source };
    let bytes = std::fs::metadata(path).map_err(failed)?.len();
    if bytes > max {
        return Err(VoiceError::model(path, format!("{bytes} bytes, at most {max}")));
    }
    std::fs::read(path).map_err(failed)
}

/// Reads a JSON file of at most `max` bytes.
pub(crate) fn read_json<T>(
    path: &Path,
    max: u64,
    parse: impl FnOnce(&serde_json::Value) -> Result<T, String>,
) -> Result<T, VoiceError> {
    let bytes = read(path, max)?;
    let json = serde_json::from_slice(&bytes).map_err(|error| error.to_string());
    json.and_then(|json| parse(&json)).map_err(|reason| VoiceError::model(path, reason))
}

/// Reads the file of a network, and checks its encoding.
pub(crate) fn read_network(path: &Path) -> Result<Vec<u8>, VoiceError> {
    let bytes = read(path, MAX_FILE_BYTES)?;
    check::check(&bytes).map_err(|reason| VoiceError::model(path, reason))?;
    Ok(bytes)
}

/// Threads on which networks are evaluated.
pub(crate) fn pool(threads: u32) -> Arc<ThreadPool> {
    let pool = ThreadPool::with_num_threads(threads.clamp(1, 64) as usize);
    // A system that refuses it computes at normal priority.
    pool.run(|| rayon::broadcast(|_| ThreadClass::Embedder.enter()));
    Arc::new(pool)
}

/// A loaded network.
#[derive(Debug)]
pub(crate) struct Network {
    model: Model,
    pool: Arc<ThreadPool>,
}

impl Network {
    /// Loads a network, and finds the values `names` in it.
    pub(crate) fn load<const N: usize>(
        bytes: Vec<u8>,
        pool: Arc<ThreadPool>,
        names: [&str; N],
    ) -> Result<(Self, [NodeId; N]), String> {
        Self::load_with(&ModelOptions::with_all_ops(), bytes, pool, names)
    }

    /// As [`load`](Self::load), with options.
    pub(crate) fn load_with<const N: usize>(
        options: &ModelOptions,
        bytes: Vec<u8>,
        pool: Arc<ThreadPool>,
        names: [&str; N],
    ) -> Result<(Self, [NodeId; N]), String> {
        let load = || options.load(bytes).map_err(|error| error.to_string());
        let network = Self { model: guarded(load)?, pool };
        let mut ids = Vec::with_capacity(N);
        for name in names {
            ids.push(network.id(name).ok_or_else(|| format!("it has no value {name:?}"))?);
        }
        let ids = ids.try_into().map_err(|_| String::new())?; // One for each name.
        Ok((network, ids))
    }

    pub(crate) fn id(&self, name: &str) -> Option<NodeId> {
        self.model.find_node(name)
    }

    pub(crate) fn run<const N: usize>(
        &self,
        inputs: Vec<(NodeId, ValueOrView<'_>)>,
        outputs: [NodeId; N],
    ) -> Result<[Value; N], VoiceError> {
        self.guarded(|options| self.model.run_n(inputs, outputs, options))
    }

    /// As [`run`](Self::run), for as many outputs as are named.
    pub(crate) fn run_all(
        &self,
        inputs: Vec<(NodeId, ValueOrView<'_>)>,
        outputs: &[NodeId],
    ) -> Result<Vec<Value>, VoiceError> {
        self.guarded(|options| self.model.run(inputs, outputs, options))
    }

    /// The [places] whose values the optimized network has.
    pub(crate) fn places(&self, places: &[Vec<String>]) -> Vec<Vec<NodeId>> {
        let of_place = |place: &Vec<String>| place.iter().map(|name| self.id(name)).collect();
        places.iter().filter_map(of_place).collect()
    }

    /// As [`run_all`](Self::run_all). `None`: the optimized network has no such outputs.
    fn run_if_possible(
        &self,
        inputs: Vec<(NodeId, ValueOrView<'_>)>,
        outputs: &[NodeId],
    ) -> Result<Option<Vec<Value>>, VoiceError> {
        self.guarded(|options| match self.model.run(inputs, outputs, options) {
            Err(error) if error.kind() == RunErrorKind::PlanningError => Ok(None),
            result => result.map(Some),
        })
    }

    /// Computes what these inputs are enough for. The result is given to [`run`](Self::run) with
    /// the other inputs.
    pub(crate) fn run_partly(
        &self,
        inputs: Vec<(NodeId, ValueOrView<'_>)>,
        outputs: &[NodeId],
    ) -> Result<Vec<(NodeId, Value)>, VoiceError> {
        self.guarded(|options| self.model.partial_run(inputs, outputs, options))
    }

    fn guarded<T>(
        &self,
        run: impl FnOnce(Option<RunOptions>) -> Result<T, RunError>,
    ) -> Result<T, VoiceError> {
        let options = RunOptions::default().with_thread_pool(Some(Arc::clone(&self.pool)));
        let run = || run(Some(options)).map_err(|error| error.to_string());
        guarded(run).map_err(VoiceError::Failed)
    }
}

/// Values of a network.
pub(crate) type Values = Vec<(NodeId, Value)>;

/// A run that is divided at [places].
#[derive(Debug, Default)]
pub(crate) struct Divided {
    /// The next place, and the values that are needed behind the last one.
    place: usize,
    alive: Values,
}

impl Divided {
    /// Runs to the next place. Returns whether there was one.
    pub(crate) fn advance<'a>(
        &mut self,
        network: &Network,
        places: &[Vec<NodeId>],
        inputs: impl Fn() -> Result<Vec<(NodeId, ValueOrView<'a>)>, VoiceError>,
    ) -> Result<bool, VoiceError> {
        while let Some(needed) = places.get(self.place) {
            self.place += 1;
            let is_alive = |node: &NodeId| self.alive.iter().any(|(known, _)| known == node);
            let new: Vec<NodeId> = needed.iter().copied().filter(|node| !is_alive(node)).collect();
            if let Some(results) = network.run_if_possible(self.inputs(inputs()?), &new)? {
                self.alive.retain(|(node, _)| needed.contains(node));
                self.alive.extend(new.into_iter().zip(results));
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The values that are needed behind the last place and are not in `values`.
    pub(crate) fn take_rest(&mut self, values: &Values) -> Values {
        let is_new = |(node, _): &(NodeId, Value)| !values.iter().any(|(known, _)| known == node);
        std::mem::take(&mut self.alive).into_iter().filter(is_new).collect()
    }

    /// Inputs of the rest of the run.
    pub(crate) fn inputs<'a>(
        &'a self,
        mut inputs: Vec<(NodeId, ValueOrView<'a>)>,
    ) -> Vec<(NodeId, ValueOrView<'a>)> {
        inputs.extend(self.alive.iter().map(|(node, value)| (*node, value.into())));
        inputs
    }
}

/// A damaged file can violate the assumptions of an operator: its panic is an error.
fn guarded<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    // The network is not changed by a run, and its result is dropped with the panic.
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        Err(format!("an operator panicked: {}", crate::panic_text(&*panic)))
    })
}

/// The numbers of a value and its shape.
pub(crate) fn floats(value: Value) -> Result<(Vec<usize>, Vec<f32>), VoiceError> {
    let tensor = value.into_tensor::<f32>();
    let tensor = tensor.ok_or_else(|| VoiceError::Failed("a result has other numbers".into()))?;
    let shape = tensor.shape().to_vec();
    Ok((shape, tensor.into_data()))
}

/// Numbers as an input.
pub(crate) fn view<'a, T, const N: usize>(
    shape: [usize; N],
    numbers: &'a [T],
) -> Result<ValueOrView<'a>, VoiceError>
where
    ValueView<'a>: From<TensorView<'a, T>>,
{
    let view = ValueView::from_shape(shape, numbers);
    Ok(view.map_err(|error| VoiceError::Failed(error.to_string()))?.into())
}

/// Numbers as a result of an earlier stage.
pub(crate) fn value<T, const N: usize>(
    shape: [usize; N],
    numbers: Vec<T>,
) -> Result<Value, VoiceError>
where
    Value: From<Tensor<T>>,
{
    let tensor = NdTensor::try_from_data(shape, numbers);
    let tensor = tensor.map_err(|error| VoiceError::Failed(error.to_string()))?;
    Ok(tensor.into_dyn().into())
}
